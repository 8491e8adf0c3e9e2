"""Statistics and trees on a SuperLink and SuperNodes that have no bundle: the same as simulated."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from federated.runs import of_file, simulate
from federated.transport.submit import submit
from tests.federated.fleets import fleet
from tests.federated.transport.test_real import BLOCKER, NAMES, ROOT

sys.path.insert(0, str(ROOT / "examples" / "federated"))

QUESTIONS = """
[data]
shards = "devices.npz"
[[analytics]]
kind = "mean"
feature = "x"
low = -5
high = 5
[privacy]
secure = true
model = "honest-but-curious"
[rounds]
minimum = 3
[report]
json = "questions.json"
"""
TREES = """
[data]
shards = "devices.npz"
[trees]
objective = "multi:softprob"
classes = 3
features = 6
n_estimators = 1
max_depth = 2
edges = "uniform"
low = [-6.0]
high = [6.0]
[rounds]
minimum = 3
[report]
model = "trees.json"
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="test_real looks for processes in /proc")
def test_a_deployment_answers_what_the_simulator_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from local import QUIET, Deployment  # type: ignore[import-not-found]

    monkeypatch.setitem(QUIET, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.5")
    made = fleet(3)
    np.savez(
        tmp_path / "devices.npz",
        x=np.concatenate([data.inputs["x"] for data in made.shards.values()]),
        labels=np.concatenate([data.labels for data in made.shards.values()]),
        device=np.repeat(list(made.shards), 40),
    )
    (tmp_path / "blocker").mkdir()
    (tmp_path / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    for name, text in (("questions", QUESTIONS), ("trees", TREES)):
        (tmp_path / f"{name}.toml").write_text(text)
    with Deployment(tmp_path, {"PYTHONPATH": f"{tmp_path / 'blocker'}:{ROOT}"}) as deployment:
        for name in NAMES:
            deployment.add_node(name, "", tmp_path / "devices.npz")
        for name in ("questions", "trees"):
            submit(tmp_path / f"{name}.toml", deployment.address, certificates=deployment.keys / "ca.crt")
    results = json.loads((tmp_path / "questions.json").read_text())["results"]
    trees = (tmp_path / "trees.json").read_text()
    questions, growing = of_file(tmp_path / "questions.toml"), of_file(tmp_path / "trees.toml")
    assert questions is not None and growing is not None
    assert simulate(questions, questions.shards())["results"] == results
    assert simulate(growing, growing.shards())["model"] == trees
