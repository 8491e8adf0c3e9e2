"""Gradients of LSTM and GRU, natively, equal the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.graph import Node
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on
from tests.lite_runtime.ops.test_recurrent import operands

STATES = {"LSTM": 2, "GRU": 1}


def _check(op: str, *, native: bool = True, empty: bool = False, **shape: Any) -> None:
    attrs = {key: shape.pop(key) for key in ("linear_before_reset",) if key in shape}
    attrs |= {"direction": shape.get("direction", "forward"), "layout": shape.get("layout", 0)}
    given = operands(op, **shape)[: 5 + STATES[op]]
    node = Node(op, tuple(f"i{i}" for i in range(len(given))), ("y", "h", "c")[: 1 + STATES[op]], attrs, "it")
    made = reference.evaluate(node, given)
    rng = np.random.default_rng(1)
    arriving: list[Any] = [rng.standard_normal(m.shape).astype(np.float32) for m in made]
    if empty:
        arriving[1:] = [None] * STATES[op]
    operands_ = [*given[:3], made[0], *given[3:], *arriving]
    check(f"{op}Grad", operands_, attrs, outputs=4 + STATES[op], rtol=1e-4, atol=1e-4, native=native)


@pytest.mark.parametrize("op", STATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions(op: str, direction: str) -> None:
    _check(op, direction=direction, time=6, batch=5)


@pytest.mark.parametrize("op", STATES)
@pytest.mark.parametrize("hidden", [1, 16, 33])
def test_sizes(op: str, hidden: int) -> None:
    _check(op, hidden=hidden, inputs=1 + hidden // 3, batch=1 + hidden % 9, time=1 + hidden % 7)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_that_resets_late(direction: str) -> None:
    _check("GRU", linear_before_reset=1, direction=direction, time=4, batch=6)


@pytest.mark.parametrize("op", STATES)
def test_what_may_be_left_out(op: str) -> None:
    _check(op, bias=False, states=False, empty=True)


@pytest.mark.parametrize("op", STATES)
def test_lengths_and_the_other_layout_take_the_reference(op: str) -> None:
    _check(op, lengths=(2, 3), native=False)
    _check(op, layout=1, native=False)


def _on_this_target() -> None:
    for op in STATES:
        _check(op, direction="bidirectional", hidden=21, batch=5)


@on_other_targets
def test_other_vectors(target: str) -> None:
    run_on(target, _on_this_target)
