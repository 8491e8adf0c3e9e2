"""The folders of Sentence Transformers: an encoder in ONNX, its tokenizer, and what makes vectors of its states.

    modules.json                     the steps from a text to a vector: Transformer, Pooling, Normalize
    1_Pooling/config.json            how states become a vector
    sentence_bert_config.json        the most tokens of a text
    config_sentence_transformers.json   a text that is put before all others
    onnx/model.onnx                  the encoder, or model.onnx
    tokenizer.json

Steps and settings that would change the vectors and are not supported are refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.errors import ConvertError
from converter.frontends import onnx
from converter.frontends.embedding import Embedding, Pooling
from converter.frontends.loaded import Loaded, read
from lite_runtime.language.embedding.recipe import MOST

__all__ = ["load"]

_MODELS = ("onnx/model.onnx", "model.onnx")
_STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last",
}  # fmt: skip
_MAX_JSON = 1 << 24


def load(source: str | os.PathLike[str]) -> Loaded:
    """A folder's encoder. Raises ConvertError for what is missing, damaged or not supported."""
    folder = Path(source)
    steps = [_step(row) for row in _json(folder / "modules.json", list)]
    names = [name for name, _ in steps]
    if names not in _STEPS:
        raise ConvertError(
            f"modules.json: expected Transformer, Pooling and perhaps Normalize, got {', '.join(names)[:200]}; other"
            " steps are not supported"
        )
    here, pooling = (folder / path for _, path in steps[:2])
    settings = _settings(folder, here)
    path = next((place / name for place in (folder, here) for name in _MODELS if (place / name).is_file()), None)
    if path is None:
        raise ConvertError(
            f"{folder}: expected the encoder as {' or '.join(_MODELS)}, got none; export it: pip install optimum[onnx],"
            f" then optimum-cli export onnx --model {folder} --task feature-extraction {folder / 'onnx'}"
        )
    embedding = Embedding(
        tokenizer=here / "tokenizer.json",
        pooling=_pooling(_json(pooling / "config.json", dict), bool(settings["prompt"])),
        normalize=len(names) == 3,
        **settings,
    )
    return Loaded({"predict": onnx.load(path)}, embedding=embedding)


def _step(row: Any) -> tuple[str, str]:
    """The name and the folder of a row of modules.json."""
    if not isinstance(row, dict) or not isinstance(row.get("type"), str) or not isinstance(row.get("path"), str):
        raise ConvertError("modules.json: expected rows with type and path as texts")
    if row["path"] != os.path.basename(row["path"]) or row["path"] == "..":
        raise ConvertError(f"modules.json: expected folders inside this one, got {row['path'][:80]!r}")
    return row["type"].rpartition(".")[2], row["path"]


def _pooling(config: Mapping[str, Any], prompted: bool) -> Pooling:
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ConvertError(
            f"Pooling, config.json: expected one of {', '.join(_POOLINGS)} to be true, got {', '.join(modes) or 'none'}"
        )
    if prompted and config.get("include_prompt") is False:
        raise ConvertError("Pooling, config.json: include_prompt false is not supported together with a default prompt")
    return _POOLINGS[modes[0]]


def _settings(folder: Path, here: Path) -> dict[str, Any]:
    """The most tokens of a text, None if the folder does not say, and its default prompt."""
    found = [_json(path, dict) for path in sorted(here.glob("sentence_*_config.json"))[:1]]
    sentence = found[0] if found else {}
    if sentence.get("do_lower_case"):
        raise ConvertError("do_lower_case true is not supported: use a tokenizer.json that has Lowercase")
    tokenizer, encoder, overall = (
        _json(path, dict, needed=False)
        for path in (here / "tokenizer_config.json", here / "config.json", folder / "config_sentence_transformers.json")
    )
    limits = [sentence.get("max_seq_length")]
    if limits == [None]:
        limits = [tokenizer.get("model_max_length"), encoder.get("max_position_embeddings")]
    known = [limit for limit in limits if type(limit) is int and 0 < limit <= MOST]
    chosen, prompts = overall.get("default_prompt_name"), overall.get("prompts")
    prompt = prompts.get(chosen) if isinstance(prompts, dict) and isinstance(chosen, str) else None
    if (chosen is not None) != isinstance(prompt, str):
        raise ConvertError("config_sentence_transformers.json: expected default_prompt_name to be one of prompts")
    return {"tokens": min(known, default=None), "prompt": prompt}


def _json(path: Path, kind: type, needed: bool = True) -> Any:
    """A file's JSON, which is a list or an object; empty if it is absent and not needed."""
    if not needed and not path.is_file():
        return kind()
    data = read(path)
    if len(data) > _MAX_JSON:
        raise ConvertError(f"{path.name}: expected at most {_MAX_JSON} bytes, got {len(data)}")
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path.name}: expected JSON, got {str(error)[:80]}; download it again") from None
    if not isinstance(found, kind):
        expected = "a list" if kind is list else "an object"
        raise ConvertError(f"{path.name}: expected {expected}, got {type(found).__name__}; download it again")
    return found
