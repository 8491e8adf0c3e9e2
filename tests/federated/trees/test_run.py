"""Trees grown over devices against the same from pooled data, XGBoost's `hist`, and the converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import convert
from federated.client.demands import Demands
from federated.errors import FederatedError
from federated.learner import Batch
from federated.privacy.accountant import Accountant
from federated.runs import parse, simulate
from federated.tree import Array

CANCER = {"objective": "binary:logistic", "features": 30, "n_estimators": 20, "max_depth": 3}
DIGITS = {"objective": "multi:softprob", "features": 64, "classes": 10, "n_estimators": 8, "max_depth": 4,
          "max_bin": 17}  # fmt: skip
DIABETES = {"objective": "reg:squarederror", "features": 10, "n_estimators": 12, "max_depth": 3,
            "label_low": 0.0, "label_high": 400.0}  # fmt: skip
GRID = {"edges": "uniform", "low": [-0.5], "high": [16.5], "max_bin": 17}
"""Edges between all whole numbers from 0 to 16, which are digits' pixels."""


def loaded(name: str) -> tuple[Array, Array, Array, Array]:
    """Inputs and labels to train with, then to test with."""
    datasets = pytest.importorskip("sklearn.datasets")
    found = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = found.data.astype(np.float32)[order], found.target[order]
    cut = len(y) * 3 // 4
    return x[:cut], y[:cut], x[cut:], y[cut:]


def divided(x: Array, y: Array, devices: int = 20) -> dict[str, Batch]:
    """Unequal devices, sorted by label: each has few classes."""
    order = np.argsort(y, kind="stable")
    cuts = np.sort(np.random.default_rng(1).choice(np.arange(1, len(y)), devices - 1, replace=False))
    return {f"d{at:02}": Batch({"x": x[part]}, y[part]) for at, part in enumerate(np.split(order, cuts))}


def grown(words: dict[str, Any], data: dict[str, Batch], demands: Any = None, **sections: Any) -> dict[str, Any]:
    run = parse({"trees": words, **sections})
    assert run is not None
    return simulate(run, data, demands=demands)


def predicted(model: str, x: Array) -> Array:
    library = pytest.importorskip("xgboost")
    booster = library.Booster()
    booster.load_model(bytearray(model.encode()))
    return np.asarray(booster.predict(library.DMatrix(x)))


def theirs(words: dict[str, Any], x: Array, y: Array, unseen: Array, **more: Any) -> Array:
    """XGBoost's own predictions with the same settings."""
    library = pytest.importorskip("xgboost")
    known = ("objective", "max_depth", "learning_rate", "max_bin", "gamma", "reg_lambda", "min_child_weight")
    settings = {key: words[key] for key in known if key in words} | {"tree_method": "hist", "nthread": 1} | more
    settings |= {"num_class": words["classes"]} if "classes" in words else {}
    trained = library.train(settings, library.DMatrix(x, y), words["n_estimators"])
    return np.asarray(trained.predict(library.DMatrix(unseen)))


def hits(found: Array, labels: Array) -> float:
    return float(((found.argmax(1) if found.ndim == 2 else found > 0.5) == labels).mean())


@pytest.mark.parametrize(("name", "words"), [("breast_cancer", CANCER), ("digits", DIGITS), ("diabetes", DIABETES)])
def test_twenty_devices_grow_the_trees_of_pooled_data(name: str, words: dict[str, Any]) -> None:
    x, y, _, _ = loaded(name)
    words = {**words, "n_estimators": 4, "bits": 16, "colsample_bytree": 0.7}
    assert grown(words, divided(x, y))["model"] == grown(words, {"all": Batch({"x": x}, y)})["model"]


def test_secure_sums_grow_the_same_trees() -> None:
    x, y, _, _ = loaded("breast_cancer")
    words = {**CANCER, "n_estimators": 2}
    plain, secure = (grown(words, divided(x, y, 5), privacy={"secure": on}) for on in (False, True))
    assert plain["model"] == secure["model"] and secure["devices"] == 5


