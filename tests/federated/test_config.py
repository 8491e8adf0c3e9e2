"""Configurations: their values, and errors that name the key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from federated.config import TEMPLATE, Config, parse, read
from federated.errors import FederatedError

MODEL = {"model": {"bundle": "m.mslite"}}


def test_the_template_shows_the_defaults() -> None:
    made = parse(tomllib.loads(TEMPLATE))
    uncommented = "\n".join(line.removeprefix("# ") if "=" in line else line for line in TEMPLATE.splitlines()[2:])
    everything = parse(tomllib.loads(uncommented))
    sections = ("data", "local", "rounds", "evaluation", "codec", "limits", "state", "sync", "report", "transforms")
    for section in sections:
        assert getattr(everything, section) == getattr(made, section), section


def test_values_of_the_file_are_read() -> None:
    made = parse({**MODEL, "algorithm": {"name": "fedprox", "mu": 1}, "rounds": {"fraction": 1, "mode": "async"},
                  "async": {"size": 3}, "codec": {"up": ["int8"]}})  # fmt: skip
    assert made.algorithm.name == "fedprox" and made.rounds.fraction == 1.0 and made.buffer.size == 3
    assert made.transforms.codec.values.name == "int8" and made.transforms.asynchronous


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[model]\nbundle = "m.mslite"\n')
    made = read(tmp_path / "run.toml")
    assert isinstance(made, Config)
    assert made.path(made.model.bundle) == tmp_path / "m.mslite"


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({}, r"\[model\].*bundle"),
        ({"model": {}}, r"model\.bundle"),
        ({"model": 3}, "model: expected a section"),
        ({**MODEL, "round": {}}, r"\[round\].*did you mean 'rounds'"),
        ({**MODEL, "rounds": {"cuont": 1}}, r"rounds\.cuont.*did you mean 'count'"),
        ({**MODEL, "rounds": {"count": 0}}, r"rounds\.count: expected a whole number of at least 1, got 0"),
        ({**MODEL, "rounds": {"count": 1.5}}, r"rounds\.count: expected a whole number"),
        ({**MODEL, "rounds": {"count": True}}, r"rounds\.count: expected a whole number"),
        ({**MODEL, "rounds": {"fraction": "all"}}, r"rounds\.fraction: expected a number"),
        ({**MODEL, "rounds": {"fraction": float("nan")}}, r"rounds\.fraction"),
        ({**MODEL, "rounds": {"fraction": 1.5}}, r"rounds\.fraction"),
        ({**MODEL, "rounds": {"mode": "fast"}}, r"rounds\.mode: expected 'sync' or 'async'"),
        ({**MODEL, "rounds": {"compensate": 1}}, r"rounds\.compensate: expected true or false"),
        ({**MODEL, "codec": {"up": "int8"}}, r"codec\.up: expected a list"),
        ({**MODEL, "codec": {"up": ["int9"]}}, "int9"),
        ({**MODEL, "codec": {"down": ["topk:0.1"]}}, r"codec\.down.*only with .difference"),
        ({**MODEL, "algorithm": {"name": "fedavgg"}}, "fedavgg"),
        ({**MODEL, "algorithm": {"name": "fedavg", "speed": 1}}, "speed"),
        ({**MODEL, "robust": {"rule": "vote"}}, "vote"),
        ({**MODEL, "robust": {"rule": "krum"}, "privacy": {"secure": True, "clip": 1.0}}, "secure sums with a robust"),
        ({**MODEL, "privacy": {"noise": "central", "multiplier": 1.0}}, "clip"),
        ({**MODEL, "privacy": {"noise": "central", "multiplier": 1.0, "clip": 1, "sampling": "poisson"},
          "rounds": {"over_selection": 0.5}}, "over_selection"),
        ({**MODEL, "algorithm": {"name": "qfedavg"}, "codec": {"up": ["topk:0.1"]}}, "qfedavg with a sparse codec"),
        ({**MODEL, "algorithm": {"name": "qfedavg"}, "robust": {"rule": "median"}}, "qfedavg with a robust rule"),
        ({**MODEL, "algorithm": {"name": "qfedavg"}, "privacy": {"clip": 1.0, "noise": "central", "multiplier": 1.0}},
         "qfedavg with noise"),
        ({**MODEL, "data": {"test": 1.0}}, r"data\.test"),
        ({**MODEL, "limits": {"norm": 0.0}}, r"limits\.norm"),
        ({**MODEL, "evaluation": {"batch": 0}}, r"evaluation\.batch"),
        ({**MODEL, "sync": {"days": -1}}, r"sync\.days"),
        ({**MODEL, "async": {"size": 0}}, r"async\.size"),
        ({**MODEL, "async": {"size": 5}}, r'async\.size: has no effect without rounds\.mode = "async"; got 5; omit it'),
        ({**MODEL, "rounds": {"mode": "async", "quorum": 0.9}}, r"rounds\.quorum: has no effect without"),
        ({**MODEL, "rounds": {"mode": "async", "fraction": 0.1}}, r"rounds\.fraction: .*async\.concurrency"),
        ({**MODEL, "sync": {"only": ["head*"]}}, r"sync\.only: has no effect without sync\.store; got \['head\*'\]"),
        ({**MODEL, "sync": {"consent": "serve"}}, r"sync\.consent: has no effect without sync\.store"),
        ({**MODEL, "sync": {"store": "s", "consent": "yes"}}, r"sync\.consent: expected 'none' or 'backup' or"),
        ({**MODEL, "privacy": {"epsilon": 3.0}}, r"privacy\.epsilon: has no effect without privacy\.noise"),
        ({**MODEL, "privacy": {"threshold": 0.9}}, r"privacy\.threshold: has no effect without privacy\.secure"),
    ],
)  # fmt: skip
def test_errors_name_the_key(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(FederatedError, match=says):
        parse(sections)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FederatedError, match="--init"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(FederatedError, match="TOML"):
        read(tmp_path / "bad.toml")
