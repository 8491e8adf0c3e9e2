"""What folders of language models have beside the weights: JSON, tokenizers, chat templates, tokens that end a text."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.errors import ConvertError
from converter.frontends.language import from_sentencepiece, from_tokenizer_json
from converter.frontends.loaded import read as contents
from converter.frontends.loaded import viewed
from converter.frontends.safetensors.config import Config
from converter.frontends.safetensors.reader import Tensor, read
from lite_runtime.language.tokenizers import Description

__all__ = ["json_of", "stop_of", "template_of", "tensors_of", "tokenizer_of"]

_MAX_JSON = 1 << 26
_INDEX = "model.safetensors.index.json"


def json_of(path: Path, needed: bool = True) -> dict[str, Any]:
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


def stop_of(folder: Path, vocabulary: int, *settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a text, of the generation's settings and the model's."""
    found: list[int] = []
    for held in (json_of(folder / "generation_config.json", needed=False), *settings):
        ends = held.get("eos_token_id")
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(type(end) is int and 0 <= end < vocabulary for end in found):
        raise ConvertError(f"eos_token_id: expected tokens from 0 to {vocabulary - 1}, got {str(found)[:80]}")
    return tuple(dict.fromkeys(found))


def tokenizer_of(folder: Path, written: Config) -> Description | None:
    """The tokenizer, if the folder has one."""
    if (folder / "tokenizer.json").is_file():
        return from_tokenizer_json(json_of(folder / "tokenizer.json"), written.values)
    if (folder / "tokenizer.model").is_file():
        begin, end = written.flag("add_bos_token", True), written.flag("add_eos_token", False)
        return from_sentencepiece(contents(folder / "tokenizer.model"), begin=begin, end=end)
    return None


def template_of(folder: Path, written: Config) -> str | None:
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


def tensors_of(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of a folder's one file, or of all that its index names. Raises ConvertError."""
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
