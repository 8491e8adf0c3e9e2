"""A device's owner decides the minimum privacy with which an update is sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.demands import Demands
from federated.client.device import Device
from federated.client.nodes import device_from
from federated.client.state import StateStore
from federated.errors import FederatedError
from federated.messages.packed import unpack
from federated.run import run
from federated.server.federation import Federation
from federated.transport.local import run_here
from tests.federated.fleets import BUNDLE, config, fleet

MADE = fleet(1)
LOCAL = {"clip": 0.5, "noise": "local", "multiplier": 1.0}
CENTRAL = {**LOCAL, "noise": "central"}


def asked(demands: Demands, privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a round with such a section [privacy]."""
    message = Federation.begin(config(privacy=privacy), MADE.start).work(1)
    data = MADE.shards["device-00"]
    made = Device("device-00", MADE.learner, data, StateStore(), BUNDLE, demands=demands)
    return unpack(made.answer(message))[0]


@pytest.mark.parametrize(
    ("demands", "less", "enough"),
    [
        ({"most_clip": 1.0}, {}, {"clip": 1.0}),
        ({"most_clip": 1.0}, {"clip": 1.5}, LOCAL),
        ({"least_noise": 1.0}, {**LOCAL, "multiplier": 0.9}, CENTRAL),
        ({"least_noise": 1.0}, {"clip": 0.5}, LOCAL),
        ({"least_own_noise": 1.0}, CENTRAL, LOCAL),
    ],
)
def test_a_server_that_offers_less_is_declined_with_the_demand(
    demands: dict[str, Any], less: dict[str, Any], enough: dict[str, Any]
) -> None:
    declined = asked(Demands(**demands), less)
    assert declined["kind"] == "refusal" and f"demands {next(iter(demands))}: expected" in declined["why"]
    assert asked(Demands(**demands), enough)["kind"] == "update"


@pytest.mark.parametrize("demands", [{"secure_only": True}, {"least_devices": 2}])
def test_single_updates_are_declined(demands: dict[str, Any]) -> None:
    assert f"demands {next(iter(demands))}: expected a secure sum" in asked(Demands(**demands), LOCAL)["why"]


@pytest.mark.parametrize(("least", "refused"), [(4, 0), (5, 1)])
def test_a_sum_of_too_few_devices_is_declined(least: int, refused: int) -> None:
    """Of five devices four may be left in the end: more than two thirds."""
    made, store = fleet(5), StateStore()
    devices = {name: Device(name, made.learner, data, store, BUNDLE) for name, data in made.shards.items()}
    devices["device-02"].demands = Demands(least_devices=least, secure_only=True)
    words = config(privacy={"secure": True, "clip": 1.0}, rounds={"count": 1})
    ended: list[Federation] = []
    run_here(lambda exchange: ended.append(run(words, made.start, exchange)), devices)
    row = ended[0].rows[0]
    assert (row["answered"], sum(row["refused"].values())) == (5 - refused, refused)
    assert ("least_devices" in " ".join(row["details"])) == bool(refused)


def test_settings_of_a_node() -> None:
    words = {"most_clip": 2, "least_noise": 0.5, "secure_only": True, "least_devices": 10, "device": "kitchen"}
    assert Demands.of(words) == Demands(2, 0.5, 0.0, True, 10)
    assert Demands.of({}) == Demands()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"most_clip": "1"}, "most_clip: expected a number above 0"),
        ({"most_clip": 0.0}, "above 0"),
        ({"least_noise": -1.0}, "least_noise"),
        ({"least_noise": float("nan")}, "least_noise"),
        ({"secure_only": "yes"}, "secure_only: expected true"),
        ({"least_devices": True}, "least_devices: expected a whole"),
        ({"least_devices": -1}, "of at least 0, got -1"),
    ],
)
def test_invalid_settings(words: dict[str, object], says: str) -> None:
    with pytest.raises(FederatedError, match=says):
        Demands.of(words)


def test_a_node_follows_its_owners_demands(tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    from cloud.zoo import mlp
    from converter import convert

    convert(mlp(4, 3, hidden=()), output=tmp_path / "model.mslite", trainable="*")
    np.savez(tmp_path / "kitchen.npz", x=np.ones((5, 4), np.float32), labels=np.arange(5) % 3)
    words = {"device": "kitchen", "bundle": str(tmp_path / "model.mslite"), "data": str(tmp_path)}
    words["state"] = str(tmp_path / "state")
    made = device_from({**words, "most_clip": 1, "secure_only": True, "consent": "backup"})
    assert (made.demands, made.consent) == (Demands(most_clip=1, secure_only=True), "backup")
    assert device_from(words).demands == Demands()
    x, who = np.ones((5, 4), np.float32), ["kitchen", "hall", "kitchen", "hall", "hall"]
    np.savez(tmp_path / "all.npz", x=x, y=np.arange(5) % 3, who=who)
    named = device_from({**words, "data": str(tmp_path / "all.npz"), "labels": "y", "owners": "who"})
    assert named.data.labels.tolist() == [0, 2]


def test_a_misspelt_demand_is_refused(tmp_path: Path) -> None:
    words = dict.fromkeys(("device", "bundle", "data", "state"), str(tmp_path / "none"))
    with pytest.raises(FederatedError, match="no such key 'least_nois'"):
        device_from({**words, "least_nois": 1.0})
