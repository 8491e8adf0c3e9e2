"""Splits against every possible one; trees as arrays; ranges of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from federated.errors import FederatedError
from federated.learner import Batch
from federated.trees.ensemble import Tree, from_arrays, reach, scores, to_arrays
from federated.trees.grow import Growth, best_split
from federated.trees.questions import EXPONENTS, Gradients, Spans, span_edges


@pytest.mark.parametrize("seed", range(5))
def test_the_best_split_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    growth = Growth(reg_lambda=0.7, gamma=0.1, min_child_weight=1.5)
    rows, columns, bins = 40, 3, 6
    place = rng.integers(0, bins + 1, (rows, columns))
    slope, curve = rng.normal(size=rows), rng.random(rows)
    sums = np.zeros((columns, bins + 1, 2))
    for column in range(columns):
        np.add.at(sums[column], place[:, column], np.stack([slope, curve], axis=1))
    best = (-np.inf, 0, 0, False)
    for column in range(columns):
        for edge in range(bins - 1):
            for missing in (False, True):
                left = (place[:, column] <= edge) | (missing & (place[:, column] == bins))
                sides = [(slope[side].sum(), curve[side].sum()) for side in (left, ~left)]
                if min(side[1] for side in sides) < 1.5:
                    continue
                gain = sum(g * g / (h + 0.7) for g, h in sides) - slope.sum() ** 2 / (curve.sum() + 0.7)
                if gain > best[0] + 1e-12:
                    best = (gain, column, edge, missing)
    found = best_split(sums, growth)
    assert found is not None and found[:4] == (pytest.approx(best[0]), *best[1:])
    assert best_split(sums, Growth(gamma=best[0] + 1)) is None


def small() -> list[Tree]:
    tree = Tree(0)
    left, right = tree.split(0, 1, 0.5, True, 1.0)
    tree.value[left], tree.value[right] = -1.0, 2.0
    return [tree, Tree(1, value=[3.0])]


def test_values_at_a_threshold_go_right_and_missing_ones_as_learned() -> None:
    x = np.array([[0, 0.4], [0, 0.5], [0, np.nan]], np.float32)
    arrays = from_arrays(to_arrays(small()), 2, 2)
    assert reach(arrays, x).tolist() == [[1, 0], [2, 0], [1, 0]]
    assert scores(arrays, x, 0.5, 2).tolist() == [[-0.5, 3.5], [2.5, 3.5], [-0.5, 3.5]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("left", [[0, -1, -1], [-1, -1, -1]]),  # a branch to itself
        ("left", [[2, -1, -1], [-1, -1, -1]]),  # the right child is behind the end
        ("left", [[-5, -1, -1], [-1, -1, -1]]),
        ("feature", [[9, -1, -1], [-1, -1, -1]]),
        ("target", [0, 7]),
        ("value", [[np.nan, 0, 0], [0, 0, 0]]),
        ("threshold", [[np.inf, 0, 0], [0, 0, 0]]),
        ("value", [[0.0], [0.0]]),
    ],
)
def test_damaged_trees_are_refused(name: str, value: Any) -> None:
    arrays = to_arrays(small())
    arrays[name] = np.array(value, arrays[name].dtype)
    with pytest.raises(FederatedError, match="trees whose branches"):
        from_arrays(arrays, 2, 2)
    with pytest.raises(FederatedError, match="trees whose branches"):
        from_arrays({key: each for key, each in arrays.items() if key != name}, 2, 2)


def test_ranges_hold_all_values() -> None:
    values = np.array([-3e38, -2.0, -1e-40, -0.0, 0.0, 1e-40, 0.75, 1.0, 3e38], np.float32)[:, None]
    question = Spans(width=1, most=100)
    rng = np.random.default_rng(0)
    for value in values:
        place = question.of(Batch({"x": value[:, None]}, np.zeros(1)), {}, rng).argmax()
        low, high = span_edges(np.array([place]))
        number = float(value[0])
        assert low[0] <= number <= high[0] and high[0] - low[0] <= max(abs(number) * 1.01, 2.0**-125)
    assert question.size == 2 * EXPONENTS


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"edges": np.zeros((2, 2), np.float32)}, "edges of float32"),
        ({"edges": np.array([[3, 2, 1], [1, 2, 3]], np.float32)}, "ascending edges"),
        ({"columns": np.array([0, 5], np.int32)}, "columns of the input"),
        ({"growing.left": np.array([[0, -1, -1], [-1, -1, -1]], np.int32)}, "trees whose branches"),
    ],
)
def test_a_question_whose_arrays_do_not_fit_is_declined(change: Any, why: str) -> None:
    arrays = {"edges": np.array([[1, 2, 3], [1, 2, 3]], np.float32), "columns": np.array([0, 1], np.int32)}
    for prefix in ("grown", "growing"):
        arrays |= {f"{prefix}.{name}": value for name, value in to_arrays(small()).items()}
    question = Gradients(width=2, columns=2, bins=4, objective="multi:softprob", classes=2, nodes=((0, 1), (1, 0)))
    data = Batch({"x": np.array([[1.0, 0.0], [2.5, 9.0]])}, np.array([0, 1]))
    found = question.of(data, arrays, np.random.default_rng(0)).reshape(2, 2, 5, 2)
    assert (found[0].any(axis=(1, 2)) == [True, True]).all()
    with pytest.raises(FederatedError, match=why):
        question.of(data, {**arrays, **change}, np.random.default_rng(0))
