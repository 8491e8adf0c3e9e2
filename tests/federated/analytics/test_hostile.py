"""Answers and questions that no honest party sends are refused, with a reason, before they are used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pytest

from federated.analytics.base import Asked
from federated.analytics.counts import Counts
from federated.client.device import Device
from federated.client.state import StateStore
from federated.learner import NO_MODEL, Batch
from federated.messages.packed import pack, unpack
from federated.runs import parse
from federated.server.replies import Failure

HISTOGRAM = {"kind": "histogram", "feature": "x", "low": 0.0, "high": 4.0, "bins": 4}
Change = Callable[[dict[str, Any], dict[str, Any]], None]


class Room:
    """An exchange whose devices answer at once; `change` alters what the last one sends, `ask` what it is sent."""

    def __init__(self, count: int, change: Change = lambda *_: None, ask: Change = lambda *_: None) -> None:
        data = Batch({"x": np.array([0.5, 1.5, 2.5, 3.5])}, np.zeros(4))
        self.devices = {at: Device(f"d{at}", NO_MODEL, data, StateStore(), "") for at in range(count)}
        self.change, self.ask, self.ready = change, ask, dict[str, bytes]()

    def nodes(self) -> Collection[int]:
        return self.devices

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        tickets = {}
        for node, message in messages.items():
            last = node == len(self.devices) - 1 and unpack(message)[0]["kind"] == "question"
            if last:
                message = _changed(message, self.ask)
            reply = self.devices[node].answer(message)
            tickets[f"{len(self.ready)}"] = node
            self.ready[f"{len(self.ready)}"] = _changed(reply, self.change) if last else reply
        return tickets

    def poll(self, tickets: Collection[str]) -> list[tuple[str, bytes | Failure]]:
        return [(ticket, self.ready[ticket]) for ticket in tickets]

    def now(self) -> float:
        return 0.0

    def wait(self, seconds: float) -> None:
        raise AssertionError("all devices answered")


def _changed(message: bytes, change: Change) -> bytes:
    meta, body = unpack(message)
    change(meta, body)
    return pack(meta, body)


def row(room: Room, **privacy: Any) -> tuple[dict[str, Any], list[float]]:
    run = parse({"analytics": [HISTOGRAM], "privacy": privacy})
    assert run is not None
    made = run.conduct(room)
    return made["rows"][0], made["results"][0]["counts"]


def body(value: Any) -> Change:
    return lambda meta, body: body.update(data=value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (body(np.full(4, 2**31 - 1, np.int32)), "payload"),
        (body(np.array([-1, 0, 0, 0], np.int32)), "payload"),
        (body(np.full(4, -(2**31), np.int32)), "payload"),
        (body(np.full(4, 1, np.int64)), "payload"),
        (body(np.full(4, np.nan)), "payload"),
        (body(np.zeros(5, np.int32)), "payload"),
        (body(np.zeros((2, 2), np.int32)), "payload"),
        (body(np.full(4, (2**31 - 1) // 4, np.int32)), "norm"),
        (lambda meta, body: body.update(more=np.zeros(1)), "payload"),
        (lambda meta, body: meta.update(round=7), "replayed"),
        (lambda meta, body: meta.update(device="d0"), "impostor"),
        (lambda meta, body: meta.update(kind="update"), "malformed"),
    ],
)
def test_a_hostile_answer_is_refused_and_the_others_count(change: Change, reason: str) -> None:
    found, counts = row(Room(4, change))
    assert found["refused"] == {reason: 1} and found["answered"] == 3
    np.testing.assert_allclose(counts, 0.75, atol=1e-6)


def question(**fields: Any) -> Change:
    return lambda meta, body: meta.update(fields)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (question(question={"name": "all"}), "expected one of counts"),
        (question(question={"name": "counts", "bins": 1 << 20}), "bins"),
        (question(question={"name": "counts", "low": 1.0, "high": 0.0}), "analytics.high"),
        (question(question={"name": "prefixes", "prefixes": ["zz"]}), "prefixes"),
        (question(question={"name": "counts", "feature": "secret"}), "expected one of labels, x"),
        (question(question={"name": "counts", "feature": "x", "column": 9}), "analytics.column"),
        (question(step=0.0), "expected a step"),
        (question(step="x"), "a field 'step'"),
        (question(multiplier=-1.0), "a multiplier"),
        (question(noise="other"), "noise"),
        (question(threat="none"), "model"),
        (question(secure=True), "secure sum"),
        (lambda meta, body: body.update(arrays=np.zeros(3)), "arrays by name"),
    ],
)
def test_a_hostile_question_is_declined(ask: Change, why: str) -> None:
    found, _ = row(Room(4, ask=ask))
    assert found["answered"] == 3 and any(why in detail for detail in found["details"]), found["details"]


def test_one_device_of_a_secure_sum_is_not_asked_something_else() -> None:
    found, counts = row(Room(6, ask=question(seed=1)), secure=True, model="honest-but-curious")
    assert any("the question that all devices agreed on" in detail for detail in found["details"])
    np.testing.assert_allclose(counts, 5 / 4, atol=1e-6)


def test_an_answer_is_masked_once() -> None:
    room = Room(4)
    assert row(room, secure=True)[0]["counted"]
    run = parse({"analytics": [HISTOGRAM], "privacy": {"secure": True}, "rounds": {"attempts": 1}})
    assert run is not None
    with pytest.raises(Exception, match="an update that was in no other sum"):
        run.conduct(room)


def test_the_bound_is_computed_by_the_device() -> None:
    meta = {"step": 1e-6, "devices": 5, "noise": "central", "secure": False, "threat": "malicious", "multiplier": 1.0}
    assert Asked.of(Counts(bins=4), meta, {}).privacy.clip == 1.0
    assert Asked.of(Counts(bins=4, dyadic=True), meta, {}).privacy.clip == pytest.approx(3**0.5)
