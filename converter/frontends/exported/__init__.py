"""Exports of language models to ONNX: a folder with a decoder's graph as the serving graph of a bundle.

    load(folder)   -> Loaded: the graph, its weights in the file's blocks or dense, and the tokenizer

onnxruntime-genai's builder and optimum write such folders: a graph over input_ids and past keys and values, its weights
beside it, settings and a tokenizer. `structure` follows the graph and finds each weight's role, `matrices` reads them;
`decoders` then builds the same graph as for other formats.
"""

from __future__ import annotations

import os
from pathlib import Path

from converter.errors import ConvertError
from converter.frontends import onnx
from converter.frontends.decoders import LanguageModel, Settings, loaded
from converter.frontends.exported.structure import Found, read
from converter.frontends.loaded import Loaded
from converter.frontends.safetensors.config import Config
from converter.frontends.safetensors.folder import json_of, stop_of, template_of, tokenizer_of

__all__ = ["load"]

_GRAPH, _GENAI, _CONFIG = "model.onnx", "genai_config.json", "config.json"
_SIZES = {
    "hidden_size": "width", "num_attention_heads": "heads", "num_key_value_heads": "kv_heads",
    "num_hidden_layers": "layers", "head_size": "head_size", "head_dim": "head_size",
    "intermediate_size": "hidden",
}  # fmt: skip
"""Names in files of settings -> a decoder's fields."""


def load(source: str | os.PathLike[str] | bytes, *, language: Settings | None = None) -> Loaded:
    """A folder's language model. Raises ConvertError for damaged files and graphs of another structure."""
    if isinstance(source, bytes) or not os.path.isdir(source):
        raise ConvertError(
            "expected a folder with model.onnx, its data and its settings, got one file; give the folder"
        )
    folder = Path(source)
    genai = Config(json_of(folder / _GENAI, needed=False), _GENAI).inner("model")
    config = Config(json_of(folder / _CONFIG, needed=not genai.values))
    named = genai.inner("decoder").text("filename") or _GRAPH
    if named != os.path.basename(named):
        raise ConvertError(f"{_GENAI}, filename: expected a file in the same folder, got {named[:80]!r}")
    context = genai.count("context_length", config.count("max_position_embeddings", 1 << 24))
    found = read(onnx.load(folder / named), context)
    for settings in (config, genai, genai.inner("decoder")):
        _agree(settings, found)
    decoder = found.decoder
    written = Config(json_of(folder / "tokenizer_config.json", needed=False), "tokenizer_config.json")
    bos = [held.count("bos_token_id", least=0) for held in (genai, config) if held.has("bos_token_id")]
    model = LanguageModel(
        decoder,
        found.tensors,
        found.names,
        stop=stop_of(folder, decoder.vocabulary, genai.values, config.values),
        bos=next((token for token in bos if token < decoder.vocabulary), None),
        template=template_of(folder, written),
        origin={"file": folder.resolve().name},
        tokenizer=tokenizer_of(folder, written),
    )
    return loaded(model, "ONNX language model", language or Settings())


def _agree(settings: Config, found: Found) -> None:
    """Raise ConvertError where a file of settings says something else than the graph."""
    for name, field in _SIZES.items():
        if settings.has(name):
            said, got = settings.count(name), getattr(found.decoder, field)
            if said != got:
                raise ConvertError(
                    f"{settings.where}, {name}: expected {got}, as the graph has it, got {said}; the files do not "
                    "belong together"
                )
