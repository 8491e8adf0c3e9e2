"""Statistics of simulated devices against the same computed from all data in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.client.demands import Demands
from federated.client.nodes import device_from
from federated.errors import FederatedError
from federated.learner import Batch
from federated.privacy.accountant import Accountant
from federated.run import serve
from federated.runs import of_file, parse, simulate
from federated.transport.local import run_here

WORDS = ["hello", "help", "world", "zebra", "hé"]
SHARES = [0.4, 0.3, 0.2, 0.06, 0.04]
MEAN = {"kind": "mean", "feature": "x", "column": 1, "low": -5.0, "high": 10.0}
HISTOGRAM = {"kind": "histogram", "feature": "labels", "low": 0.0, "high": 3.0, "bins": 3}
QUANTILES = {"kind": "quantiles", "feature": "x", "column": 1, "low": -5.0, "high": 10.0, "bins": 1024}
HITTERS = {"kind": "heavy_hitters", "feature": "w", "longest": 6, "threshold": 2.0}


def fleet(devices: int = 8, examples: int = 30) -> dict[str, Batch]:
    rng = np.random.default_rng(0)
    return {
        f"d{at:03}": Batch(
            {"x": rng.normal(at % 5, 1, (examples, 2)), "w": rng.choice(WORDS, examples, p=SHARES)},
            rng.integers(0, 3, examples),
        )
        for at in range(devices)
    }


def results(*statistics: dict[str, Any], data: dict[str, Batch] | None = None, **sections: Any) -> Any:
    run = parse({"analytics": list(statistics), **sections})
    assert run is not None
    return simulate(run, data or fleet())


def everything(data: dict[str, Batch]) -> np.ndarray:
    return np.concatenate([each.inputs["x"][:, 1] for each in data.values()])


@pytest.mark.parametrize("secure", [False, True])
def test_without_noise_statistics_are_those_of_all_data(secure: bool) -> None:
    data = fleet()
    values = everything(data)
    mean, histogram, quantiles, hitters = results(
        MEAN, HISTOGRAM, QUANTILES, {**HITTERS, "weight": "examples", "most": 100}, privacy={"secure": secure}
    )["results"]
    assert mean["mean"] == pytest.approx(values.mean(), abs=1e-5) and mean["error"] == 0
    assert mean["standard_deviation"] == pytest.approx(values.std(), abs=1e-5)
    labels = np.concatenate([each.labels for each in data.values()])
    np.testing.assert_allclose(histogram["counts"], np.bincount(labels) / 30, atol=1e-5)
    for found in quantiles["quantiles"]:
        assert abs(found["value"] - np.quantile(values, found["at"])) <= 2 * 15 / 1024
    words = np.concatenate([each.inputs["w"] for each in data.values()])
    counted = {word["word"]: round(word["weight"]) for word in hitters["words"]}
    assert counted == dict(zip(*map(np.ndarray.tolist, np.unique(words, return_counts=True)), strict=True))


def test_plain_and_secure_sums_give_the_same_bits() -> None:
    plain, secure = (results(MEAN, HISTOGRAM, privacy={"secure": secure})["results"] for secure in (False, True))
    assert plain == secure


def test_words_are_cut_and_counted_together_where_asked() -> None:
    found = results({**HITTERS, "longest": 3})["results"][0]["words"]
    assert (found[0]["word"], found[0]["cut"]) == ("hel", True)
    assert found[0]["weight"] > 5


def test_central_noise_is_charged_and_its_error_is_true() -> None:
    data, found = fleet(40, 5), []
    for _ in range(60):
        made = results(MEAN, data=data, privacy={"noise": "central", "multiplier": 1.0})
        found.append(made["results"][0]["mean"])
        assert made["epsilon"] == Accountant().charge(1.0).epsilon(1e-5)
    assert np.std(found) == pytest.approx(made["results"][0]["error"], rel=0.35)
    assert np.mean(found) == pytest.approx(everything(data).mean(), abs=4 * np.std(found) / np.sqrt(60))


def test_a_budget_covers_the_whole_run() -> None:
    made = results(MEAN, HISTOGRAM, HITTERS, data=fleet(30, 5),
                   privacy={"noise": "central", "epsilon": 20.0})  # fmt: skip
    assert 8 >= made["questions"] >= 3 and made["epsilon"] <= 20.0
    assert Accountant().charge(made["multiplier"], rounds=8).epsilon(1e-5) == pytest.approx(20.0, rel=0.01)


def test_local_noise_is_added_by_the_devices() -> None:
    made = results(HISTOGRAM, data=fleet(30, 5), privacy={"noise": "local", "multiplier": 1.0})
    assert made["results"][0]["error"] == pytest.approx(2 * np.sqrt(30))
    assert made["epsilon"] == Accountant().charge(1.0).epsilon(1e-5)


def test_nan_is_left_out_and_values_outside_the_range_count_at_its_ends() -> None:
    data = {"a": Batch({"x": np.array([np.nan, 5.0, -100.0, np.inf])}, np.zeros(4))}
    made = results({"kind": "histogram", "feature": "x", "low": 0.0, "high": 10.0, "bins": 2}, data=data)
    np.testing.assert_allclose(made["results"][0]["counts"], [1 / 3, 2 / 3], atol=1e-6)


def test_a_device_counts_no_more_examples_than_allowed() -> None:
    made = results({**HISTOGRAM, "weight": "examples", "most": 10})
    assert sum(made["results"][0]["counts"]) == pytest.approx(80)


@pytest.mark.parametrize(
    ("demands", "privacy", "declined"),
    [
        ({"features_only": "x w"}, {}, "features_only"),
        ({"secure_only": True}, {}, "secure_only"),
        ({"secure_only": True}, {"secure": True}, ""),
        ({"least_noise": 1.0}, {"noise": "central", "multiplier": 0.5}, "least_noise"),
        ({"least_own_noise": 1.0}, {"noise": "local", "multiplier": 1.0}, ""),
        ({"most_clip": 0.5}, {}, "most_clip"),
        ({"least_devices": 9}, {"secure": True}, "least_devices"),
        ({"malicious_only": True}, {"secure": True, "model": "honest-but-curious"}, "malicious_only"),
    ],
)
def test_what_an_owner_demands_is_obeyed(demands: Any, privacy: Any, declined: str) -> None:
    run = parse({"analytics": [HISTOGRAM], "privacy": privacy})
    assert run is not None
    made = simulate(run, fleet(), demands={"d003": Demands(**demands)})
    row = made["rows"][0]
    assert row["answered"] == 8 - bool(declined)
    assert not declined or any("d003" in detail and f"demands {declined}" in detail for detail in row["details"])


@pytest.mark.parametrize("lost_from", [2, 3, 4, 5])
def test_a_device_that_is_lost_during_a_secure_sum_is_left_out_or_counted(lost_from: int) -> None:
    """Its answers: 0 hello, 1 keys, 2 shares, 3 its contribution, 4 signature, 5 reveal."""
    run = parse({"analytics": [HISTOGRAM], "privacy": {"secure": True}, "rounds": {"deadline": 5.0}})
    assert run is not None
    data = fleet()
    delay = lambda name, nth: float("inf") if name == "d003" and nth >= lost_from else 0.0  # noqa: E731
    made = simulate(run, data, delay=delay)
    result = made["results"][0]
    assert result["devices"] == (8 if lost_from > 3 else 7)
    there = [each.labels for name, each in data.items() if name != "d003" or lost_from > 3]
    np.testing.assert_allclose(result["counts"], np.bincount(np.concatenate(there)) / 30, atol=1e-5)


def test_too_few_answers_end_the_run() -> None:
    run = parse({"analytics": [HISTOGRAM], "rounds": {"quorum": 0.9, "attempts": 2}})
    assert run is not None
    demands = {name: Demands(features_only="x") for name in ("d001", "d002")}
    with pytest.raises(FederatedError, match=r"question 2: 6 of 8 devices answered, expected 8.*features_only"):
        simulate(run, fleet(), demands=demands)


@pytest.mark.parametrize(
    ("statistic", "sections", "why"),
    [
        ({**MEAN, "bins": 3}, {}, "analytics.bins: has no effect on mean"),
        ({**MEAN, "most": 3}, {}, "analytics.most"),
        ({"kind": "mean", "feature": "x"}, {}, "analytics.low: expected a number"),
        ({**MEAN, "high": -9.0}, {}, "analytics.high"),
        ({**QUANTILES, "bins": 100}, {}, "a power of two"),
        ({**HISTOGRAM, "weight": "examples"}, {"privacy": {"noise": "central", "multiplier": 1.0}}, "analytics.most"),
        (MEAN, {"privacy": {"noise": "central"}}, "one of multiplier and epsilon"),
        (MEAN, {"rounds": {"count": 3}}, "rounds.count: no such key"),
        (MEAN, {"trees": {}}, "expected one of"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(statistic: Any, sections: Any, why: str) -> None:
    with pytest.raises(FederatedError, match=why.replace("[", r"\[")):
        parse({"analytics": [statistic], **sections})


def test_a_run_from_a_file_with_labels_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", labels=np.array(["a", "b", "a", "c"]), device=np.array(["p", "p", "q", "q"]))
    (tmp_path / "run.toml").write_text(
        '[data]\nshards = "d.npz"\n[[analytics]]\nkind = "heavy_hitters"\nfeature = "labels"\nname = "words"\n'
        '[report]\njson = "out.json"\n'
    )
    run = of_file(tmp_path / "run.toml")
    assert run is not None
    made = simulate(run, run.shards())
    assert [word["word"] for word in made["results"][0]["words"]] == ["a"]
    assert json.loads((tmp_path / "out.json").read_text())["results"] == made["results"]


def test_a_server_app_runs_it_on_nodes_without_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(8.0), labels=np.zeros(8), device=np.repeat(["p", "q"], 4))
    (tmp_path / "run.toml").write_text(
        '[[analytics]]\nkind = "mean"\nfeature = "x"\nlow = 0\nhigh = 7\n[privacy]\nsecure = true\n'
    )
    words = {"bundle": "", "data": str(tmp_path / "d.npz"), "features_only": "x"}
    devices = {
        name: device_from({**words, "device": name, "state": str(tmp_path / f"{name}.state")}) for name in ("p", "q")
    }
    run_here(lambda exchange: serve(exchange, {"config": str(tmp_path / "run.toml")}) and None, devices)
    assert json.loads(capsys.readouterr().out)["mean"] == pytest.approx(3.5, abs=1e-5)
