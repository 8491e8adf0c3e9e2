"""The safetensors frontend: a folder with config.json and weights of a language model as the graph of a bundle.

    load(folder)   -> Loaded: the graph, its weights dense or rounded to blocks, and the tokenizer
    load_language_model(folder)   -> the model's graph for training all of its weights

`reader` checks files of weights, `config` reads the settings, `decoders` builds the graph of every decoder.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.decoders import (
    CONFIG_NAMES,
    Dense,
    LanguageModel,
    Settings,
    family_of,
    loaded,
    roles,
    shortened,
    to_whole_ir,
)
from converter.frontends.loaded import Loaded
from converter.frontends.safetensors.config import Config, decoder_of
from converter.frontends.safetensors.folder import json_of, stop_of, template_of, tensors_of, tokenizer_of
from converter.frontends.safetensors.reader import Tensor

__all__ = ["load", "load_language_model"]

_FLOATS = ("F32", "F16", "BF16")


def load(source: str | os.PathLike[str] | bytes, *, language: Settings | None = None) -> Loaded:
    """A folder's language model. Raises ConvertError for damaged files, an unknown family, and settings not read."""
    return loaded(_model(source), "safetensors", language or Settings())


def load_language_model(folder: str | os.PathLike[str], *, context: int | None = None) -> ir.Model:
    """A folder's language model as a graph whose weights can all be trained: input_ids int32 (batch, length) to logits
    float32 (batch, length, vocabulary), computed with float32. Its initialisers are the file's tensors under their
    names, so that `converter.save_weights` writes a file that replaces the folder's. `context`: the most
    positions of a text; None: as many as the folder says. Raises ConvertError as `load`."""
    model = _model(folder)
    return to_whole_ir(shortened(model.decoder, context), model.tensors, model.names, model.ignored)


def _model(source: str | os.PathLike[str] | bytes) -> LanguageModel:
    if isinstance(source, bytes) or not os.path.isdir(source):
        raise ConvertError(
            "expected a folder with config.json beside the weights, got one file, which holds weights alone; give the "
            "path of the model's folder"
        )
    folder = Path(source)
    config = Config(json_of(folder / "config.json"))
    family = family_of(config.text("model_type"), "config", "config.json, model_type")
    if config.has("quantization_config"):
        raise ConvertError("config.json: expected weights as floats, got quantization_config; convert the original")
    decoder = decoder_of(family, config)
    tensors = {name: _dense(name, tensor) for name, tensor in tensors_of(folder).items()}
    tied = config.flag("tie_word_embeddings", "lm_head.weight" not in tensors)
    ignored = [name for name in tensors if name.endswith(".rotary_emb.inv_freq")]
    if tied:
        tensors.pop("lm_head.weight", None)
    written = Config(json_of(folder / "tokenizer_config.json", needed=False), "tokenizer_config.json")
    return LanguageModel(
        decoder,
        tensors,
        roles(CONFIG_NAMES, family),
        ignored=ignored,
        stop=stop_of(folder, decoder.vocabulary, config.values),
        bos=config.count("bos_token_id", least=0) if config.has("bos_token_id") else None,
        template=template_of(folder, written),
        origin={"file": folder.resolve().name},
        tokenizer=tokenizer_of(folder, written),
    )


def _dense(name: str, tensor: Tensor) -> Dense:
    array = tensor.array
    if tensor.stored not in _FLOATS:
        raise ConvertError(f"tensor {name!r}: expected one of {', '.join(_FLOATS)}, got {tensor.stored}")
    return Dense(name, array.shape, lambda begin, end: array[begin:end].astype(np.float32), tensor.stored)
