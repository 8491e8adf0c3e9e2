"""Sequences and optionals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import InputError, ShapeError
from tests.lite_runtime.reference.oracle import floats, i64, ours


@given(st.lists(st.integers(0, 9)), st.integers(-12, 12))
def test_positions_are_pythons(items: list[int], position: int) -> None:
    sequence, at, n = [np.array(i) for i in items], np.array(position), len(items)
    if -n <= position < n:
        assert ours("SequenceAt", [sequence, at])[0] == items[position]
        rest = items[: position % n] + items[position % n + 1 :]
        assert ours("SequenceErase", [sequence, at])[0] == rest
    else:
        with pytest.raises(InputError, match="position"):
            ours("SequenceAt", [sequence, at])
    if -n <= position <= n:
        wanted = list(items)
        wanted.insert(position, 99)
        assert ours("SequenceInsert", [sequence, np.array(99), at])[0] == wanted


def test_inserting_leaves_the_old_sequence_alone() -> None:
    old = ours("SequenceConstruct", [floats(2), floats(3)])[0]
    new = ours("SequenceInsert", [old, floats(4)])[0]
    assert (len(old), len(new)) == (2, 3)
    assert ours("SequenceLength", [new])[0] == 3
    assert ours("SequenceEmpty", [])[0] == []


@pytest.mark.parametrize("split", [None, np.array(2), i64(1, 4)])
def test_concatenation_undoes_splitting(split: np.ndarray | None) -> None:
    x = floats(3, 5)
    parts = ours("SplitToSequence", [x, split], {"axis": 1})[0]
    np.testing.assert_array_equal(ours("ConcatFromSequence", [parts], {"axis": 1})[0], x)


def test_slices_without_their_axis_stack() -> None:
    x = floats(3, 5)
    parts = ours("SplitToSequence", [x], {"axis": 1, "keepdims": 0})[0]
    np.testing.assert_array_equal(ours("ConcatFromSequence", [parts], {"axis": 1, "new_axis": 1})[0], x)


def test_optionals() -> None:
    x = floats(2)
    assert ours("OptionalGetElement", ours("Optional", [x]))[0] is x
    assert ours("OptionalHasElement", [x])[0]
    assert not ours("OptionalHasElement", ours("Optional", []))[0]


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="add up to 5"):
        ours("SplitToSequence", [floats(5), i64(2, 2)])
    with pytest.raises(ShapeError, match="empty one"):
        ours("ConcatFromSequence", [[]], {"axis": 0})
