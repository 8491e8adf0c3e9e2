"""How far a model moves where its inputs change in their last bits, and which differences that explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edge.measuring.parity import ROUNDING, compare
from edge.measuring.rounding import FACTOR, is_rounding, own_differences

TIES = np.array([0.5, 2.5, -1.5, 3.0], np.float32)


def rounded(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": np.rint(inputs["x"])}


def smooth(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": inputs["x"] * 2, "n": np.int64([3])}


def test_ties_move_by_a_step_and_smooth_functions_hardly() -> None:
    assert own_differences(lambda: rounded, [{"x": TIES}]) == {"y": 1}
    found = own_differences(lambda: smooth, [{"x": TIES}])
    assert 0 < found.pop("y") <= 2 * ROUNDING * 3 and found == {"n": 0}


def test_zeros_change_as_well() -> None:
    assert 0 < own_differences(lambda: smooth, [{"x": np.zeros(4, np.float32)}])["y"] <= 2 * ROUNDING


def test_integer_inputs_do_not_change() -> None:
    assert own_differences(lambda: rounded, [{"x": np.arange(4)}]) == {"y": 0}


def test_each_repetition_starts_with_the_first_state() -> None:
    started = []

    def start() -> Any:
        held = [np.zeros(4, np.float32)]
        started.append(held)

        def step(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            held.append(held[-1] + inputs["x"])
            return {"y": held[-1]}

        return step

    found = own_differences(start, [{"x": TIES}] * 3)
    assert found["y"] < 1e-4 and {len(held) for held in started} == {4}


def test_other_settings_count() -> None:
    def other(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**smooth(inputs), "y": smooth(inputs)["y"] + 0.25}

    assert own_differences(lambda: smooth, [{"x": TIES}], [lambda: other, lambda: smooth])["y"] == 0.25


def test_numbers_that_are_not_finite_and_other_sizes_do_not_count() -> None:
    def odd(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": np.append(inputs["x"], np.nan), "z": np.zeros(int(inputs["x"][0] > 0.5), np.float32)}

    found = own_differences(lambda: odd, [{"x": TIES}])
    assert found["y"] < 1e-5 and found["z"] == 0


@pytest.mark.parametrize(("got", "own", "expected"), [(1.9, 1.0, True), (2.1, 1.0, False), (0.1, 0.0, False)])
def test_twice_as_far_is_rounding(got: float, own: float, expected: bool) -> None:
    assert FACTOR == 2
    far = compare("y", np.array([got]), np.array([0.0]))
    assert is_rounding([far], {"y": own}) is expected and is_rounding([], {})


def test_other_shapes_are_never_rounding() -> None:
    assert not is_rounding([compare("y", np.zeros(2), np.zeros(3))], {"y": 1e9})
    assert not is_rounding([compare("y", np.zeros(2, int), np.ones(2, int))], {})


def test_of_indices_the_share_of_elements_counts() -> None:
    """The largest of nearly equal scores: a runtime whose kernels round otherwise gives other indices."""

    def classes(inputs: Mapping[str, Any], first: int = 0) -> Mapping[str, Any]:
        return {"y": np.arange(20) + (np.arange(20) < first)}

    own = own_differences(lambda: classes, [{}], [lambda: lambda inputs: classes(inputs, 4)])
    assert own == {"y": 0.2}
    for differing, same in ((4, True), (8, True), (9, False)):
        row = compare("y", classes({}, differing)["y"], classes({})["y"])
        assert row.unequal == differing / 20 and is_rounding([row], own) is same
    assert not is_rounding([compare("y", np.arange(19), np.arange(20))], own)
