"""`msedge run` and `msedge inspect` of bundles with state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.edge.test_cli import SLOWLY, as_json, msedge
from tests.lite_runtime.learners import learner


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "m.mslite").write_bytes(learner())
    return tmp_path / "m.mslite"


def test_run_goes_on_where_it_left_off(path: Path, tmp_path: Path) -> None:
    state = tmp_path / "mine.msstate"
    np.save(tmp_path / "by.npy", np.array(2, np.int64))
    count = ["run", path, "--signature", "count", "-i", f"by={tmp_path / 'by.npy'}", "--save-state", state, *SLOWLY]
    for known, seen in (([], 0), (["--state", state], 4), (["--state", state], 8)):
        assert as_json(*count, *known)["outputs"]["seen"]["values"] == seen
    assert "state saved in" in msedge(*count)[1]


def test_state_of_another_model(path: Path, tmp_path: Path) -> None:
    _, stderr = msedge("run", path, "--random", "1", "--state", path, *SLOWLY, code=3)
    assert "not a state file" in stderr


def test_inspect_shows_the_state(path: Path) -> None:
    made = as_json("inspect", path)
    assert [state["name"] for state in made["state"]] == ["b", "hyper/learning_rate", "n", "w"]
    assert made["state"][0]["written"] == ["shift", "train_step"] and made["state"][3]["bytes"] == 60
    step = made["signatures"]["train_step"]
    assert [v["name"] for v in step["inputs"]] == ["x", "t"] and step["writes"] == {"new_b": "b", "new_w": "w"}
    stdout, _ = msedge("inspect", path)
    assert "4 arrays, 84 B, preserved between runs" in stdout and "reads 3 and writes 2 of the state" in stdout
