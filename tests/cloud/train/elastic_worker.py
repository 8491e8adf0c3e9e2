"""The program that tests of several processes start: a small run that records each step's rows, and its losses.

    python elastic_worker.py FOLDER PARALLEL [kill=STEP | fail=STEP | stop=STEP]

In the first attempt, at that step, the last process kills itself, raises, or asks to stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from cloud import data
from cloud.errors import CheckpointError
from cloud.train import Callback, JaxTask, Trainer
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.many.elastic import RESTARTS
from cloud.train.many.preempt import PREEMPTED
from cloud.train.many.processes import together

EPOCHS, ROWS, BATCH = 3, 80, 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
COLUMNS = {"x": X, "labels": (X.sum(1) > 0).astype(np.int32), "row": np.arange(ROWS)}
PARAMS = {"a": RNG.normal(size=(4, 8)).astype(np.float32), "b": RNG.normal(size=(8, 2)).astype(np.float32)}


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["a"]) @ params["b"]


class Seen:
    """Batches; each process writes down its rows of them."""

    def __init__(self, folder: Path, attempt: int, act: str = "") -> None:
        self.pipeline = data.arrays(COLUMNS).shuffle().batch(BATCH)
        self.fingerprint = self.pipeline.fingerprint
        self.folder, self.attempt, (self.what, _, self.at) = folder, attempt, act.partition("=")

    def batches(self, seed: int, epoch: int, position: int, process: tuple[int, int]) -> Iterator[Any]:
        coming = self.pipeline.batches(seed, epoch, position, process)
        with open(self.folder / f"rows.{self.attempt}.{process[0]}", "a") as file:
            for step, batch in enumerate(coming, epoch * ROWS // BATCH + position):
                print(step, *batch.pop("row").tolist(), file=file, flush=True)
                if self.what and not self.attempt and step == int(self.at) and process[0] == process[1] - 1:
                    ACTS[self.what]()
                yield batch


def fail() -> None:
    raise ValueError("as asked")


class Losses(Callback):
    """Step and loss, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        with open(self.path, "a") as file:
            print(step, metrics["loss"], file=file)


def run(folder: Path, parallel: str, act: str = "") -> Trainer:
    """The run of this process, which ends as `act` says."""
    attempt = int(os.environ.get(RESTARTS, "0"))
    trainer = Trainer(
        JaxTask(mlp, PARAMS), optimizer=optax.adam(0.01), seed=5, parallel=parallel,
        checkpoints=Checkpoints(folder / "checkpoints", steps=4),
        callbacks=[Losses(folder / f"losses.{attempt}")] if jax.process_index() == 0 else [],
    )  # fmt: skip
    ACTS.update(kill=lambda: os.kill(os.getpid(), signal.SIGKILL), fail=fail, stop=trainer.stop)
    if attempt:
        try:
            trainer.resume()
        except CheckpointError:
            print("no checkpoint yet", file=sys.stderr)
    trainer.fit(Seen(folder, attempt, act), EPOCHS - trainer.epochs_done)
    return trainer


ACTS: dict[str, Any] = {}

if __name__ == "__main__":
    with together():
        target = Path(sys.argv[1])
        trained = run(target, *sys.argv[2:])
        if trained.stopped:
            sys.exit(PREEMPTED)
        found = trained.evaluate(data.arrays({name: COLUMNS[name] for name in ("x", "labels")}).batch(BATCH)).loss
        if jax.process_index() == 0:
            (target / "end").write_text(json.dumps({"loss": found, "devices": jax.device_count()}))
