"""The GGUF frontend: a file of llama.cpp with a language model as the graph of a bundle.

    load(path or bytes)   -> Loaded: the graph, its weights in the file's own blocks, and the tokenizer

From bytes to graph: `reader` and `blocks` (checked access) -> `settings` (what the metadata says) -> `language` (the
graph of every decoder).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from converter.errors import ConvertError
from converter.frontends.decoders import (
    GGUF_NAMES,
    Blocked,
    Dense,
    LanguageModel,
    Matrix,
    Settings,
    family_of,
    finite,
    loaded,
)
from converter.frontends.gguf.blocks import Blocks
from converter.frontends.gguf.reader import File, Tensor, Value, read
from converter.frontends.gguf.settings import Keys, decoder_of
from converter.frontends.language import from_gguf
from converter.frontends.loaded import Loaded
from lite_runtime.graph import Array
from lite_runtime.language.tokenizers import Description

__all__ = ["load", "matrix_of"]

_IGNORED = ("rope_freqs.weight",)
"""Read as settings."""


def load(source: str | os.PathLike[str] | bytes, *, language: Settings | None = None) -> Loaded:
    """A file's language model. Raises ConvertError for a damaged file, an unknown family, and settings not read."""
    file = read(source)
    model = _model(file, os.path.basename(os.fspath(source)) if not isinstance(source, bytes) else "")
    return loaded(model, "GGUF", language or Settings())


def _model(file: File, title: str) -> LanguageModel:
    keys = Keys(file.metadata)
    if keys.count("split.count", 1, least=0) > 1:
        raise ConvertError("expected a whole model, got one part of several; join them with llama-gguf-split --merge")
    arch = keys.text("general.architecture")
    family = family_of(arch, "gguf", "general.architecture")
    keys = Keys(file.metadata, str(arch))
    decoder = decoder_of(family, keys, file.tensors)
    bos = _token(keys, "bos", decoder.vocabulary)
    ends = (_token(keys, name, decoder.vocabulary) for name in ("eos", "eot", "eom"))
    return LanguageModel(
        decoder,
        {name: matrix_of(tensor) for name, tensor in file.tensors.items()},
        GGUF_NAMES,
        ignored=_IGNORED,
        stop=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos=bos,
        template=keys.text("tokenizer.chat_template"),
        origin=_origin(keys, title),
        tokenizer=_tokenizer(file.metadata),
    )


def _tokenizer(metadata: Mapping[str, Value]) -> Description | None:
    """The tokenizer, if the file has one."""
    held = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    if not held.keys() - {"tokenizer.chat_template"}:
        return None
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in held.items()}
    return from_gguf(plain)


def _token(keys: Keys, name: str, vocabulary: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in keys.metadata:
        return None
    found = keys.count(key, least=0)
    if found >= vocabulary:
        raise ConvertError(f"metadata {key!r}: expected a token of 0 to {vocabulary - 1}, got {found}")
    return found


def _origin(keys: Keys, title: str) -> Mapping[str, str]:
    said = {"file": title, "license": keys.text("general.license")}
    return {name: text for name, text in said.items() if text}


def matrix_of(tensor: Tensor) -> Matrix:
    """A tensor as its file has it."""
    kind, shape = tensor.type, tensor.shape
    if kind.blocks is None:
        dtype = np.dtype(ml_dtypes.bfloat16) if kind.dtype == "bfloat16" else np.dtype(kind.dtype)
        whole = np.frombuffer(tensor.data, dtype).reshape(shape)
        return Dense(tensor.name, shape, lambda begin, end: whole[begin:end].astype(np.float32), kind.name)
    if len(shape) != 2:
        raise ConvertError(f"tensor {tensor.name!r}: expected a matrix of {kind.name}, got shape {list(shape)}")
    return _blocked(tensor, kind.blocks)


def _blocked(tensor: Tensor, how: Blocks) -> Blocked:
    kind, (n, k) = tensor.type, tensor.shape
    raw = np.frombuffer(tensor.data, np.uint8).reshape(n, k // kind.elements, kind.size)

    def integers(begin: int, end: int) -> Array:
        return how.q(raw[begin:end].reshape(-1, kind.size)).reshape(end - begin, k)

    def table(part: str) -> Array:
        numbers = getattr(how, part)(raw.reshape(-1, kind.size)).reshape(n, k // how.block)
        return finite(tensor.name, numbers)

    return Blocked(
        tensor.name, (n, k), how.bits, how.block, how.zero_point, integers, lambda: table("scales"),
        None if how.offsets is None else lambda: table("offsets"), how.half, kind.name,
    )  # fmt: skip
