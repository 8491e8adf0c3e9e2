"""kill -9 while a checkpoint is being written: the previous one is restored, and a half-written one is never loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from cloud.train import JaxTask, Trainer
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.keeping.manifest import problem_of
from tests.waiting import PATIENCE

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 256)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
PARAMS = {"a": RNG.normal(size=(256, 4096)).astype(np.float32), "b": RNG.normal(size=(4096, 2)).astype(np.float32)}
"""With Adam 12 MB, so that writing takes longer than looking."""


def net(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["a"]) @ params["b"]


def trainer(folder: Path | None = None) -> Trainer:
    kept = None if folder is None else Checkpoints(folder, steps=1, keep=2)
    return Trainer(JaxTask(net, PARAMS), optimizer=optax.adam(1e-4), checkpoints=kept)


def main(folder: Path) -> None:
    """The run that is killed: a checkpoint a step."""
    run = trainer(folder)
    if run.checkpoints is not None and run.checkpoints.there():
        run.resume()
    run.fit((X, Y), batch_size=32, steps=1000)


def killed_while_writing(folder: Path, moment: str) -> bool:
    """Start or go on with the run; kill it when it has added a checkpoint and `moment` of the next is there. Whether it
    was caught at it."""
    before = len(Checkpoints(folder).there()) and int(Checkpoints(folder).there()[-1].name[5:])
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, __file__, str(folder)], env=environment) as child:
        try:
            deadline = time.monotonic() + PATIENCE
            while child.poll() is None and time.monotonic() < deadline:
                there = Checkpoints(folder).there()
                if there and int(there[-1].name[5:]) > before and any(folder.glob(f".step-*.part/{moment}")):
                    break
                time.sleep(0.0005)
            assert child.poll() is None and time.monotonic() < deadline
        finally:
            child.kill()
    return any(folder.glob(".step-*.part"))


@pytest.mark.slow
def test_a_half_written_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    caught = [killed_while_writing(folder, moment) for moment in ("about.json", "arrays/*/*", "arrays*")]
    assert any(caught), caught
    there = Checkpoints(folder).there()
    assert there and [problem_of(path) for path in there] == [""] * len(there)
    run = trainer(folder)
    assert run.resume() == there[-1] and run.steps_done == int(there[-1].name[5:])
    never = trainer()
    never.fit((X, Y), batch_size=32, steps=run.steps_done + 1)
    run.fit((X, Y), batch_size=32, steps=1)
    for a, b in zip(jax.tree.leaves(run.whole_state()), jax.tree.leaves(never.whole_state()), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert not any(folder.glob(".step-*")), "what the killed process left is cleared away"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
