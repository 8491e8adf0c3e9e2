"""Every operation gives what NumPy gives: in its generic form, and by each target's own instructions."""

from __future__ import annotations

import pytest

from lite_runtime.native.codegen.bodies import bodies_of, body
from lite_runtime.native.codegen.operations import OPERATIONS
from lite_runtime.native.target import runnable
from lite_runtime.targets import AHEAD, TARGETS, Target
from tests.lite_runtime.native import operations

RUNS = [
    (name, 1 if scalar else t.lanes, t) for t in runnable() for name in operations.CASES for scalar in (False, True)
]
RUNS = [(name, lanes, t) for name, lanes, t in RUNS if lanes > 1 or name in operations.SCALAR]


def test_every_operation_has_a_case() -> None:
    assert set(OPERATIONS) == {*operations.CASES, "pause", "clock", "input_dot", "inputs_are_signed"}


@pytest.mark.parametrize("target", (*TARGETS, *AHEAD), ids=lambda t: t.name)
def test_inputs_are_multiplied_as_the_planner_thinks(target: Target) -> None:
    own = {name for name, _ in bodies_of(target)}
    assert ({"input_dot", "inputs_are_signed"} <= own) == target.signed


def test_targets_have_functions_of_operations_alone() -> None:
    for target in (*TARGETS, *AHEAD):
        assert {name for name, _ in bodies_of(target)} <= set(OPERATIONS), target


@pytest.mark.parametrize("own", [False, True], ids=["generic", "own"])
@pytest.mark.parametrize(("name", "lanes", "target"), RUNS, ids=lambda value: getattr(value, "name", None))
def test_an_operation_is_what_numpy_computes(name: str, lanes: int, target: Target, own: bool) -> None:
    if own and body(bodies_of(target), name, lanes) is None:
        return  # the generic form again
    operands, wanted = operations.rows(name, lanes)
    made, begin = operations.code(name, lanes, target, own)
    assert operations.same(name, operations.run(made, begin, name, operands, wanted), wanted)
