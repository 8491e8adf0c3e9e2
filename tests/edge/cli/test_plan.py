"""`msedge plan`: a plan of a run's step, checked against what compiles."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.edge.cli.test_train import CONFIG, msedge


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plan")
    np.savez(made / "d.npz", x=np.zeros((64, 4), np.float32), labels=np.zeros(64, np.int64))
    (made / "run.toml").write_text(CONFIG.replace("batch = 10", "batch = 16"))
    return made / "run.toml"


def test_a_plan_that_compiles_as_predicted(config: Path) -> None:
    out, _ = msedge("plan", config, "--topology", "cpu8", "--memory", "1GiB", "--check", "cpu", "--json")
    made = json.loads(out)
    assert made["devices"] == 8 and int(np.prod(made["mesh"])) == 8 and made["check"]["fits"]
    assert made["peak_bytes"] > 0 and made["step_seconds"] >= made["compute_seconds"] > 0
    assert any("layer0.weight" in name and value["shape"] == [8, 4] for name, value in made["entering"].items())
    text, _ = msedge("plan", config, "--topology", "cpu8")
    assert "8 devices as" in text and "a device at most" in text


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--topology", "nowhere"], "expected a TOML file or one of"),
        (["--topology", "cpu8", "--memory", "much"], "--memory: expected bytes"),
        (["--topology", "cpu8", "--memory", "1"], "the least"),
    ],
)
def test_mistakes(config: Path, words: list[str], expected: str) -> None:
    _, err = msedge("plan", config, *words, code=3)
    assert expected in err
