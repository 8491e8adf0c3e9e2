"""Broadcasts to devices: differences to the model they hold, and the full model if they hold none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.device import Device
from federated.client.state import StateStore
from federated.codec import Codec, Spec
from federated.config import Config
from federated.errors import FederatedError
from federated.messages.downlink import Behind, Downlink, catch_up, first, read_whole
from federated.messages.packed import pack, unpack
from federated.run import simulate
from federated.server.federation import Federation
from federated.tree import Tree
from tests.federated.fleets import BUNDLE, config, fleet
from tests.federated.test_runs import accuracy, play, same

FEW = ["difference", "topk:0.1", "int8"]
FORMS = [FEW, ["difference"], ["difference", "int8"], ["difference", "mask:0.4", "int4:256"]]


def tree(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(30, 20)).astype(np.float32), "more": {"b": rng.normal(size=7).astype(np.float32)}}


def read(link: Downlink, holds: int | None, held: Tree) -> Tree:
    """What a device that holds `held` as version `holds` makes of what it is sent."""
    words, data = link.content(link.lacks(holds))
    spec = Spec.of(link.tree)
    if words["parts"] is None:
        return read_whole(link.codec, data.tobytes(), spec)
    assert holds is not None
    return catch_up(link.codec, words, data.tobytes(), spec, [(holds, held)])


@pytest.mark.parametrize("names", FORMS, ids=str)
def test_all_devices_hold_the_same_model_afterwards(names: list[str]) -> None:
    """All have the bits from which the server continues, whether they missed none, some or all of the earlier
    broadcasts."""
    links = [Downlink.begin(Codec.parse(names), 7, tree(0))]
    for seed in range(1, 30):
        links.append(links[-1].next(tree(seed)))
    last = links[-1]
    assert same(links[0].tree, first(tree(0)))
    ways = set()
    for holds in [*range(30), None]:
        assert same(read(last, holds, links[holds].tree if holds is not None else {}), last.tree)
        ways.add(last.lacks(holds))
    assert None in ways and 0 in ways and 1 in ways
    whole = 4 * Spec.of(tree(0)).size
    assert all(len(last.content(links)[1]) <= whole + 100 for links in ways)


@pytest.mark.parametrize("names", FORMS, ids=str)
def test_omitted_elements_come_with_the_next_broadcast(names: list[str]) -> None:
    """The model stands still: what devices hold comes as near as the form of values allows, and stays there."""
    link, target = Downlink.begin(Codec.parse(names), 0, tree(0)), tree(1)
    far = []
    for _ in range(60):
        link = link.next(target)
        far.append(float(np.abs(link.tree["w"] - target["w"]).max()))
    assert far[-1] < 1e-3 and far[-1] <= far[0]


def test_the_full_model_keeps_its_format_if_no_difference_follows() -> None:
    link = Downlink.begin(Codec.parse(["int8"]), 0, tree(0)).next(tree(1))
    assert link.lacks(1) is None and link.log == ()
    assert len(link.content(None)[1]) < 1000 < 4 * 607


@pytest.mark.parametrize(
    ("model", "parts", "held", "problem"),
    [
        (2, None, [], Behind),
        (2, None, [(0, 0)], Behind),
        (2, None, [(2, 1)], Behind),
        (2, None, [(1, 0)], Behind),  # the version's number with another course's values
        (1, None, [(1, 1)], FederatedError),
        (2, [3], [(1, 1)], FederatedError),
        (0, None, [(1, 1)], FederatedError),
    ],
)
def test_differences_to_an_unknown_model(
    model: int, parts: list[int] | None, held: list[tuple[int, int]], problem: type[FederatedError]
) -> None:
    links = [Downlink.begin(Codec.parse(FEW), 7, tree(0))]
    for seed in (1, 2):
        links.append(links[-1].next(tree(seed)))
    words, data = links[-1].content(1)
    words |= {"model": model, "parts": words["parts"] if parts is None else parts}
    here = [(version, links[at].tree) for version, at in held]
    with pytest.raises(problem):
        catch_up(links[0].codec, words, data.tobytes(), Spec.of(tree(0)), here)
    # One that does lead there is found among them.
    words, data = links[-1].content(1)
    found = catch_up(links[0].codec, words, data.tobytes(), Spec.of(tree(0)), [*here, (1, links[1].tree)])
    assert same(found, links[2].tree)


def words(**sections: Any) -> Config:
    return config(**{"codec": {"down": FEW}, "rounds": {"count": 6}, **sections})


def test_a_fleet_learns_from_a_tenth_of_what_changed() -> None:
    made = fleet(6, inputs=200)
    whole, few = (simulate(config(rounds={"count": 25}, codec={"down": down}), made) for down in ([], FEW))
    assert accuracy(few, made) > accuracy(whole, made) - 0.03
    assert sum(row["bytes_down"] for row in few.rows) < 0.5 * sum(row["bytes_down"] for row in whole.rows)
    assert few.rows[0]["bytes_down"] == min(row["bytes_down"] for row in few.rows), "version 0 is the bundle's"


def test_bytes_are_those_of_the_messages() -> None:
    counted = {"train": 0, "evaluate": 0}

    def count(message: bytes, answer: bytes) -> bytes:
        kind = unpack(message)[0]["kind"]
        counted["train"] += (len(message) + len(answer)) * (kind != "hello")
        return answer

    made = fleet(4)
    lines = words(evaluation={"every": 3}, rounds={"count": 6, "fraction": 0.5})
    ended = play(lines, made, dict.fromkeys(made.shards, count))
    assert counted["train"] == sum(row["bytes_down"] + row["bytes_up"] for row in ended.rows)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_devices_that_lost_their_model_get_the_full_one(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-way, all of it is gone: the run goes on as if nothing had happened."""
    made, sections = fleet(4), {"rounds": {"count": 6, "mode": mode}}
    if mode == "async":
        sections["async"] = {"size": 2, "concurrency": 3}
    undisturbed = simulate(words(**sections), made)
    answer = Device.answer

    def forgetful(self: Device, message: bytes) -> bytes:
        if unpack(message)[0].get("round") == 4 and self.name not in forgot:
            forgot.add(self.name)
            self.store.forget(self.name)
        return answer(self, message)

    forgot: set[str] = set()
    monkeypatch.setattr(Device, "answer", forgetful)
    ended = simulate(words(**sections), made)
    assert forgot
    if mode == "sync":
        assert same(ended.state, undisturbed.state) and not any(row["refused"] for row in ended.rows)
        assert ended.rows[3]["bytes_down"] > undisturbed.rows[3]["bytes_down"] + 4 * 4 * 21
    else:
        assert ended.round == 6 and set().union(*(row["refused"] for row in ended.rows)) <= {"behind"}


