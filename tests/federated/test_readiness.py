"""Settings of a bundle that a run would ignore, and algorithms that bundles cannot compute, are refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.zoo import mlp
from converter import convert
from converter.training.options import USUAL, Training
from federated.config import Config, parse
from federated.errors import FederatedError
from federated.readiness import check
from federated.run import fleet_of, simulate
from lite_runtime import bundle
from tests.federated.fleets import config, fleet


def bundled(**settings: Any) -> bytes:
    return bytes(convert(mlp(4, 3), trainable=Training("*", **settings)).bundle)


def words(**algorithm: Any) -> Config:
    return parse({"model": {"bundle": "m.mslite"}, "algorithm": {"name": "fedavg", **algorithm}})


CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"clip_norm": 1.0}, {"clip_norm": 1.0}, r"--clip-norm 1\.0, which only its own train_step.*state clip_norm in"),
    ({"clip_value": 0.5}, {"clip_norm": 1.0}, "state clip_norm"),
    ({"weight_decay": 0.01}, {"weight_decay": 0.0}, "state weight_decay in .algorithm., or convert the model without"),
    ({"optimizer": "adam"}, {"momentum": 0.0}, r"--optimizer adam, .*state momentum.*adaptive server \(fedadam"),
    ({"nesterov": True}, {"momentum": 0.9}, "state momentum"),
    ({"learning_rate": 0.3}, {"rate": 0.3}, r"--learning-rate 0\.3, .*state rate in"),
    ({"learning_rate": 0.3}, {"name": "perfedavg", "beta": 0.3}, r"--learning-rate 0\.3, .*state beta in"),
]


@pytest.mark.parametrize(("settings", "stated", "says"), CASES)
def test_a_setting_of_the_bundle_must_be_stated(settings: dict[str, Any], stated: dict[str, Any], says: str) -> None:
    held = bundle.read(bundled(**settings))
    name = {key: value for key, value in stated.items() if key == "name"}
    with pytest.raises(FederatedError, match=says):
        check(words(**name), held)
    check(words(**stated), held)


def test_what_an_algorithm_lacks_cannot_be_stated() -> None:
    held = bundle.read(bundled(optimizer="adam"))
    with pytest.raises(FederatedError, match="perfedavg takes its own steps: convert the model without --optimizer"):
        check(words(name="perfedavg"), held)


def test_defaults_are_not_recorded_and_plain_sgd_is_what_devices_do() -> None:
    assert "train_step" not in bundle.read(bundled()).metadata
    check(words(), bundle.read(bundled()))
    check(words(), bundle.read(bundled(optimizer="sgd")))
    alone = bundle.read(bundled(clip_norm=1.0, signatures=("gradients", "evaluate", "predict")))
    check(words(), alone)


def test_a_run_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "m.mslite").write_bytes(bundled(clip_norm=1.0))
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 4), np.float32), labels=[0, 1, 2, 0], device=["a", "a", "b", "b"])
    said = {"model": {"bundle": "m.mslite"}, "data": {"shards": "d.npz"}}
    with pytest.raises(FederatedError, match="--clip-norm"):
        fleet_of(parse(said, tmp_path))
    assert len(fleet_of(parse({**said, "algorithm": {"name": "fedavg", "clip_norm": 1.0}}, tmp_path)).shards) == 2


@pytest.mark.parametrize(("name", "instead"), [("maml", "fomaml"), ("meta_sgd_exact", "meta_sgd ")])
def test_second_order_is_refused_before_the_first_round(name: str, instead: str) -> None:
    says = f"algorithm.name: {name} needs exact second-order gradients.*--second-order, or choose {instead}"
    with pytest.raises(FederatedError, match=says):
        check(words(name=name), bundle.read(bundled()))
    with pytest.raises(FederatedError, match=says):
        simulate(config(algorithm={"name": name}), fleet(2))
    check(words(name=name), bundle.read(bundled(signatures=(*USUAL, "curvature"))))


def test_a_bundle_of_second_order_trains_by_maml(tmp_path: Path) -> None:
    (tmp_path / "m.mslite").write_bytes(bundled(signatures=(*USUAL, "curvature")))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    rule = rng.normal(size=(4, 3))
    np.savez(tmp_path / "d.npz", x=x, labels=(x @ rule).argmax(1), device=[f"d{at % 3}" for at in range(120)])
    said = {
        "model": {"bundle": "m.mslite"}, "data": {"shards": "d.npz"}, "rounds": {"count": 12},
        "algorithm": {"name": "maml", "server_rate": 0.1, "rate": 0.2}, "evaluation": {"every": 12},
    }  # fmt: skip
    made = parse(said, tmp_path)
    ended = simulate(made, fleet_of(made))
    assert [row["answered"] for row in ended.rows] == [3] * 12
    summary = ended.rows[-1]["evaluation"]["training"]["summary"]
    assert summary["loss_after"]["mean"] < 0.7 and ended.rows[-1]["loss"] < 0.7 * ended.rows[0]["loss"]
