"""Embedding models: what a conversion stores, folders of Sentence Transformers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from converter import ConvertError, Embedding, convert
from converter.errors import QuantizeError
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.language import EmbeddingModel
from lite_runtime.language.embedding.recipe import KEY
from tests.language.encoders import TEXTS, bundle_of, encoder, folder, theirs, tokenizer_json

KIND = "sentence_transformers.models."


def recipe(data: bytes) -> dict[str, Any]:
    return dict(bundle.read(data).metadata[KEY])


def test_the_bundle_says_how_texts_become_vectors() -> None:
    assert recipe(bundle_of()) == {
        "pooling": "mean", "normalize": True, "tokens": 64, "dimensions": 32, "output": "last_hidden_state",
        "inputs": {"ids": "input_ids", "mask": "attention_mask", "types": "token_type_ids"}, "prompt": "",
    }  # fmt: skip


def test_options_come_before_the_files() -> None:
    made = convert(encoder(), embedding=Embedding(tokenizer_json(), "cls", normalize=False), context=20).bundle
    assert {**recipe(made), "inputs": 0} == {
        "pooling": "cls", "normalize": False, "tokens": 20, "dimensions": 32, "output": "last_hidden_state",
        "inputs": 0, "prompt": "",
    }  # fmt: skip


def test_only_the_output_that_is_needed_stays() -> None:
    graph = encoder(names=("hidden", "token_embeddings", "more"))
    made = bundle.read(convert(graph, embedding=Embedding(tokenizer_json())).bundle)
    assert [value.name for value in made.signatures["predict"].outputs] == ["token_embeddings"]


def padded(seed: int) -> dict[str, Array]:
    """Inputs of one text, with padding behind it."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((1, 16), np.int64)
    count = int(rng.integers(3, 16))
    ids[0, :count] = rng.integers(2, 20, count)
    return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("mode", ["fp16", "w8", "w4", "dynamic", "int8"])
def test_quantised_encoders_give_about_the_same_vectors(mode: Any) -> None:
    given = {"calibration": [padded(seed) for seed in range(32)]} if mode == "int8" else {}
    made = convert(encoder(), embedding=Embedding(tokenizer_json()), quantize=mode, **given).bundle
    want = EmbeddingModel.load(bundle_of(), threads=1).embed(TEXTS)
    found = EmbeddingModel.load(made, threads=1).embed(TEXTS)
    assert not np.array_equal(found, want)
    assert (found * want).sum(1).min() > {"fp16": 0.9999, "w8": 0.999, "w4": 0.9, "int8": 0.9}.get(mode, 0.97)


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    data = convert(folder(tmp_path)).bundle
    assert recipe(data)["tokens"] == 16 and recipe(data)["normalize"] is True
    want = theirs(encoder().SerializeToString(), tokenizer_json(), TEXTS, tokens=16)
    assert np.abs(EmbeddingModel.load(data, threads=1).embed(TEXTS) - want).max() < 2e-6
    assert recipe(convert(tmp_path, context=8, embedding=Embedding(pooling="last")).bundle)["pooling"] == "last"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"modules": [{"path": "", "type": KIND + "Transformer"}, {"path": "pool", "type": KIND + "Pooling"}]},
         {"normalize": False}),
        ({"pool/config": {"pooling_mode_cls_token": True}}, {"pooling": "cls"}),
        ({"pool/config": {"pooling_mode_lasttoken": True, "include_prompt": True}}, {"pooling": "last"}),
        ({"sentence_bert_config": None, "tokenizer_config": {"model_max_length": 40},
          "config": {"max_position_embeddings": 50}}, {"tokens": 40}),
        ({"sentence_bert_config": None, "tokenizer_config": {"model_max_length": int(1e30)},
          "config": {"max_position_embeddings": 50}}, {"tokens": 50}),
        ({"config_sentence_transformers": {"prompts": {"query": "the cat "}, "default_prompt_name": "query"}},
         {"prompt": "the cat "}),
        ({"config_sentence_transformers": {"prompts": {"query": "the cat "}, "default_prompt_name": None}},
         {"prompt": ""}),
    ],
)  # fmt: skip
def test_what_a_folder_says_counts(files: dict[str, Any], found: dict[str, Any], tmp_path: Path) -> None:
    said = recipe(convert(folder(tmp_path, **files)).bundle)
    assert {name: said[name] for name in found} == found


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"modules": [{"path": "", "type": KIND + "Transformer"}, {"path": "pool", "type": KIND + "Pooling"},
                      {"path": "2_Dense", "type": KIND + "Dense"}]}, "got Transformer, Pooling, Dense"),
        ({"modules": {}}, "modules.json: expected a list"),
        ({"modules": ["Transformer"]}, "rows with type and path"),
        ({"modules": [{"path": "../x", "type": KIND + "Transformer"}]}, "folders inside this one"),
        ({"modules": [{"path": "..", "type": KIND + "Transformer"}]}, "folders inside this one"),
        ({"pool/config": {"pooling_mode_max_tokens": True}}, "got pooling_mode_max_tokens"),
        ({"pool/config": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}}, "expected one of"),
        ({"pool/config": None}, "no file at"),
        ({"tokenizer": None}, "no file at"),
        ({"sentence_bert_config": {"max_seq_length": 16, "do_lower_case": True}}, "do_lower_case"),
        ({"sentence_bert_config": None}, "how many tokens"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "default_prompt_name"),
        ({"config_sentence_transformers": {"prompts": {"query": "x"}, "default_prompt_name": "query"},
          "pool/config": {"pooling_mode_mean_tokens": True, "include_prompt": False}}, "include_prompt"),
    ],
)  # fmt: skip
def test_folders_that_are_refused(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=words):
        convert(folder(tmp_path, **files))