def test_a_secure_sum_goes_with_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    made, privacy = fleet(4), {"secure": True, "clip": 2.0}
    plain = simulate(words(privacy={"clip": 2.0}), made)
    secure = simulate(words(privacy=privacy), made)
    monkeypatch.setattr(Device, "_held", lambda self, task: [])  # devices that never hold anything
    forgetful = simulate(words(privacy=privacy), made)
    for name in plain.model():
        # Top 10 % are not the same ones after the last bit of fixed point, so the runs part a little.
        np.testing.assert_allclose(secure.model()[name], plain.model()[name], atol=0.05)
        np.testing.assert_allclose(forgetful.model()[name], plain.model()[name], atol=0.05)
    assert not any(row["refused"] for row in forgetful.rows)


def test_a_device_that_is_always_behind_is_refused() -> None:
    def behind(message: bytes, answer: bytes) -> bytes:
        meta, _ = unpack(answer)
        return pack({**meta, "kind": "refusal", "behind": True}, {}) if meta["kind"] == "update" else answer

    ended = play(words(rounds={"count": 2}), fleet(3), {"device-00": behind})
    assert [row["refused"] for row in ended.rows] == [{"behind": 1}] * 2


def test_a_resumed_server_sends_differences_to_what_devices_hold(tmp_path: Path) -> None:
    def lines(folder: str, count: int) -> Config:
        files = {"checkpoint": str(tmp_path / folder), "devices": str(tmp_path / f"{folder}.devices")}
        return words(state=files, rounds={"count": count, "fraction": 0.7}, algorithm={"name": "scaffold"})

    made = fleet(5)
    simulate(lines("parts", 3), made)
    parts = simulate(lines("parts", 6), made, resume=True)
    whole = simulate(lines("whole", 6), made)
    assert same(parts.state, whole.state) and same(parts.link.tree, whole.link.tree)
    assert [row["bytes_down"] for row in parts.rows] == [row["bytes_down"] for row in whole.rows]


def test_files_of_other_runs_are_removed() -> None:
    made, store = fleet(1), StateStore()
    device = Device("device-00", made.learner, made.shards["device-00"], store, BUNDLE)
    for run in ("one", "two"):
        federation = Federation.begin(words(), made.start)
        federation.run = run
        for number in (1, 2, 3, 4):
            message = federation.work(number, links=federation.link.lacks(max(0, number - 2)))
            assert unpack(device.answer(message))[0]["kind"] == "update"
            moved = {"params": {name: leaf + np.float32(number) for name, leaf in made.start.params.items()}}
            federation.link = federation.link.next(moved)
    assert store.load("device-00", "model one", 100) is None
    held = store.load("device-00", "model two", 100)
    assert held is not None and int(held["version"]) == 3


@pytest.mark.parametrize("down", [["topk"], ["feedback", "int8"], ["difference", "feedback"], ["difference", "signds"]])
def test_invalid_downlink_settings(down: list[str]) -> None:
    with pytest.raises(FederatedError, match=r"codec\.down"):
        config(codec={"down": down})
