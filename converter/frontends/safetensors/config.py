"""A model's config.json as a decoder's settings. Names and defaults are those of the library transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.errors import ConvertError
from converter.frontends.decoders import MOST_LAYERS, Decoder, Family, Rope, llama3_divisors, windows

__all__ = ["Config", "decoder_of"]

_LARGEST = 1 << 28


@dataclass(frozen=True)
class Config:
    """Typed access to an object of JSON; null is the same as absent."""

    values: Mapping[str, Any]
    where: str = "config.json"

    def _error(self, name: str, wanted: str) -> ConvertError:
        got = "none" if self.values.get(name) is None else repr(self.values[name])[:80]
        return ConvertError(f"{self.where}, {name}: expected {wanted}, got {got}; correct it, or save the model again")

    def has(self, name: str) -> bool:
        """Whether there is a value."""
        return self.values.get(name) is not None

    def count(self, name: str, default: int | None = None, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number from `least` to `most`; without a default it must be there."""
        found = self.values.get(name)
        found = default if found is None else found
        if type(found) is not int or not least <= found <= most:
            raise self._error(name, f"a whole number from {least} to {most}")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; without a default it must be there."""
        found = self.values.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < math.inf:
            raise self._error(name, "a number above 0")
        return float(found)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        found = self.values.get(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self._error(name, "true or false")
        return found

    def text(self, name: str) -> str | None:
        """A text; None if it is not there."""
        found = self.values.get(name)
        if found is not None and not isinstance(found, str):
            raise self._error(name, "a text")
        return found

    def inner(self, name: str) -> Config:
        """An object; empty if it is not there."""
        found = self.values.get(name) or {}
        if not isinstance(found, dict):
            raise self._error(name, "an object")
        return Config(found, f"{self.where}, {name}")

    def items(self, name: str, length: int) -> Sequence[Any]:
        """A list of this length; empty if it is not there."""
        found = self.values.get(name) or []
        if not isinstance(found, list) or len(found) not in (0, length):
            raise self._error(name, f"a list of {length}")
        return found


def decoder_of(family: Family, config: Config) -> Decoder:
    """The settings. Raises ConvertError for a missing entry, or a setting that is not read."""
    layers, width, heads = (
        config.count("num_hidden_layers", most=MOST_LAYERS), config.count("hidden_size"),
        config.count("num_attention_heads"),
    )  # fmt: skip
    size = config.count("head_dim", width // heads)
    activation = config.text("hidden_activation") or config.text("hidden_act") or ""
    if activation not in _ACTIVATIONS[family.activation]:
        wanted = " or ".join(_ACTIVATIONS[family.activation])
        raise ConvertError(f"config.json: expected the activation {wanted} in this family, got {activation!r}")
    spans = _windows(family, config, layers)
    scale = config.number("query_pre_attn_scalar", float(size)) ** -0.5
    return Decoder(
        architecture=family.name,
        name=config.text("_name_or_path") or "",
        context=config.count("max_position_embeddings"),
        vocabulary=config.count("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_size=size,
        hidden=config.count("intermediate_size"),
        epsilon=config.number("rms_norm_eps"),
        ropes=_ropes(family, config, size, spans),
        windows=spans,
        interleaved=False,
        scale=scale,
        softcap=config.number("attn_logit_softcapping", 0.0),
        logit_softcap=config.number("final_logit_softcapping", 0.0),
        embedding_scale=width**0.5 if family.scaled_embedding else 1.0,
        activation=family.activation,
        head_norms=family.head_norms,
        post_norms=family.post_norms,
        norm_offset=family.norm_offset,
    )


_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {"Silu": ("silu",), "Gelu": ("gelu_pytorch_tanh", "gelu")}
"""Names by operator. The first files of Gemma say gelu, and mean what the others say."""


def _windows(family: Family, config: Config, layers: int) -> tuple[int, ...]:
    """By layer: `layer_types` if the file has them; otherwise a pattern, or all layers from `max_window_layers` on."""
    if not config.flag("use_sliding_window", True) or not config.has("sliding_window"):
        return (0,) * layers
    window, kinds = config.count("sliding_window"), config.items("layer_types", layers)
    if kinds:
        known = {"full_attention": 0, "sliding_attention": window}
        if not all(isinstance(kind, str) and kind in known for kind in kinds):
            raise ConvertError(f"config.json, layer_types: expected each of {', '.join(known)}, got {str(kinds)[:80]}")
        return tuple(known[kind] for kind in kinds)
    every = config.count("sliding_window_pattern", family.global_every, least=0)
    first = config.count("max_window_layers", 0, least=0) if config.has("use_sliding_window") else 0
    return tuple(0 if i < first else span for i, span in enumerate(windows(layers, window, every)))


def _ropes(family: Family, config: Config, size: int, spans: tuple[int, ...]) -> tuple[Rope | None, ...]:
    """By layer."""
    settings = config.inner("rope_parameters")
    settings = settings if settings.values else config.inner("rope_scaling")
    base = settings.number("rope_theta", config.number("rope_theta", family.base))
    features = int(size * config.number("partial_rotary_factor", 1.0))
    if features % 2 or not 0 < features <= size:
        raise ConvertError(f"config.json: expected an even number of rotated features, at most {size}, got {features}")
    rope = _scaled(Rope(base, features), settings)
    local = rope
    if family.local_base:
        local = Rope(config.number("rope_local_base_freq", family.local_base), features)
    rotated = config.items("no_rope_layers", len(spans))
    every = config.count("no_rope_layer_interval", family.unrotated_every, least=0)
    skipped = [not flag for flag in rotated] or [bool(every) and (i + 1) % every == 0 for i in range(len(spans))]
    return tuple(None if skip else local if window else rope for skip, window in zip(skipped, spans, strict=True))


def _scaled(rope: Rope, settings: Config) -> Rope:
    """With the frequencies that longer contexts need."""
    kind = settings.text("rope_type") or settings.text("type") or "default"
    if kind == "default":
        return rope
    if kind == "linear":
        return Rope(rope.base, rope.features, (settings.number("factor"),))
    if kind == "llama3":
        factor, low, high = map(settings.number, ("factor", "low_freq_factor", "high_freq_factor"))
        original = settings.count("original_max_position_embeddings")
        if low >= high:
            raise ConvertError(f"{settings.where}: expected low_freq_factor {low} below high_freq_factor, got {high}")
        return Rope(rope.base, rope.features, llama3_divisors(rope, factor, low, high, original))
    raise ConvertError(f"{settings.where}: expected a type of default, linear, llama3, got {kind!r}, which is not read")
