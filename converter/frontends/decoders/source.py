"""A language model as a front end reads it, and what a conversion makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

from converter.errors import ConvertError
from converter.frontends.decoders.adapters import Adapters
from converter.frontends.decoders.building import to_ir
from converter.frontends.decoders.decoder import Decoder
from converter.frontends.decoders.graph import Activations
from converter.frontends.decoders.learning import to_trained_ir
from converter.frontends.decoders.tensors import Tensors
from converter.frontends.decoders.weights import Matrix
from converter.frontends.loaded import Loaded
from lite_runtime.language.tokenizers import SECTION, Description, pack

if TYPE_CHECKING:
    from converter.training.options import Lora

__all__ = ["KEY", "LanguageModel", "Rounding", "Settings", "loaded"]

KEY = "language"
"""The key of a bundle's metadata under which a language model describes itself."""
Rounding = Literal["none", "w8", "w4"]
"""What dense matrices become: nothing else, or blocks of 8 or 4 bits."""
_BITS = {"none": 0, "w8": 8, "w4": 4}


@dataclass(frozen=True)
class Settings:
    """How a language model is converted. Raises ConvertError for values that a field does not allow."""

    weights: Rounding = "none"
    activations: Activations = "int8"
    context: int | None = None
    """The most positions of a sequence; None: as many as the file says."""
    lora: Lora | None = None
    """Adapters that the signature "adapted" takes; None: there is no such signature."""

    def __post_init__(self) -> None:
        if self.context is not None and (type(self.context) is not int or self.context < 1):
            raise ConvertError(f"context: expected a number of tokens from 1, got {self.context!r}")
        for name, value, allowed in (
            ("weights", self.weights, get_args(Rounding)), ("activations", self.activations, get_args(Activations)),
        ):  # fmt: skip
            if value not in allowed:
                raise ConvertError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True)
class LanguageModel:
    """What a file contains. `names`: the tensors' names by role (`families`); `ignored`: tensors that the graph does
    not need; `stop`: token numbers that end a text; `template`: the chat template's text."""

    decoder: Decoder
    tensors: Mapping[str, Matrix]
    names: Mapping[str, str]
    ignored: Iterable[str] = ()
    stop: tuple[int, ...] = ()
    bos: int | None = None
    template: str | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The file's own words on where it comes from: license and others."""
    tokenizer: Description | None = None


_ANGLES, _SHARE = 1 << 26, 8
"""Bytes of the tables of positions that any model may have, and the share of its weights that they may reach."""


def _shortened(decoder: Decoder, context: int | None) -> Decoder:
    if context is None:
        return decoder
    if context > decoder.context:
        raise ConvertError(f"context: expected at most the model's {decoder.context} tokens, got {context}")
    return replace(decoder, context=context)


def loaded(model: LanguageModel, format: str, settings: Settings) -> Loaded:
    """The graph as signature "predict", with adapters as signature "adapted" if the settings say so, and the bundle's
    metadata and sections. Raises ConvertError, and TrainingError for targets that the model does not have."""
    decoder = _shortened(model.decoder, settings.context)
    weights = sum(prod(matrix.shape) for matrix in model.tensors.values())
    if decoder.angle_bytes > max(_ANGLES, weights // _SHARE):
        raise ConvertError(
            f"context: {decoder.context} tokens need tables of {decoder.angle_bytes} bytes for their positions, out of "
            "proportion to the model; give a smaller context"
        )
    tensors = Tensors(model.tensors, model.names, _BITS[settings.weights], model.ignored)
    models = {"predict": to_ir(decoder, tensors, settings.activations)}
    windows = {window for window in decoder.windows if window}
    described = {
        "architecture": decoder.architecture, "name": decoder.name, "context": decoder.context,
        "vocabulary": decoder.vocabulary, "width": decoder.width, "layers": decoder.layers, "heads": decoder.heads,
        "kv_heads": decoder.kv_heads, "head_size": decoder.head_size, "cache": "float16",
        "window": max(windows, default=0), "activations": settings.activations, "stop": list(model.stop),
        "bos": model.bos, "template": _template(model), "source": dict(model.origin),
    }  # fmt: skip
    trained = None
    if settings.lora is not None:
        adapters = Adapters(settings.lora)
        models["adapted"] = to_ir(decoder, tensors, settings.activations, adapters)
        described["adapters"] = adapters.metadata()
        trained = to_trained_ir(decoder, tensors, settings.activations, Adapters(settings.lora))
    kinds = Counter(matrix.stored for matrix in model.tensors.values())
    facts = {
        "context": decoder.context, "layers": decoder.layers, "cache_bytes_per_token": decoder.cache_bytes(),
        "stored": dict(kinds),
    }  # fmt: skip
    sections = {} if model.tokenizer is None else {SECTION: pack(model.tokenizer._replace(chat_template=""))}
    return Loaded(models, {KEY: described}, format, sections=sections, language=facts, trained=trained)


def _template(model: LanguageModel) -> str | None:
    """The chat template, which the bundle holds once: in its metadata."""
    return model.template or (model.tokenizer.chat_template if model.tokenizer is not None else "") or None
