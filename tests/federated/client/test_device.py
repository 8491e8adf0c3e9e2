"""A device answers every message, and does nothing that it should not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated.client.demands import Demands
from federated.client.device import MOST, VERSION, Device
from federated.client.state import StateStore
from federated.errors import FederatedError
from federated.learner import Batch
from federated.messages.packed import pack, unpack
from federated.server.federation import Federation
from tests.federated.fleets import BUNDLE, config, fleet

MADE = fleet(1)
FEDERATION = Federation.begin(config(algorithm={"name": "scaffold"}), MADE.start)
FEDERATION.round = 1
WORDS = {"support": 2, "steps": 2, "batch": 4, "lowest": 0.0}
MESSAGES = {
    "train": FEDERATION.work(1),
    "evaluate": FEDERATION.task("evaluate", 1, {"held_out": False, **WORDS}),
    "sync": FEDERATION.task("sync", 1, {"steps": 2, "batch": 4, "only": []}),
    "hello": FEDERATION.hello(),
}
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JUNK = st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=5) | st.just([])
JUNK |= st.just({}) | st.just([1]) | st.just({"name": []}) | st.just({"name": "fedavg", "rate": -1})


def device(**changes: Any) -> Device:
    words = {"name": "device-00", "learner": MADE.learner, "data": MADE.shards["device-00"], "store": StateStore(),
             "bundle": BUNDLE, "consent": "serve"}  # fmt: skip
    return Device(**{**words, **changes})


def ask(message: bytes, **changes: Any) -> dict[str, Any]:
    return unpack(device(**changes).answer(message))[0]


@pytest.mark.parametrize(("kind", "answer"), [("train", "update"), ("evaluate", "evaluation"), ("sync", "personal")])
def test_a_device_does_what_it_is_asked(kind: str, answer: str) -> None:
    assert ask(MESSAGES[kind])["kind"] == answer


@given(st.data())
def test_a_message_of_whatever_fields_is_answered(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(MESSAGES)))
    meta, body = unpack(MESSAGES[kind])
    for key in data.draw(st.lists(st.sampled_from([*meta]), min_size=1, max_size=2)):
        if data.draw(st.booleans()):
            meta.pop(key, None)
        else:
            meta[key] = data.draw(JUNK)
    if data.draw(st.booleans()):
        body = data.draw(st.sampled_from([{}, {"data": np.zeros(3)}, {"data": np.zeros(3, np.uint8)}, body]))
    answer = ask(pack(meta, body))
    assert answer["kind"] in ("refusal", "update", "evaluation", "personal", "hello")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"kind": "delete"}, "expected one of hello"),
        ({"bundle": "another"}, "install the same bundle"),
        ({"algorithm": {"name": "maml"}}, "second derivatives"),
        ({"algorithm": {"name": "theft"}}, "theft"),
        ({"steps": MOST + 1}, "steps"),
        ({"steps": MOST // 2, "batch": 3}, "at most"),
        ({"steps": 0}, "steps"),
        ({"privacy": {"noise": "local", "multiplier": 1.0}}, "clip"),
        ({"privacy": {"secure": True, "clip": 1.0}}, "secure sum"),
        ({"multiplier": -1.0}, "multiplier"),
        ({"up": ["zip"]}, "zip"),
        ({"up": [1]}, "names of parts, got 1"),
        ({"down": [1]}, "names of parts, got 1"),
    ],
)
def test_refusals_say_why(changes: dict[str, Any], says: str) -> None:
    meta, body = unpack(MESSAGES["train"])
    answer = ask(pack({**meta, **changes}, body))
    assert answer["kind"] == "refusal" and says in answer["why"]


def test_without_examples_there_is_nothing_to_train_on() -> None:
    empty = Batch({"x": np.zeros((0, 6), np.float32)}, np.zeros(0, np.int64))
    for kind in ("train", "evaluate"):
        answer = ask(MESSAGES[kind], data=empty)
        assert answer["kind"] == "refusal" and "empty shard" in answer["why"]


def test_the_same_round_gives_the_same_answer() -> None:
    one = device()
    first = one.answer(MESSAGES["train"])
    assert one.answer(MESSAGES["train"]) == first
    other = one.answer(FEDERATION.work(2))
    assert unpack(other)[0]["round"] == 2 and other != first
    assert one.answer(FEDERATION.work(2)) == other


def test_bytes_that_are_not_a_message() -> None:
    with pytest.raises(FederatedError):
        device().answer(b"hello")


def test_without_consent_nothing_leaves() -> None:
    meta, body = unpack(device(consent="none").answer(MESSAGES["sync"]))
    assert meta["consent"] == "none" and body == {}


def test_of_some_parameters_only_those_are_sent() -> None:
    """The device sends what it is asked for and nothing else, with other values than the common model's."""
    message = FEDERATION.task("sync", 1, {"steps": 2, "batch": 4, "only": ["b"]})
    meta, body = unpack(device().answer(message))
    assert meta["kind"] == "personal" and list(body) == ["b"]
    assert not np.array_equal(body["b"], FEDERATION.model()["b"])
    whole = unpack(device().answer(MESSAGES["sync"]))[1]
    assert set(whole) == {"w", "b"}
    nothing = ask(FEDERATION.task("sync", 1, {"steps": 2, "batch": 4, "only": ["head*"]}))
    assert nothing["kind"] == "refusal" and "to match some parameters" in nothing["why"]


@pytest.mark.parametrize(("allowed", "only", "sent"), [("b", ["b"], ["b"]), ("b", ["*"], None), ("b", [], None),
                                                      ("b w", [], ["w", "b"]), ("w*", ["b"], None)])  # fmt: skip
def test_the_owner_decides_which_parameters_a_version_has(allowed: str, only: list[str], sent: Any) -> None:
    message = FEDERATION.task("sync", 1, {"steps": 2, "batch": 4, "only": only})
    meta, body = unpack(device(demands=Demands(version_only=allowed)).answer(message))
    assert (sorted(body) or None) == (sent and sorted(sent))
    assert meta["kind"] == "personal" if sent else "demands version_only" in meta["why"]
