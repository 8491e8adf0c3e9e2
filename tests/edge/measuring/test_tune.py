"""Tuning a model: every option is timed, only gains are stored, and options that no longer gain are removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.measuring import tune
from edge.measuring.tune import Found
from lite_runtime.native import tuning
from tests.lite_runtime.native.test_tuning import _network


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "path", lambda: str(tmp_path / "tuning.json"))


def test_every_step_with_a_choice_is_timed() -> None:
    data, inputs = _network()
    turns: list[tuple[int, int]] = []
    found = tune.tune(data, inputs, progress=lambda done, of: turns.append((done, of)))
    assert turns[-1] == (tune.ROUNDS, tune.ROUNDS) and len(turns) == tune.ROUNDS
    assert {one.key.split()[1] for one in found} == {"winograd", "panels"}
    for one in found:
        assert one.steps == 1 and 0 < one.best_seconds <= one.rule_seconds
        assert one.best == one.rule or one.best_seconds < one.rule_seconds


def test_a_model_without_choices() -> None:
    from lite_runtime import bundle
    from lite_runtime.graph import Graph, Node, Value

    value = Value("x", "float32", (3,))
    graph = Graph((value,), (Value("y", "float32", (3,)),), (Node("Relu", ("x",), ("y",), {}, "r"),), {}, "g")
    assert tune.tune(bundle.write(None, {"predict": graph}), {"x": np.ones(3, np.float32)}) == []


def test_only_gains_are_kept() -> None:
    tuning.keep({"old": "2", "stays": "4"})
    lucky = Found("lucky", 1, "4", "3", 1e-3, 0.99e-3)
    better = Found("better", 2, "4", "2", 1e-3, 0.8e-3)
    no_more = Found("old", 1, "4", "4", 1e-3, 1e-3)
    path = tune.keep([lucky, better, no_more])
    assert tuning.kept() == {"better": "2", "stays": "4"} and Path(path).exists()
