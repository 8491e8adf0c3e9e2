"""The safetensors frontend: a folder with config.json and weights of a language model as the graph of a bundle.

    load(folder)   -> Loaded: the graph, its weights dense or rounded to blocks, and the tokenizer

`reader` checks files of weights, `config` reads the settings, `decoders` builds the graph of every decoder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from converter.errors import ConvertError
from converter.frontends.decoders import (
    CONFIG_NAMES,
    Dense,
    LanguageModel,
    Settings,
    family_of,
    loaded,
    roles,
)
from converter.frontends.loaded import Loaded
from converter.frontends.safetensors.config import Config, decoder_of
from converter.frontends.safetensors.folder import json_of, stop_of, template_of, tokenizer_of
from converter.frontends.safetensors.reader import Tensor, read

__all__ = ["load"]

_INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")


def load(source: str | os.PathLike[str] | bytes, *, language: Settings | None = None) -> Loaded:
    """A folder's language model. Raises ConvertError for damaged files, an unknown family, and settings not read."""
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
    tensors = {name: _dense(name, tensor) for name, tensor in _tensors(folder).items()}
    tied = config.flag("tie_word_embeddings", "lm_head.weight" not in tensors)
    ignored = [name for name in tensors if name.endswith(".rotary_emb.inv_freq")]
    if tied:
        tensors.pop("lm_head.weight", None)
    written = Config(json_of(folder / "tokenizer_config.json", needed=False), "tokenizer_config.json")
    model = LanguageModel(
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
    return loaded(model, "safetensors", language or Settings())


def _tensors(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of one file, or of all that the index names."""
    if not (folder / _INDEX).is_file():
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if len(names) != 1:
            got = f"{len(names)} files and no index"
            raise ConvertError(f"{folder}: expected one .safetensors file or {_INDEX}, got {got}")
        return read(folder / names[0])
    index = Config(json_of(folder / _INDEX), _INDEX).inner("weight_map").values
    if not all(isinstance(name, str) and name == os.path.basename(name) for name in index.values()):
        raise ConvertError(f"{_INDEX}: expected names of files in the same folder as weight_map; download it again")
    found: dict[str, Tensor] = {}
    for name in sorted(set(index.values())):
        for key, tensor in read(folder / name).items():
            if index.get(key) != name:
                raise ConvertError(f"{name}: expected tensors that {_INDEX} names, got {key!r}; download it again")
            found[key] = tensor
    return found


def _dense(name: str, tensor: Tensor) -> Dense:
    array = tensor.array
    if tensor.stored not in _FLOATS:
        raise ConvertError(f"tensor {name!r}: expected one of {', '.join(_FLOATS)}, got {tensor.stored}")
    return Dense(name, array.shape, lambda begin, end: array[begin:end].astype(np.float32), tensor.stored)