def test_a_folder_without_the_encoder_says_how_to_export_it(tmp_path: Path) -> None:
    (folder(tmp_path) / "onnx" / "model.onnx").unlink()
    with pytest.raises(ConvertError, match="optimum-cli export onnx"):
        convert(tmp_path)


def renamed(name: str, other: str) -> onnx.ModelProto:
    model = encoder()
    for value in model.graph.input:
        value.name = other if value.name == name else value.name
    for node in model.graph.node:
        node.input[:] = [other if one == name else one for one in node.input]
    return model


@pytest.mark.parametrize(
    ("graph", "embedding", "options", "words"),
    [
        (encoder(), Embedding(), {}, "give its tokenizer.json"),
        (encoder(), Embedding("nothing.json"), {}, "no file at nothing.json"),
        (encoder(), Embedding(b"{}"), {}, "tokenizer.json: a part is missing"),
        (encoder(), Embedding(tokenizer_json(None)), {}, r"give it \(--context N\)"),
        (encoder(), Embedding(tokenizer_json(), tokens=4), {"context": 5}, "the embedding's 4 tokens, got 5"),
        (encoder(), Embedding(tokenizer_json(), tokens=2), {}, "more than the 2 that the tokenizer adds"),
        (encoder(tokens=19), Embedding(tokenizer_json()), {}, "at most the 19 tokens that the model has, got 20"),
        (encoder(shape=("n", 32)), Embedding(tokenizer_json()), {}, "room for 64 tokens, got 32"),
        (encoder(names=("a", "b")), Embedding(tokenizer_json()), {}, "needs one output"),
        (encoder(), Embedding(tokenizer_json(), "none"), {}, "pooling none needs one output"),
        (renamed("input_ids", "tokens"), Embedding(tokenizer_json()), {}, "got tokens, attention_mask"),
        (renamed("attention_mask", "mask"), Embedding(tokenizer_json()), {}, "got input_ids, mask"),
        (encoder(), Embedding(tokenizer_json()), {"to": "onnx"}, "to: expected none"),
        (encoder(), Embedding(tokenizer_json()), {"trainable": "wo"}, "trainable: expected none"),
        (encoder(), Embedding(tokenizer_json()), {"activations": "float32"}, "activations: only language models"),
    ],
)  # fmt: skip
def test_what_is_refused(graph: Any, embedding: Embedding, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        convert(graph, embedding=embedding, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"pooling": "max"}, "pooling: expected one of"), ({"tokens": 0}, "tokens: expected"),
     ({"tokens": True}, "tokens: expected")],
)  # fmt: skip
def test_options_out_of_their_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        Embedding(**options)


def test_context_needs_a_model_of_texts() -> None:
    with pytest.raises(ConvertError, match="context: only language models"):
        convert(encoder(), context=5)
    with pytest.raises((ConvertError, QuantizeError), match="io"):
        convert(encoder(), embedding=Embedding(tokenizer_json()), quantize="int8", calibration=[])