@pytest.mark.parametrize(("name", "words"), [("breast_cancer", CANCER), ("digits", DIGITS)])
def test_accuracy_is_within_a_point_of_xgboost(name: str, words: dict[str, Any]) -> None:
    x, y, unseen, wanted = loaded(name)
    found = hits(predicted(grown(words, divided(x, y))["model"], unseen), wanted)
    assert found >= hits(theirs(words, x, y, unseen), wanted) - 0.01 and found > 0.9


def test_a_regression_is_as_good_as_xgboosts() -> None:
    x, y, unseen, wanted = loaded("diabetes")
    model = grown(DIABETES, divided(x, y))["model"]
    ours, other = predicted(model, unseen), theirs(DIABETES, x, y, unseen, base_score=200.0)
    errors = [float(np.sqrt(((each - wanted) ** 2).mean())) for each in (ours, other)]
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("settings", [{}, {"gamma": 2.0}, {"reg_lambda": 5.0, "min_child_weight": 4.0}])
def test_with_the_same_edges_predictions_are_xgboosts(settings: dict[str, Any]) -> None:
    """Pixels are whole numbers: all partitions by one threshold are possible on both sides."""
    x, y, unseen, _ = loaded("digits")
    words = {**CANCER, **GRID, "features": 64, "n_estimators": 5, "base_score": 0.5, **settings}
    labels = (y % 2).astype(np.int64)
    ours = predicted(grown(words, divided(x, labels))["model"], unseen)
    wanted = theirs({**words, "max_bin": 256}, x, labels, unseen, base_score=0.5)
    np.testing.assert_allclose(ours, wanted, atol=2e-3)


def test_missing_values_go_where_xgboost_sends_them() -> None:
    x, y, _, _ = loaded("digits")
    x = np.where(np.random.default_rng(2).random(x.shape) < 0.2, np.float32(np.nan), x)
    words = {**CANCER, **GRID, "features": 64, "n_estimators": 2}  # no two splits of a node have equal gains in these
    labels = (y > 4).astype(np.int64)
    ours = predicted(grown(words, divided(x, labels))["model"], x)
    np.testing.assert_allclose(ours, theirs({**words, "max_bin": 256}, x, labels, x, base_score=0.5), atol=2e-3)


@pytest.mark.parametrize(("name", "words"), [("breast_cancer", CANCER), ("digits", DIGITS), ("diabetes", DIABETES)])
def test_the_converted_bundle_predicts_the_same(name: str, words: dict[str, Any]) -> None:
    x, y, unseen, _ = loaded(name)
    model = grown({**words, "n_estimators": 3}, divided(x, y, 4))["model"]
    (found,) = lite_runtime.load(convert(model.encode()).bundle).run({"x": unseen}).values()
    wanted = predicted(model, unseen)
    np.testing.assert_allclose(np.reshape(found, wanted.shape), wanted, rtol=2e-6, atol=2e-6)


def test_owners_and_noise() -> None:
    x, y, _, _ = loaded("breast_cancer")
    words = {**CANCER, "n_estimators": 1, "most": 20}
    made = grown(words, divided(x, y, 6), {"d01": Demands(features_only="x")},
                 privacy={"noise": "central", "multiplier": 0.01})  # fmt: skip
    assert any("d01" in detail and "features_only" in detail for detail in made["rows"][-1]["details"])
    assert made["epsilon"] == Accountant().charge(0.01, rounds=made["questions"]).epsilon(1e-5)


