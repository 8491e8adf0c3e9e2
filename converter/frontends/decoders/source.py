"""A language model as a front end reads it, and what a conversion makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

from converter.errors import ConvertError
from converter.frontends.decoders.adapters import Adapters
from converter.frontends.decoders.building import to_ir
from converter.frontends.decoders.decoder import Decoder
from converter.frontends.decoders.graph import Activations, Cache
from converter.frontends.decoders.learning import to_trained_ir
from converter.frontends.decoders.rounding import quantized
from converter.frontends.decoders.tensors import Rounded, Tensors
from converter.frontends.decoders.weights import Blocked, Dense, Matrix
from converter.frontends.loaded import Loaded
from lite_runtime.language.tokenizers import SECTION, Description, pack

if TYPE_CHECKING:
    from converter.training.options import Lora

__all__ = ["KEY", "LanguageModel", "Rounding", "Settings", "loaded", "shortened"]

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
    cache: Cache | None = None
    """None: int8 where products read activations of 8 bits, else float16."""
    keep_float: tuple[str, ...] = ()
    """Globs of products that stay dense: by name ("layer.0.down", "embedding", "logits") or role ("down")."""
    keep_w8: tuple[str, ...] = ()
    """Globs of products that get 8 bits where others get 4."""
    lora: Lora | None = None
    """Adapters that the signature "adapted" takes; None: there is no such signature."""

    def kept(self, matrices: Iterable[Matrix]) -> Cache:
        """What keys and values of a model with these matrices are kept as."""
        blocks = self.weights != "none" or any(isinstance(matrix, Blocked) for matrix in matrices)
        return self.cache or ("int8" if self.activations == "int8" and blocks else "float16")

    def bits(self, product: str) -> int:
        """What a dense matrix is rounded to, 0 to leave it dense."""
        names = (product, product.rpartition(".")[2])
        if any(fnmatchcase(name, glob) for glob in self.keep_float for name in names):
            return 0
        wide = any(fnmatchcase(name, glob) for glob in self.keep_w8 for name in names)
        return 8 if wide else _BITS[self.weights]

    def rounded(self, product: str, matrix: Dense) -> Matrix:
        """A dense matrix as these settings want it, without data."""
        bits = self.bits(product)
        return quantized(matrix, bits) if bits else matrix

    def check_globs(self, products: Iterable[str]) -> None:
        """Raise ConvertError for a glob that is none of a product's name or role."""
        known = {name for product in products for name in (product, product.rpartition(".")[2])}
        for option, globs in (("keep_float", self.keep_float), ("keep_w8", self.keep_w8)):
            for glob in globs:
                if not any(fnmatchcase(name, glob) for name in known):
                    roles = ", ".join(sorted(name for name in known if "." not in name)) or "none in floats"
                    raise ConvertError(f"{option}: expected a glob of products in floats ({roles}), got {glob!r}")

    def __post_init__(self) -> None:
        if self.context is not None and (type(self.context) is not int or self.context < 1):
            raise ConvertError(f"context: expected a number of tokens from 1, got {self.context!r}")
        for name, value, allowed in (
            ("weights", self.weights, get_args(Rounding)), ("activations", self.activations, get_args(Activations)),
            ("cache", self.cache or "int8", get_args(Cache)),
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

    @property
    def begins(self) -> bool:
        """Whether the tokenizer, if there is one, begins texts with bos."""
        first = [] if self.tokenizer is None else list(self.tokenizer.template["single"][:1])
        return self.bos is not None and first == [self.bos]


_ANGLES, _SHARE = 1 << 26, 8
"""Bytes of the tables of positions that any model may have, and the share of its weights that they may reach."""


def shortened(decoder: Decoder, context: int | None) -> Decoder:
    """The decoder with at most `context` positions. Raises ConvertError for more than it has."""
    if context is None:
        return decoder
    if context > decoder.context:
        raise ConvertError(f"context: expected at most the model's {decoder.context} tokens, got {context}")
    return replace(decoder, context=context)


def loaded(model: LanguageModel, format: str, settings: Settings, rounded: Rounded | None = None) -> Loaded:
    """The graph as signature "predict", with adapters as signature "adapted" if the settings say so, and the bundle's
    metadata and sections. `rounded`: what becomes of dense matrices, by default what `settings` say. Raises
    ConvertError, and TrainingError for targets that the model does not have."""
    decoder = shortened(model.decoder, settings.context)
    weights = sum(prod(matrix.shape) for matrix in model.tensors.values())
    if decoder.angle_bytes > max(_ANGLES, weights // _SHARE):
        raise ConvertError(
            f"context: {decoder.context} tokens need tables of {decoder.angle_bytes} bytes for their positions, out of "
            "proportion to the model; give a smaller context"
        )
    tensors = Tensors(model.tensors, model.names, rounded or settings.rounded, model.ignored)
    cache = settings.kept(model.tensors.values())
    models = {"predict": to_ir(decoder, tensors, settings.activations, cache)}
    settings.check_globs(tensors.products)
    windows = {window for window in decoder.windows if window}
    described = {
        "architecture": decoder.architecture, "name": decoder.name, "context": decoder.context,
        "vocabulary": decoder.vocabulary, "width": decoder.width, "layers": decoder.layers, "heads": decoder.heads,
        "kv_heads": decoder.kv_heads, "head_size": decoder.head_size, "cache": cache,
        "window": max(windows, default=0), "activations": settings.activations, "stop": list(model.stop),
        "bos": model.bos, "template": _template(model), "source": dict(model.origin),
    }  # fmt: skip
    trained = None
    if settings.lora is not None:
        adapters = Adapters(settings.lora)
        models["adapted"] = to_ir(decoder, tensors, settings.activations, cache, adapters)
        described["adapters"] = adapters.metadata()
        trained = to_trained_ir(decoder, tensors, settings.activations, Adapters(settings.lora))
    kinds = Counter(matrix.stored for matrix in model.tensors.values())
    facts = {
        "context": decoder.context, "layers": decoder.layers, "cache": cache,
        "cache_bytes_per_token": decoder.cache_bytes(cache), "stored": dict(kinds),
        "products": len(tensors.products),
    }  # fmt: skip
    sections = {} if model.tokenizer is None else {SECTION: pack(model.tokenizer._replace(chat_template=""))}
    return Loaded(
        models, {KEY: described}, format, sections=sections, trained=trained, language=facts, decoder=model
    )  # fmt: skip


def _template(model: LanguageModel) -> str | None:
    """The chat template, which the bundle holds once: in its metadata."""
    return model.template or (model.tokenizer.chat_template if model.tokenizer is not None else "") or None
