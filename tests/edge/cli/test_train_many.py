"""`msedge train --processes`: one result of two processes; stopped by a signal, and resumed by one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
CONFIG = """\
[model]
zoo = "mlp"
options = { features = 16, outputs = 2 }
[data]
npz = "data.npz"
[train]
epochs = 400
batch = 16
[parallel]
mode = "data"
[checkpoint]
folder = "kept"
every = 20
[export]
onnx = "out.onnx"
[track]
store = "runs.sqlite"
"""


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "edge.cli", "train", str(folder / "run.toml"), "--json", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_stopped_and_resumed(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=(x.sum(1) > 0).astype(np.int32))
    (tmp_path / "run.toml").write_text(CONFIG)
    with command(tmp_path, "--processes", "2") as many:
        assert many.stderr is not None
        told = next((line for line in many.stderr if "checkpoint" in line), "")
        assert told, "no checkpoint before the end"
        many.send_signal(signal.SIGTERM)
        out, err = many.communicate(timeout=300)
    first = json.loads(out)
    assert many.returncode == 3 and first["files"] == {} and first["stopped"]
    assert "--resume continues it" in err and err.rstrip().endswith("stopped")
    done = first["steps"] // 4
    with command(tmp_path, "--resume", "--set", f"train.epochs={done + 2}") as one:
        out, err = one.communicate(timeout=300)
    second = json.loads(out)
    assert one.returncode == 0 and f"after step {first['steps']}" in err
    assert second["epochs"] == done + 2 and second["steps"] == 4 * (done + 2)
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.slow
def test_processes_need_a_way_to_share(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((64, 16), np.float32), labels=np.zeros(64, np.int32))
    (tmp_path / "run.toml").write_text(CONFIG.replace('mode = "data"', 'mode = "none"'))
    with command(tmp_path, "--processes", "2") as many:
        _, err = many.communicate(timeout=300)
    assert many.returncode == 3 and 'expected "data" or "auto" for 2 processes' in err
