"""FedBuff: a step for every few updates, late ones discounted, without waiting for any device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.device import Device
from federated.client.state import StateStore
from federated.errors import FederatedError
from federated.run import simulate
from federated.server.asynchronous import Buffered, discount
from federated.server.federation import Federation
from tests.federated.fleets import BUNDLE, config, fleet

ASYNC = {"count": 12, "mode": "async", "deadline": 60.0}


def slow(name: str, nth: int) -> float:
    """Every second device takes ten times as long."""
    return 10.0 if int(name[-2:]) % 2 else 1.0


def test_discounts() -> None:
    assert discount(0, 0.5) == 1 and discount(3, 0.5) == 0.5 and discount(9, 0.0) == 1


def test_slow_devices_do_not_delay_others() -> None:
    made = fleet(8)
    ended = simulate(config(rounds=ASYNC, async_={"size": 4, "concurrency": 8}), made, delay=slow)
    waiting = simulate(config(rounds={"count": 12}), made, delay=slow)
    assert sum(row["seconds"] for row in ended.rows) < 0.4 * sum(row["seconds"] for row in waiting.rows)
    assert ended.round == 12 and all(row["answered"] == 4 for row in ended.rows)
    assert max(row["staleness"] for row in ended.rows) > 0
    assert ended.rows[-1]["loss"] < 0.7 * ended.rows[0]["loss"]


def test_the_same_clock_gives_the_same_model() -> None:
    words = config(rounds=ASYNC, async_={"size": 3, "concurrency": 5})
    one, other = (simulate(words, fleet(6), delay=slow) for _ in range(2))
    assert all(np.array_equal(one.model()[name], other.model()[name]) for name in one.model())


def test_late_updates_count_less_and_too_late_ones_not() -> None:
    made = fleet(3)
    words = config(rounds=ASYNC, async_={"size": 1, "concurrency": 3, "most": 1}, algorithm={"name": "fedavg"})
    federation, store = Federation.begin(words, made.start), StateStore()
    devices = {at: Device(name, made.learner, made.shards[name], store, BUNDLE) for at, name in enumerate(made.shards)}
    for node, device in devices.items():
        federation.welcome(node, device.answer(federation.hello()), devices)
    rules = Buffered(federation)
    message = federation.work(1)
    answers = {}
    for name, node in rules.wanted(devices):
        rules.sent(name, node, name, len(message), 0.0)
        answers[name] = devices[node].answer(message)
    assert rules.wanted(devices) == [], "all are busy"
    first, second, third = sorted(answers)
    rules.take(first, answers[first])
    assert rules.full
    rules.step()
    before = federation.model()
    rules.take(second, answers[second])
    (received, late), = rules.buffer
    assert late == 1
    rules.step()
    moved = federation.model()["w"] - before["w"]
    np.testing.assert_allclose(moved, received.payload["params"]["w"] * 2**-0.5, rtol=1e-5)
    rules.take(third, answers[third])
    assert rules.refused == {"stale": 1} and not rules.buffer


def test_no_device_is_asked_twice_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's draws follow from the version: asked again, it would send the same update again."""
    twice: list[int] = []
    step = Buffered.step

    def look(rules: Buffered) -> dict[str, Any]:
        fresh = [received.device for received, late in rules.buffer if not late]
        twice.append(len(fresh) - len(set(fresh)))
        return step(rules)

    monkeypatch.setattr(Buffered, "step", look)
    simulate(config(rounds=ASYNC, async_={"size": 4, "concurrency": 2}), fleet(6))
    assert len(twice) == 12 and not any(twice)
    twice.clear()
    simulate(config(rounds={**ASYNC, "count": 2}, async_={"size": 4, "concurrency": 2}), fleet(3))
    assert len(twice) == 2 and any(twice), "where there are fewer than a step takes, rather twice than never"


def test_silent_devices_free_their_places() -> None:
    def delay(name: str, nth: int) -> float:
        return float("inf") if name == "device-00" and nth else 1.0

    words = config(rounds={**ASYNC, "deadline": 5.0}, async_={"size": 2, "concurrency": 3})
    ended = simulate(words, fleet(3), delay=delay)
    assert ended.round == 12 and sum(row["silent"] for row in ended.rows) > 0
    assert ended.members["device-00"].answered == 0


def test_answers_that_come_during_an_evaluation_count() -> None:
    """It waits a whole deadline for the device that disappeared, while others answer."""
    words = config(
        rounds={**ASYNC, "deadline": 5.0}, async_={"size": 1, "concurrency": 3}, evaluation={"every": 1}
    )
    seconds = {"device-00": float("inf"), "device-01": 1.0, "device-02": 1.5}
    ended = simulate(words, fleet(3), delay=lambda name, nth: seconds[name] if nth else 0.0)
    others = [member for name, member in ended.members.items() if name != "device-00"]
    assert all(member.asked - member.answered <= 1 for member in others), "one is still under way in the end"


def test_a_run_without_answers_ends() -> None:
    with pytest.raises(FederatedError, match="step 1: expected 10 updates, got 0"):
        simulate(
            config(rounds={**ASYNC, "deadline": 5.0}), fleet(3), delay=lambda name, nth: float("inf") if nth else 0.0
        )


def test_a_run_whose_answers_are_all_refused_ends() -> None:
    with pytest.raises(FederatedError, match=r"step 1: expected 2 updates, got 0.*'norm'"):
        simulate(config(rounds=ASYNC, async_={"size": 2, "concurrency": 3}, limits={"norm": 1e-6}), fleet(3))


def test_steps_are_kept_and_resumed(tmp_path: Path) -> None:
    state = {"checkpoint": str(tmp_path / "run")}
    simulate(config(rounds={**ASYNC, "count": 3}, async_={"size": 2}, state=state), fleet(3))
    ended = simulate(config(rounds=ASYNC, async_={"size": 2}, state=state), fleet(3), resume=True)
    assert ended.round == 12 and [row["round"] for row in ended.rows] == list(range(1, 13))
