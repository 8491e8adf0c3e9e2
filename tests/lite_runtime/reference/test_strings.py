"""Text operators against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import InputError, ShapeError, UnsupportedOpError
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


def test_misfits_are_refused() -> None:
    with pytest.raises(InputError, match="regular expression"):
        ours("RegexFullMatch", [texts("a")], {"pattern": "("})
    with pytest.raises(ShapeError, match=r"\[C\] or \[1, C\]"):
        ours("StringNormalizer", [texts("a", "b")[:, None]])
    with pytest.raises(UnsupportedOpError, match="TITLE"):
        ours("StringNormalizer", [texts("a")], {"case_change_action": "TITLE"})
    with pytest.raises(ShapeError, match="do not fit"):
        ours("StringConcat", [np.array(["a", "b"], object), np.array(["a"] * 3, object)])
