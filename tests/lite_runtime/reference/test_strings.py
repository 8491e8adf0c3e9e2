"""Text operators against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from lite_runtime.errors import InputError, ShapeError, UnsupportedOpError
from tests import oracles
from tests.lite_runtime.reference.oracle import agree, ints, ours, texts


def test_concat_broadcasts() -> None:
    agree("StringConcat", [texts("a", "b")[:, None], texts("x", "y", "z")])


@pytest.mark.parametrize("attrs", [{}, {"delimiter": ","}, {"delimiter": ",", "maxsplit": 1}])
def test_split(attrs: dict[str, object]) -> None:
    agree("StringSplit", [texts("a,b,c", " d  e ", "f,", "g")], attrs, outputs=2)


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalizer(case: str, sensitive: int) -> None:
    attrs = {"case_change_action": case, "is_case_sensitive": sensitive, "stopwords": ("Monday",)}
    got = ours("StringNormalizer", [texts("monday", "Monday", "Tuesday")], attrs)[0].tolist()
    kept = ["monday", "Tuesday"] if sensitive else ["Tuesday"]
    assert got == [{"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[case](k) for k in kept]


def test_normalizer_leaves_one_empty_string() -> None:
    assert ours("StringNormalizer", [texts("a")[None]], {"stopwords": ("a",)})[0].tolist() == [[""]]


def test_regex() -> None:
    agree("RegexFullMatch", [texts("abc", "ab", "xabc")], {"pattern": "a.c?"}, opset=20)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_ngrams(mode: str, skip: int) -> None:
    attrs = {
        **{"mode": mode, "max_skip_count": skip, "min_gram_length": 1, "max_gram_length": 2},
        **{"ngram_counts": (0, 3), "ngram_indexes": (0, 1, 2, 3, 4), "pool_int64s": (1, 2, 3, 1, 2, 2, 3)},
        "weights": (1.0, 2.0, 3.0, 4.0, 5.0),
    }
    agree("TfIdfVectorizer", [ints(3, 12, low=1, high=5)], attrs)


@pytest.mark.parametrize(
    "wrong", [{"min_gram_length": -(2**40)}, {"min_gram_length": 3}, {"min_gram_length": 0}, {"max_skip_count": -1}]
)
def test_lengths_of_ngrams_that_cannot_be(wrong: dict[str, int]) -> None:
    attrs = {
        **{"mode": "TF", "max_skip_count": 0, "min_gram_length": 1, "max_gram_length": 2},
        **{"ngram_counts": (0,), "ngram_indexes": (0, 1), "pool_int64s": (1, 2)},
    }
    with pytest.raises(ShapeError, match="expected 1 <= min <= max"):
        ours("TfIdfVectorizer", [ints(3, 12, low=1, high=5)], attrs | wrong)


def test_ngrams_longer_than_the_pool_take_no_time() -> None:
    attrs = {
        **{"mode": "TF", "max_skip_count": 2**40, "min_gram_length": 1, "max_gram_length": 2**40},
        **{"ngram_counts": (0, 3), "ngram_indexes": (0, 1, 2, 3), "pool_int64s": (1, 2, 3, 1, 2)},
    }
    x = ints(3, 12, low=1, high=5)
    near = {**attrs, "max_skip_count": 12, "max_gram_length": 2}
    assert np.array_equal(ours("TfIdfVectorizer", [x], attrs)[0], ours("TfIdfVectorizer", [x], near)[0])


TEXTS = texts("the quick  brown fox", "a,b;;c ,d", "", "héllo wörld ñ", "日本 語 text", "..;,")
TOKENS = [
    {"tokenexp": "[a-zA-Z0-9_]+"}, {"tokenexp": r"\w+", "mark": 1, "mincharnum": 2}, {"tokenexp": "a*"},
    {"tokenexp": "."}, {"separators": [" "]}, {"separators": [",", ";", " "], "mark": 1, "mincharnum": 2},
    {"separators": ["[,;]+"]}, {"separators": [""]}, {"separators": [""], "mark": 1},
]  # fmt: skip


@pytest.mark.parametrize("attrs", TOKENS)
@pytest.mark.parametrize("x", [TEXTS, TEXTS.reshape(3, 2), texts("", "")])
def test_tokens_as_onnxruntime(x: np.ndarray, attrs: dict[str, Any]) -> None:
    attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#", **attrs}
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attrs)
    ends = [[helper.make_tensor_value_info(name, TensorProto.STRING, None)] for name in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", *ends), opset_imports=opsets, ir_version=8)
    (wanted,) = oracles.session(model).run(None, {"x": x})
    (got,) = ours("Tokenizer", [x], attrs)
    assert got.shape == wanted.shape and got.tolist() == wanted.tolist()


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="either separators or tokenexp"):
        ours("Tokenizer", [texts("a")], {"separators": [" "], "tokenexp": "a"})
    with pytest.raises(InputError, match="regular expression"):
        ours("RegexFullMatch", [texts("a")], {"pattern": "("})
    with pytest.raises(ShapeError, match=r"\[C\] or \[1, C\]"):
        ours("StringNormalizer", [texts("a", "b")[:, None]])
    with pytest.raises(UnsupportedOpError, match="TITLE"):
        ours("StringNormalizer", [texts("a")], {"case_change_action": "TITLE"})
    with pytest.raises(ShapeError, match="do not fit"):
        ours("StringConcat", [np.array(["a", "b"], object), np.array(["a"] * 3, object)])
