"""Arithmetic of trees is that of the vectors they represent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated import tree

NUMBERS = st.lists(st.integers(-8, 8), min_size=6, max_size=6)


def treed(numbers: list[int]) -> dict[str, Any]:
    """Six numbers as a nested tree with a scalar in it."""
    v = np.asarray(numbers, np.float32)
    return {"a": v[:3], "b": {"c": v[3:5].reshape(1, 2), "d": v[5]}}


def flat(values: Any) -> list[float]:
    return [float(x) for _, leaf in tree.leaves(values) for x in np.ravel(leaf)]


@given(NUMBERS, NUMBERS, st.integers(-3, 3))
def test_arithmetic(p: list[int], q: list[int], factor: int) -> None:
    a, b, x, y = treed(p), treed(q), np.array(p, float), np.array(q, float)
    assert flat(tree.add(a, b)) == (x + y).tolist()
    assert flat(tree.add(a, b, factor)) == (x + factor * y).tolist()
    assert flat(tree.sub(a, b)) == (x - y).tolist()
    assert flat(tree.mul(a, b)) == (x * y).tolist()
    assert flat(tree.scale(a, factor)) == (factor * x).tolist()
    assert flat(tree.zeros(a)) == [0] * 6
    assert tree.total(a) == x.sum() and tree.dot(a, b) == x @ y


@given(st.lists(st.tuples(NUMBERS, st.integers(1, 4)), min_size=1, max_size=5))
def test_means_weigh(parts: list[tuple[list[int], int]]) -> None:
    found = tree.weighted_mean([treed(numbers) for numbers, _ in parts], [weight for _, weight in parts])
    want = np.average([numbers for numbers, _ in parts], axis=0, weights=[weight for _, weight in parts])
    np.testing.assert_allclose(flat(found), want, atol=1e-5)
    assert {leaf.dtype for _, leaf in tree.leaves(found)} == {np.dtype(np.float32)}


def test_nothing_to_average_and_nothing_in_trees() -> None:
    assert tree.weighted_mean([{}, {}], [1, 2]) == {} and tree.total({}) == 0
    assert tree.add({"s": {}}, {"s": {}}) == {"s": {}}


def test_leaves_go_by_path_in_order() -> None:
    assert [path for path, _ in tree.leaves(treed([0] * 6))] == ["a", "b/c", "b/d"]


def test_split_take_merge() -> None:
    values = {"head.w": 1, "body.w": 2, "head.b": 3}
    assert tree.split(values, ["head.*"]) == ({"head.w": 1, "head.b": 3}, {"body.w": 2})
    assert tree.split(values, ["*.w", "none"])[1] == {"head.b": 3}
    assert list(tree.take(values, {"head.b", "head.w", "other"})) == ["head.w", "head.b"]
    merged = tree.merge(values, {"body.w": 5})
    assert merged == {"head.w": 1, "body.w": 5, "head.b": 3} and list(merged) == list(values) and values["body.w"] == 2
    with pytest.raises(KeyError, match="tail"):
        tree.merge(values, {"tail": 1})


def test_trees_of_other_names_do_not_combine() -> None:
    with pytest.raises(KeyError):
        tree.add({"a": 1, "b": 2}, {"a": 1})
