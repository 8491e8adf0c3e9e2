"""The metadata of a GGUF file as a decoder's settings. Keys are those of ggml's docs/gguf.md and of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.frontends.decoders import MOST_LAYERS, Decoder, Family, Rope, windows
from converter.frontends.gguf.reader import Tensor, Value

__all__ = ["Keys", "decoder_of"]

_LARGEST = 1 << 28
_FREQUENCIES = "rope_freqs.weight"


@dataclass(frozen=True)
class Keys:
    """Typed access to metadata; `{arch}` in a key is the architecture's name."""

    metadata: Mapping[str, Value]
    arch: str = ""

    def _get(self, key: str, kinds: tuple[type, ...], wanted: str, default: Any) -> Any:
        key = key.format(arch=self.arch)
        found = self.metadata.get(key, default)
        if found is default and default is not _NEEDED:
            return found
        if found is _NEEDED or not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):
            got = "none" if found is _NEEDED else f"{found!r}"[:80]
            raise ConvertError(f"metadata {key!r}: expected {wanted}, got {got}; convert the model to GGUF again")
        return found

    def count(self, key: str, default: Any = None, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number from `least` to `most`; without a default it must be there. Equal numbers in an array are
        one."""
        needed = _NEEDED if default is None else default
        found = self._get(key, (int, np.ndarray), "a whole number", needed)
        if isinstance(found, np.ndarray):
            found = _same(key.format(arch=self.arch), found)
        if not least <= found <= most:
            raise ConvertError(f"metadata {key.format(arch=self.arch)!r}: expected {least} to {most}, got {found}")
        return int(found)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; without a default it must be there."""
        found = self._get(key, (int, float), "a number", _NEEDED if default is None else default)
        if found is not default and not 0 < found < float("inf"):
            raise ConvertError(f"metadata {key.format(arch=self.arch)!r}: expected a number above 0, got {found}")
        return float(found)

    def text(self, key: str, default: Any = None) -> str | None:
        """A text; None if it is not there."""
        found: str | None = self._get(key, (str,), "a text", default)
        return found


_NEEDED = object()


def _same(key: str, numbers: np.ndarray) -> int:
    if numbers.dtype.kind not in "iu" or numbers.size == 0 or (numbers != numbers[0]).any():
        raise ConvertError(
            f"metadata {key!r}: expected one whole number for all layers, got {numbers.tolist()[:8]}; models whose "
            "layers differ are not read"
        )
    return int(numbers[0])


def decoder_of(family: Family, keys: Keys, tensors: Mapping[str, Tensor]) -> Decoder:
    """The settings. Raises ConvertError for a missing key, or a setting that is not read."""
    if keys.count("{arch}.expert_count", 0, least=0):
        raise ConvertError("expected a model without experts, got one with several; mixtures of experts are not read")
    layers, width, heads = (
        keys.count("{arch}.block_count", most=MOST_LAYERS), keys.count("{arch}.embedding_length"),
        keys.count("{arch}.attention.head_count"),
    )  # fmt: skip
    size = keys.count("{arch}.attention.key_length", width // heads)
    if keys.count("{arch}.attention.value_length", size) != size:
        raise ConvertError("expected keys and values of the same size per head, got different ones; this is not read")
    every = family.global_every
    window = keys.count("{arch}.attention.sliding_window", None if every else 0, least=0)
    spans = windows(layers, window, every)
    wide = layers == family.wide_scale_layers
    return Decoder(
        architecture=family.name,
        name=keys.text("general.name") or "",
        context=keys.count("{arch}.context_length"),
        vocabulary=_rows("token_embd.weight", tensors),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=keys.count("{arch}.attention.head_count_kv", heads),
        head_size=size,
        hidden=keys.count("{arch}.feed_forward_length"),
        epsilon=keys.number("{arch}.attention.layer_norm_rms_epsilon"),
        ropes=_ropes(family, keys, tensors, size, spans),
        windows=spans,
        interleaved=family.interleaved,
        scale=keys.number("{arch}.attention.scale", (width / heads if wide else size) ** -0.5),
        softcap=keys.number("{arch}.attn_logit_softcapping", 0.0),
        logit_softcap=keys.number("{arch}.final_logit_softcapping", 0.0),
        embedding_scale=float(np.float32(width) ** np.float32(0.5)) if family.scaled_embedding else 1.0,
        activation=family.activation,
        head_norms=family.head_norms,
        post_norms=family.post_norms,
    )


def _ropes(
    family: Family, keys: Keys, tensors: Mapping[str, Tensor], size: int, spans: tuple[int, ...]
) -> tuple[Rope | None, ...]:
    """By layer. Divisors of frequencies (Llama 3) are a tensor of the file."""
    kind = keys.text("{arch}.rope.scaling.type", "none")
    features, base = keys.count("{arch}.rope.dimension_count", size), keys.number("{arch}.rope.freq_base", 10_000.0)
    if features % 2 or features > size:
        raise ConvertError(f"expected an even number of rotated features, at most {size}, got {features}")
    divisors: tuple[float, ...] = ()
    if kind == "linear" or (kind == "none" and f"{keys.arch}.rope.scale_linear" in keys.metadata):
        old = keys.number("{arch}.rope.scale_linear", 1.0)
        divisors = (keys.number("{arch}.rope.scaling.factor", old),)
    elif kind != "none":
        raise ConvertError(f"rope.scaling.type: expected none or linear, got {kind!r}, which is not read yet")
    if _FREQUENCIES in tensors:
        divisors = _frequencies(tensors[_FREQUENCIES], features // 2)
    rope = Rope(base, features, divisors)
    local = Rope(family.local_base, features) if family.local_base else rope
    skipped = family.unrotated_every
    return tuple(
        None if skipped and (i + 1) % skipped == 0 else local if window else rope for i, window in enumerate(spans)
    )


def _frequencies(tensor: Tensor, pairs: int) -> tuple[float, ...]:
    if tensor.type.dtype != "<f4" or tensor.shape != (pairs,):
        got = f"{tensor.type.name} {list(tensor.shape)}"
        raise ConvertError(f"tensor {_FREQUENCIES!r}: expected F32 [{pairs}], got {got}; the file is damaged")
    found = np.frombuffer(tensor.data, "<f4")
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise ConvertError(f"tensor {_FREQUENCIES!r}: expected numbers above 0; the file is damaged")
    return tuple(found.tolist())


def _rows(name: str, tensors: Mapping[str, Tensor]) -> int:
    found = tensors.get(name)
    if found is None or len(found.shape) != 2:
        raise ConvertError(f"expected a matrix {name!r}, got none; the file has no language model")
    return found.shape[0]
