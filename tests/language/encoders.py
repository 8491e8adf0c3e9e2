"""A small encoder with random weights as ONNX, its tokenizer, and vectors of texts by ONNX Runtime and `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper, numpy_helper

from converter import Embedding, convert
from lite_runtime.graph import Array

__all__ = ["TEXTS", "bundle_of", "encoder", "folder", "theirs", "tokenizer_json"]

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "##s", "##ed", "home", "sun", "is", "warm", ".")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCABULARY = (*SPECIAL, *WORDS)
TEXTS = [
    "the cat sat on a mat", "dogs ran home", "the sun is warm .", "", "cat", "unknown words here",
    "the dog and the cat and the dog and the cat ran home and sat on the mat . the sun is warm . " * 3,
    "Cats SAT", "the cat " * 40, "a dog is on the mat and a cat is on the mat .",
]  # fmt: skip


def tokenizer_json(limit: int | None = 64) -> bytes:
    """A WordPiece `tokenizer.json`; limit: what it says of the most tokens."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(list(SPECIAL))
    if limit is not None:
        made.enable_truncation(limit)
    data: str = made.to_str()
    return data.encode()


def encoder(
    *, types: bool = True, width: int = 32, positions: int = 64, pooled: bool = False,
    shape: Sequence[Any] = ("n", "t"), names: Sequence[str] = ("last_hidden_state",), tokens: int = len(VOCABULARY),
    seed: int = 0,
) -> onnx.ModelProto:  # fmt: skip
    """One layer of attention with a mask, as exporters write it. pooled: the output is the first token's state. names:
    of the outputs, all the same. tokens: rows of the table."""
    rng = np.random.default_rng(seed)
    held: dict[str, Array] = {
        "words": rng.standard_normal((tokens, width)), "places": rng.standard_normal((positions, width)) / 4,
        **{name: rng.standard_normal((width, width)) / width**0.5 for name in ("wq", "wk", "wv", "wo", "wx", "wy")},
        "scale": np.float32(width**-0.5), "one": np.float32(1), "least": np.float32(-1e4), "gain": np.ones(width),
        "bias": rng.standard_normal(width) / 8,
    }  # fmt: skip
    held = {name: np.asarray(array, np.float32) for name, array in held.items()}
    held |= {"axes": np.array([1, 2]), "zero": np.array(0), "step": np.array(1), "second": np.array(1)}
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["e"]),
        node("Shape", ["input_ids"], ["sizes"]),
        node("Gather", ["sizes", "second"], ["count"]),
        node("Range", ["zero", "count", "step"], ["order"]),
        node("Gather", ["places", "order"], ["p"]),
        node("Add", ["e", "p"], ["x0"]),
        *([node("Cast", ["token_type_ids"], ["ty"], to=TensorProto.FLOAT), node("Unsqueeze", ["ty", "last"], ["tz"]),
           node("Add", ["x0", "tz"], ["x"])] if types else [node("Identity", ["x0"], ["x"])]),
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s0"]),
        node("Mul", ["s0", "scale"], ["s1"]),
        node("Cast", ["attention_mask"], ["m0"], to=TensorProto.FLOAT),
        node("Sub", ["one", "m0"], ["m1"]),
        node("Mul", ["m1", "least"], ["m2"]),
        node("Unsqueeze", ["m2", "second_axis"], ["m3"]),
        node("Add", ["s1", "m3"], ["s2"]),
        node("Softmax", ["s2"], ["s3"], axis=-1),
        node("MatMul", ["s3", "v"], ["a0"]),
        node("MatMul", ["a0", "wo"], ["a1"]),
        node("Add", ["x", "a1"], ["a2"]),
        node("LayerNormalization", ["a2", "gain", "bias"], ["a3"]),
        node("MatMul", ["a3", "wx"], ["h0"]),
        node("Gelu", ["h0"], ["h1"]),
        node("MatMul", ["h1", "wy"], ["h2"]),
        node("Add", ["a3", "h2"], ["y"]),
        *(node("Gather", ["y", "zero"], [name], axis=1) if pooled else node("Identity", ["y"], [name])
          for name in names),
    ]  # fmt: skip
    held |= {"last": np.array([2]), "second_axis": np.array([1])}
    inputs = ["input_ids", "attention_mask", *["token_type_ids"] * types]
    out = [shape[0], width] if pooled else [*shape, width]
    graph = helper.make_graph(
        nodes, "encoder", [helper.make_tensor_value_info(n, TensorProto.INT64, list(shape)) for n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, out) for n in names],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


@cache
def bundle_of(**options: Any) -> bytes:
    """The small encoder, converted."""
    return convert(encoder(), embedding=Embedding(tokenizer_json(), **options)).bundle


def folder(path: Path, **files: Any) -> Path:
    """A folder of Sentence Transformers with the small encoder. files: JSON in place of what is in it, by name; None:
    not there."""
    kind = "sentence_transformers.models."
    steps = [("Transformer", ""), ("Pooling", "pool"), ("Normalize", "end")]
    usual: dict[str, Any] = {
        "modules": [{"idx": i, "path": place, "type": kind + name} for i, (name, place) in enumerate(steps)],
        "pool/config": {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
                        "pooling_mode_mean_tokens": True},
        "sentence_bert_config": {"max_seq_length": 16, "do_lower_case": False},
        "tokenizer": json.loads(tokenizer_json(None)),
    }  # fmt: skip
    for name, held in {**usual, **files}.items():
        if held is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / f"{name}.json").write_text(json.dumps(held), encoding="utf-8")
    (path / "onnx").mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(), path / "onnx" / "model.onnx")
    return path


def theirs(
    model: bytes | str, tokenizer: bytes, texts: Sequence[str], *, tokens: int = 64, pooling: str = "mean",
    normalize: bool = True,
) -> Array:  # fmt: skip
    """Vectors by ONNX Runtime and `tokenizers`, one text at a time, without padding: float64."""
    words = tokenizers.Tokenizer.from_buffer(tokenizer)
    words.no_padding()
    words.enable_truncation(tokens)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = [value.name for value in session.get_inputs()]
    pool = {"mean": lambda h: h.mean(0), "cls": lambda h: h[0], "last": lambda h: h[-1], "none": lambda h: h}[pooling]
    made = []
    for text in texts:
        ids = np.array([words.encode(text).ids], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = session.run(None, {name: given[name] for name in inputs})[0]
        made.append(pool(np.asarray(states, np.float64)[0]))
    vectors = np.stack(made)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors
