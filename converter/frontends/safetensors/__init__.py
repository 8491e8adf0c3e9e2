"""The safetensors frontend: a folder with config.json and weights of a language model as the graph of a bundle.

    load(folder)   -> Loaded: the graph, its weights dense or rounded to blocks, and the tokenizer

`reader` checks files of weights, `config` reads the settings, `decoders` builds the graph of every decoder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from converter.frontends.language import from_sentencepiece, from_tokenizer_json
from converter.frontends.loaded import Loaded, viewed
from converter.frontends.loaded import read as contents
from converter.frontends.safetensors.config import Config, decoder_of
from converter.frontends.safetensors.reader import Tensor, read
from lite_runtime.language.tokenizers import Description

__all__ = ["load"]

_INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")
_MAX_JSON = 1 << 26


def load(source: str | os.PathLike[str] | bytes, *, language: Settings | None = None) -> Loaded:
    """A folder's language model. Raises ConvertError for damaged files, an unknown family, and settings not read."""
    if isinstance(source, bytes) or not os.path.isdir(source):
        raise ConvertError(
            "expected a folder with config.json beside the weights, got one file, which holds weights alone; give the "
            "path of the model's folder"
        )
    folder = Path(source)
    config = Config(_json(folder / "config.json"))
    family = family_of(config.text("model_type"), "config", "config.json, model_type")
    if config.has("quantization_config"):
        raise ConvertError("config.json: expected weights as floats, got quantization_config; convert the original")
    decoder = decoder_of(family, config)
    tensors = {name: _dense(name, tensor) for name, tensor in _tensors(folder).items()}
    tied = config.flag("tie_word_embeddings", "lm_head.weight" not in tensors)
    ignored = [name for name in tensors if name.endswith(".rotary_emb.inv_freq")]
    if tied:
        tensors.pop("lm_head.weight", None)
    written = Config(_json(folder / "tokenizer_config.json", needed=False), "tokenizer_config.json")
    model = LanguageModel(
        decoder,
        tensors,
        roles(CONFIG_NAMES, family),
        ignored=ignored,
        stop=_stop(folder, config, decoder.vocabulary),
        bos=config.count("bos_token_id", least=0) if config.has("bos_token_id") else None,
        template=_template(folder, written),
        origin={"file": folder.resolve().name},
        tokenizer=_tokenizer(folder, written),
    )
    return loaded(model, "safetensors", language or Settings())


def _json(path: Path, needed: bool = True) -> dict[str, Any]:
    """A file's JSON object; empty if it is absent and not needed."""
    if not path.is_file():
        if not needed:
            return {}
        raise ConvertError(f"{path.parent}: expected {path.name} beside the weights, got none; give the model's folder")
    data = viewed(path)
    if len(data) > _MAX_JSON:
        raise ConvertError(f"{path.name}: expected at most {_MAX_JSON} bytes, got {len(data)}")
    try:
        found = json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path.name}: expected JSON, got {str(error)[:80]}; download it again") from None
    if not isinstance(found, dict):
        raise ConvertError(f"{path.name}: expected a JSON object, got {type(found).__name__}; download it again")
    return found


def _tensors(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of one file, or of all that the index names."""
    if not (folder / _INDEX).is_file():
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if len(names) != 1:
            got = f"{len(names)} files and no index"
            raise ConvertError(f"{folder}: expected one .safetensors file or {_INDEX}, got {got}")
        return read(folder / names[0])
    index = Config(_json(folder / _INDEX), _INDEX).inner("weight_map").values
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


def _stop(folder: Path, config: Config, vocabulary: int) -> tuple[int, ...]:
    """Tokens that end a text, of the generation's settings and the model's."""
    found: list[int] = []
    for held in (_json(folder / "generation_config.json", needed=False), config.values):
        ends = held.get("eos_token_id")
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(type(end) is int and 0 <= end < vocabulary for end in found):
        raise ConvertError(f"eos_token_id: expected tokens from 0 to {vocabulary - 1}, got {str(found)[:80]}")
    return tuple(dict.fromkeys(found))


def _tokenizer(folder: Path, written: Config) -> Description | None:
    """The tokenizer, if the folder has one."""
    if (folder / "tokenizer.json").is_file():
        return from_tokenizer_json(_json(folder / "tokenizer.json"), written.values)
    if (folder / "tokenizer.model").is_file():
        begin, end = written.flag("add_bos_token", True), written.flag("add_eos_token", False)
        return from_sentencepiece(contents(folder / "tokenizer.model"), begin=begin, end=end)
    return None


def _template(folder: Path, written: Config) -> str | None:
    """The chat template: a file of its own, or in the tokenizer's settings, where a list names several."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return contents(path).decode("utf-8")
        except UnicodeDecodeError:
            raise ConvertError(f"{path.name}: expected UTF-8; download it again") from None
    held = written.values.get("chat_template")
    if isinstance(held, list):
        named = {row.get("name"): row.get("template") for row in held if isinstance(row, dict)}
        held = named.get("default")
    return held if isinstance(held, str) else None
