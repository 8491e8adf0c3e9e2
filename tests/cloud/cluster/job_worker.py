"""A training job of its own process: `python job_worker.py FOLDER SEED`. It takes a while for each step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from cloud.train import Callback, JaxTask, Trainer
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.many.elastic import RESTARTS
from cloud.train.many.preempt import PREEMPTED, stopping_on_signals
from cloud.train.many.processes import together

STEPS, ROWS = 120, 64


def net(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["a"]) @ params["b"]


class Slow(Callback):
    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        time.sleep(0.02)


def trained(folder: Path, seed: int, *callbacks: Callback) -> Trainer:
    """The run, from its newest checkpoint if there is one, until it is done or stopped."""
    draw = np.random.default_rng(seed)
    params = {"a": draw.normal(size=(8, 16)).astype(np.float32), "b": draw.normal(size=(16, 2)).astype(np.float32)}
    x = draw.normal(size=(ROWS, 8)).astype(np.float32)
    run = Trainer(
        JaxTask(net, params), optimizer=optax.adam(1e-2), seed=seed, checkpoints=Checkpoints(folder, steps=20, keep=2)
    )
    run.watch(*callbacks)
    if run.checkpoints is not None and run.checkpoints.there():
        run.resume()
    with stopping_on_signals(lambda name: run.stop()):
        run.fit((x, (x.sum(1) > 0).astype(np.int32)), batch_size=16, steps=STEPS - run.steps_done)
    return run


def weights(run: Trainer) -> dict[str, Any]:
    return {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(run.weights()))}


if __name__ == "__main__":
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    assert RESTARTS in os.environ
    with together():
        done = trained(folder, seed, Slow())
        if done.stopped:
            sys.exit(PREEMPTED)
        np.savez(folder / "weights.npz", **weights(done))
