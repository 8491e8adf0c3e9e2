"""State that a device no longer needs is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from federated.client.device import Device
from federated.client.state import StateStore
from federated.messages.packed import unpack
from federated.server.federation import Federation
from federated.server.secure_round import SecureRound
from tests.federated.fleets import BUNDLE, config, fleet

MADE = fleet(3)


def devices(store: StateStore) -> dict[int, Device]:
    """By node."""
    return {
        node: Device(name, MADE.learner, data, store, BUNDLE)
        for node, (name, data) in enumerate(sorted(MADE.shards.items()))
    }


def begin(those: Mapping[int, Device], **sections: Any) -> Federation:
    federation = Federation.begin(config(**sections), MADE.start)
    for node, device in those.items():
        federation.welcome(node, device.answer(federation.hello()), those)
    assert len(federation.members) == len(those)
    return federation


def kept(store: StateStore, device: str) -> list[str]:
    rows = store._base.execute("select distinct run from state where device = ? order by run", (device,))
    return [run for (run,) in rows]


def test_a_new_run_forgets_the_old_ones_states() -> None:
    store = StateStore()
    those = devices(store)
    sections = {"algorithm": {"name": "scaffold"}, "codec": {"down": ["difference"]}}
    first = begin(those, **sections)
    for round in (1, 2):
        for node, message in first.open(those).messages().items():
            assert unpack(those[node].answer(message))[0]["kind"] == "update"
        first.round = round
    before = kept(store, "device-00")
    assert first.run in before
    first.welcome(0, those[0].answer(first.hello()), those)  # greeted by the same run: nothing goes
    assert kept(store, "device-00") == before
    second = begin({0: those[0]}, **sections)
    assert kept(store, "device-00") == []
    assert first.run in kept(store, "device-01"), "which the second run has not greeted"
    assert second.run != first.run


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_secrets_of_an_unfinished_sum_are_deleted_when_the_next_starts(stages: int) -> None:
    store = StateStore()
    those = devices(store)
    federation = begin(those, privacy={"secure": True, "clip": 1.0})

    def play(count: int) -> None:
        secure = SecureRound(federation.open(those))
        for stage in secure.stages[:count]:
            for node, message in secure.messages(stage).items():
                secure.take(node, those[node].answer(message), stage)
        assert not secure.round.refused

    play(stages)
    (old,) = kept(store, "device-00")
    federation.fail()
    play(1)
    (new,) = kept(store, "device-00")
    assert new != old
    federation.fail()
    play(5)
    assert [len(store.load("device-00", run, 99)["party"]) for run in kept(store, "device-00")] == [0]  # type: ignore[index]