@pytest.mark.parametrize(
    ("words", "sections", "why"),
    [
        ({"classes": 3}, {}, "trees.classes"),
        ({"label_low": 0.0, "label_high": 1.0}, {}, "trees.label_low"),
        ({"base_score": 1.0}, {}, "a probability"),
        ({"low": [0.0, 1.0], "high": [1.0, 2.0]}, {}, "one for each of the features"),
        ({"max_depth": 0}, {}, "trees.max_depth"),
        ({"objective": "rank:pairwise"}, {}, "trees.objective"),
        ({}, {"privacy": {"noise": "central", "epsilon": 1.0}}, "trees.most"),
        ({}, {"report": {"bundle": "x"}}, "report.bundle: no such key"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(words: Any, sections: Any, why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        parse({"trees": {**CANCER, **words}, **sections})


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (Batch({"x": np.zeros((3, 29), np.float32)}, np.zeros(3)), "expected 29 columns of 'x', got 30"),
        (Batch({"z": np.zeros((3, 30), np.float32)}, np.zeros(3)), "trees.input: expected one of z"),
        (Batch({"x": np.zeros((3, 30), np.float32)}, np.array([0, 1, 2])), "classes from 0 to 1"),
        (Batch({"x": np.zeros((3, 30), np.float32)}, np.array([0.5, 1, 0])), "classes from 0 to 1"),
    ],
)
def test_devices_with_other_data_decline(batch: Batch, why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        grown({**CANCER, "n_estimators": 1}, {"d0": batch}, rounds={"attempts": 1})


class Stopped(Exception):
    """The server ends."""


def stopped_after(words: dict[str, Any], data: dict[str, Batch], rounds: int, folder: Path, **sections: Any) -> Any:
    """A run that ends in the round after `rounds`, and the same configuration, to go on with."""
    run = parse({"trees": words, "state": {"checkpoint": "kept"}, **sections}, folder)
    assert run is not None

    def watch(row: dict[str, Any]) -> None:
        if row["round"] == rounds:
            raise Stopped

    with pytest.raises(Stopped):
        simulate(run, data, watch)
    return run


def test_a_resumed_run_grows_the_same_trees(tmp_path: Path) -> None:
    x, y, _, _ = loaded("digits")
    words = {**DIGITS, "n_estimators": 3, "max_depth": 2, "colsample_bytree": 0.5}
    data = divided(x, y, 5)
    run = stopped_after(words, data, 2, tmp_path)
    resumed, whole = simulate(run, data, resume=True), grown(words, data)
    assert resumed["model"] == whole["model"] and resumed["results"] == whole["results"]
    assert resumed["questions"] == whole["questions"]


def test_a_repeated_round_is_charged(tmp_path: Path) -> None:
    x, y, _, _ = loaded("breast_cancer")
    words = {**CANCER, "n_estimators": 3, "max_depth": 2, "most": 20}
    data, noise = divided(x, y, 3), {"noise": "central", "multiplier": 0.001}
    run = stopped_after(words, data, 2, tmp_path, privacy=noise)
    resumed = simulate(run, data, resume=True)
    assert resumed["epsilon"] == Accountant().charge(0.001, rounds=resumed["questions"] + 2).epsilon(1e-5)


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    x, y, _, _ = loaded("breast_cancer")
    words = {**CANCER, "n_estimators": 2, "max_depth": 1}
    data = divided(x, y, 3)
    stopped_after(words, data, 1, tmp_path)
    for changed, why in (({"max_bin": 32}, "with these settings"), ({"n_estimators": 3}, "")):
        run = parse({"trees": {**words, **changed}, "state": {"checkpoint": "kept"}}, tmp_path)
        assert run is not None
        if not why:
            assert len(simulate(run, data, resume=True)["results"]) == 3
            continue
        with pytest.raises(FederatedError, match=why):
            simulate(run, data, resume=True)
    kept = bytearray((tmp_path / "kept").read_bytes())
    kept[-1] ^= 1
    (tmp_path / "kept").write_bytes(kept)
    with pytest.raises(FederatedError, match="damaged"):
        simulate(run, data, resume=True)
    with pytest.raises(FederatedError, match="devices mask an answer once"):
        parse({"trees": words, "state": {"checkpoint": "kept"}, "privacy": {"secure": True}})
