"""Sequences as rules: order, end, limits, expiry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sequences.registry import WAITING, Key, Limits, Sequences, Step
from edge.gateway.sequences.stream import Stream
from lite_runtime.graph import StateUse

STREAM = Stream(StateUse({"h": "h"}, {"h.next": "h"}), {"h": np.zeros(2, np.float32)}, "digest")


class Bench:
    """Sequences with a clock of their own, and what was called."""

    def __init__(self, most: int = 4, memory: int = 1 << 20) -> None:
        self.time = 0.0
        self.later: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.went: list[tuple[str, float]] = []
        self.failed: list[GatewayError] = []
        limits = Limits(most, memory, 10.0)
        self.held = Sequences(limits, lambda call, *given: self.later.append((call, given)), lambda: self.time)

    def step(self, name: str, identity: str | int = 1, **how: bool) -> Step:
        def go(state: Mapping[str, np.ndarray]) -> None:
            self.went.append((name, float(state["h"][0])))

        return Step(Key("m", "1", "predict", identity), STREAM, go, self.failed.append, **how)

    def enter(self, name: str, identity: str | int = 1, **how: bool) -> Step:
        step = self.step(name, identity, **how)
        self.held.enter(step)
        return step

    def answer(self, step: Step, value: float) -> dict[str, np.ndarray]:
        outputs = {"y": np.ones(1), "h.next": np.full(2, value, np.float32)}
        self.held.leave(step, outputs)
        self.turn()
        return outputs

    def turn(self) -> None:
        while self.later:
            call, given = self.later.pop(0)
            call(*given)


def test_steps_follow_one_another() -> None:
    """The second waits for the first, however long that takes, and gets its state; answers do not contain the state."""
    bench = Bench()
    first, second = bench.enter("a", start=True), bench.enter("b")
    assert bench.went == [("a", 0.0)]
    assert set(bench.answer(first, 5.0)) == {"y"}
    assert bench.went == [("a", 0.0), ("b", 5.0)]
    bench.answer(second, 6.0)
    assert bench.held.state(second.key)["h"][0] == 6.0 and len(bench.held) == 1


def test_sequences_are_apart() -> None:
    bench = Bench()
    for identity, value in ((1, 3.0), ("1", 4.0), (2, 5.0)):
        bench.answer(bench.enter("x", identity, start=True), value)
    for identity in (1, "1", 2):
        bench.enter("y", identity)
    assert bench.went[3:] == [("y", 3.0), ("y", 4.0), ("y", 5.0)]


def test_start_begins_anew_and_end_forgets() -> None:
    bench = Bench()
    bench.answer(bench.enter("a", start=True), 5.0)
    bench.answer(bench.enter("b", start=True), 7.0)
    assert bench.went == [("a", 0.0), ("b", 0.0)]
    last = bench.enter("c", end=True)
    bench.enter("late")
    renewed = bench.enter("new", start=True)
    bench.answer(last, 8.0)
    assert bench.failed and "has no such sequence" in str(bench.failed[0])
    assert bench.went[-1] == ("new", 0.0) and bench.held.state(renewed.key)["h"][0] == 0.0
    with pytest.raises(GatewayError, match="begin it with sequence_start true"):
        bench.enter("z", 99)


def test_a_first_step_that_fails_leaves_the_state() -> None:
    """A sequence that begins anew keeps its old state until the new beginning is answered."""
    bench = Bench()
    first = bench.enter("a", start=True)
    bench.answer(first, 5.0)
    again = bench.enter("b", start=True)
    bench.held.leave(again, None)
    assert bench.went == [("a", 0.0), ("b", 0.0)]
    assert bench.held.state(first.key)["h"][0] == 5.0


def test_a_step_cancelled_while_it_waits_for_the_end_is_not_computed() -> None:
    bench = Bench()
    last, waits = bench.enter("a", start=True, end=True), bench.enter("b", start=True)
    bench.held.leave(last, {"h.next": np.ones(2, np.float32)})
    bench.held.cancel(waits)
    bench.turn()
    assert bench.went == [("a", 0.0)] and not bench.failed and len(bench.held) == 0


def test_failed_and_cancelled_steps_leave_the_state() -> None:
    bench = Bench()
    first = bench.enter("a", start=True)
    bench.answer(first, 5.0)
    failed, cancelled, waits = bench.enter("b"), bench.enter("c"), bench.enter("d")
    bench.held.cancel(cancelled)
    bench.held.leave(failed, None)
    bench.held.cancel(waits)  # its turn came, but it has not begun
    bench.turn()
    assert bench.went == [("a", 0.0), ("b", 5.0)]
    bench.enter("e")
    assert bench.went[-1] == ("e", 5.0)
    bench.held.leave(failed, {"h.next": np.ones(2, np.float32)})  # answered after it was cancelled: nothing happens
    assert bench.held.state(first.key)["h"][0] == 5.0


def test_limits() -> None:
    bench = Bench(most=2)
    bench.answer(bench.enter("a", 1, start=True), 1.0)
    bench.enter("b", 2, start=True)
    with pytest.raises(GatewayError, match="2 sequences are in use") as caught:
        bench.enter("c", 3, start=True)
    assert caught.value.status == 429
    bench.time = 11.0
    bench.enter("c", 3, start=True)  # the first one was not used for 10 seconds; the second is being computed
    assert bench.held.expired == 1 and len(bench.held) == 2
    for i in range(WAITING):
        bench.enter(str(i), 2)
    with pytest.raises(GatewayError, match=f"{WAITING} requests are waiting"):
        bench.enter("more", 2)
    small = Bench(memory=12)
    small.enter("a", 1, start=True)
    with pytest.raises(GatewayError, match="8 bytes, the limit is 12"):
        small.enter("b", 2, start=True)
    assert small.held.nbytes == 8
    small.held.forget("m", "1")
    assert small.held.nbytes == 0 and len(small.held) == 0


def test_restored_state() -> None:
    bench = Bench()
    key = Key("m", "1", "predict", 1)
    with pytest.raises(GatewayError) as caught:
        bench.held.state(key)
    assert caught.value.status == 404
    bench.held.restore(key, STREAM, {"h": np.full(2, 9, np.float32)})
    step = bench.enter("a")
    assert bench.went == [("a", 9.0)]
    with pytest.raises(GatewayError, match="being computed") as caught:
        bench.held.restore(key, STREAM, {"h": np.zeros(2, np.float32)})
    assert caught.value.status == 409
    bench.answer(step, 1.0)
