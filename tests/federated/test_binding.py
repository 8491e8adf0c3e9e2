"""A secure sum is for one task: a server that sends devices different tasks gets no sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from federated import tree
from federated.client.device import Device
from federated.client.state import StateStore
from federated.codec import Codec, Spec
from federated.errors import FederatedError
from federated.messages.agreement import work_digest
from federated.messages.packed import pack, unpack
from federated.run import run, simulate
from federated.transport.local import run_here
from tests.federated.fleets import BUNDLE, config, fleet

SECURE = {"secure": True, "clip": 2.0}
Words = dict[str, Any]


class Told:
    """A device whose train messages are rewritten on their way, as a server would that wants to single it out."""

    def __init__(self, device: Device, rewrite: Callable[[Words, Words], None]) -> None:
        self.device, self.rewrite = device, rewrite

    def answer(self, message: bytes) -> bytes:
        words, body = unpack(message)
        if words["kind"] != "train":
            return self.device.answer(message)
        body = dict(body)
        self.rewrite(words, body)
        return self.device.answer(pack(words, body))


def another_model(words: Words, body: Words) -> None:
    spec = Spec.of({"params": fleet(1).start.params})
    model = tree.map_leaves(lambda leaf: leaf + np.float32(0.5), Codec().decode(body["data"].tobytes(), spec))
    body["data"] = np.frombuffer(Codec().encode(model, np.random.default_rng(0)).data, np.uint8)


CHANGES: Mapping[str, Callable[[Words, Words], None]] = {
    "another model": another_model,
    "another bound": lambda words, body: words.update(privacy={**words["privacy"], "clip": 1.0}),
    "more steps": lambda words, body: words.update(steps=5),
    "another rate": lambda words, body: words.update(algorithm={"name": "fedavg", "rate": 0.0}),
    "a wider grid": lambda words, body: words.update(secure={**words["secure"], "bound": 4.0}),
}


def play(rewritten: Mapping[str, Callable[[Words, Words], None]], devices: int = 5, **sections: Any) -> Any:
    made = fleet(devices)
    store = StateStore()
    those: dict[str, Any] = {n: Device(n, made.learner, data, store, BUNDLE) for n, data in made.shards.items()}
    for name, rewrite in rewritten.items():
        those[name] = Told(those[name], rewrite)
    words = config(privacy=SECURE, rounds={"count": 1, "attempts": 1}, **sections)
    ended: list[Any] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange)), those)
    return ended[0]


@pytest.mark.parametrize("what", CHANGES)
def test_a_device_that_got_a_different_message_sends_nothing(what: str) -> None:
    row = play({"device-03": CHANGES[what]}).rows[0]
    assert (row["answered"], row["refused"]) == (4, {"refused": 1})
    assert "agreed on" in " ".join(row["details"])


def test_a_server_that_sends_most_devices_different_messages_gets_no_sum() -> None:
    with pytest.raises(FederatedError, match="1 times in a row"):
        play({f"device-{at:02d}": CHANGES["another model"] for at in range(3)})


@pytest.mark.parametrize("down", [[], ["float16"], ["int8"], ["difference"], ["difference", "int8"]])
def test_honest_servers_and_devices_agree_whatever_the_codec(down: list[str]) -> None:
    made, words = fleet(3), config(privacy=SECURE, codec={"down": down}, rounds={"count": 3, "attempts": 1})
    assert [row["answered"] for row in simulate(words, made).rows] == [3, 3, 3]


def test_the_digest_covers_settings_and_model_but_not_the_encoding() -> None:
    model = {"params": {"w": np.arange(3, dtype=np.float32)}}
    digest = work_digest({"steps": 1, "parts": None}, model)
    assert digest == work_digest({"parts": [7], "steps": 1}, {"params": {"w": np.float32([0, 1, 2])}})
    assert digest != work_digest({"steps": 2, "parts": None}, model)
    assert digest != work_digest({"steps": 1, "parts": None}, {"params": {"v": model["params"]["w"]}})
    assert digest != work_digest({"steps": 1, "parts": None}, {"params": {"w": np.float32([0, 1, 3])}})
