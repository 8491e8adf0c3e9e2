"""Bayesian optimisation with successive halving beside random search, at equal evaluations.

    python -m benchmarks.tuning --data ../shared/data --json tuning.json     # studies in the file are not repeated

Every study varies five keys of a small perceptron. Random search runs each trial for all epochs; both may use the same
number of epochs altogether; only trials that were finished within it count. The figure is the least validation loss.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloud.train.tuning.history import Trial
from cloud.train.tuning.study import tune
from cloud.train.tuning.trial import Message, serve
from edge.demo.updates.scene import untangled

EPOCHS, BUDGET, SEEDS = 9, 90, 5
METHODS = {"bayes": 3, "random": 0}
"""Methods, and their halving."""
FILE = """
[model]
zoo = "mlp"
options = {{ features = {features}, outputs = {outputs}, hidden = [32] }}
[data]
npz = "data.npz"
validation = 0.3
[train]
epochs = {epochs}
[track]
keep = false
[tune]
trials = 10000
evaluations = {budget}
[tune.space]
"train.rate" = {{ low = 1e-5, high = 3.0, log = true }}
"train.batch" = [16, 32, 64, 128]
"train.optimizer" = ["adam", "momentum", "sgd", "lion"]
"train.weight_decay" = {{ low = 1e-6, high = 0.1, log = true }}
"model.options.hidden" = [[8], [32], [128], [32, 32], [64, 32, 16]]
"""

Task = tuple[np.ndarray, np.ndarray]


def _of_sklearn(name: str) -> Callable[[Path], Task]:
    def load(data: Path) -> Task:
        import sklearn.datasets

        x, labels = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        return x, labels

    return load


def _har(data: Path) -> Task:
    """Mean and spread of each channel in each quarter of a window, of every fifth window."""
    with np.load(data / "har_30_subjects.npz") as found:
        x, labels = untangled(found["x"][::5])[:, :, 0], found["y"][::5]
    parts = np.array_split(x, 4, axis=2)
    return np.concatenate([f(part, axis=2) for part in parts for f in (np.mean, np.std)], axis=1), labels


def _mnist(data: Path) -> Task:
    with np.load(data / "mnist.npz") as found:
        return found["x_train"][::40].reshape(1500, -1), found["y_train"][::40]


TASKS: Mapping[str, Callable[[Path], Task]] = {
    "digits": _of_sklearn("digits"), "wine": _of_sklearn("wine"), "breast_cancer": _of_sklearn("breast_cancer"),
    "har": _har, "mnist": _mnist,
}  # fmt: skip


class Inside:
    """A pool of one thread of this process: compiled programs are shared by studies."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._orders: queue.Queue[Message | None] = queue.Queue()
        self._told: queue.Queue[Message] = queue.Queue()
        self._thread = threading.Thread(target=serve, args=(self._orders.get, self._told.put), daemon=True)
        self._thread.start()

    def send(self, worker: int, message: Message) -> None:
        """See `cloud.train.tuning.pool.Pool`."""
        self._orders.put(message)

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        """See `cloud.train.tuning.pool.Pool`."""
        try:
            return [(0, self._told.get(timeout=seconds))]
        except queue.Empty:
            return []

    def close(self) -> None:
        """See `cloud.train.tuning.pool.Pool`."""
        self._orders.put(None)
        self._thread.join()


def least(trials: tuple[Trial, ...], budget: int) -> float:
    """The best value of trials that were finished within a budget of evaluations."""
    used, best = 0, float("inf")
    for trial in trials:
        used += len(trial.curve)
        if used <= budget and trial.value is not None:
            best = min(best, trial.value)
    return best


def study(task: str, method: str, seed: int, data: Path) -> dict[str, Any]:
    """One study of a task."""
    x, labels = TASKS[task](data)
    x = np.asarray(x, np.float32)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "data.npz"), x=x, labels=np.unique(labels, return_inverse=True)[1].astype(np.int32))
        file = Path(folder, "run.toml")
        outputs = len(np.unique(labels))
        file.write_text(FILE.format(features=x.shape[1], outputs=outputs, epochs=EPOCHS, budget=BUDGET))
        changes = [f"tune.seed={seed}", f"tune.method={method}", f"tune.halving={METHODS[method]}"]
        found = tune(file, changes, pool=Inside)
    states = [trial.state for trial in found.trials]
    return {"task": task, "method": method, "seed": seed, "loss": least(found.trials, BUDGET), "trials": len(states),
            "finished": states.count("finished"), "evaluations": found.evaluations}  # fmt: skip


def report(rows: list[dict[str, Any]]) -> None:
    """A table: medians over seeds, and how often the first method was ahead."""
    print("| task | bayes and halving | random | trials | ahead |\n|---|---|---|---|---|")
    for task in TASKS:
        of = {m: {r["seed"]: r for r in rows if (r["task"], r["method"]) == (task, m)} for m in METHODS}
        both = sorted(of["bayes"].keys() & of["random"].keys())
        if not both:
            continue
        loss = {m: [of[m][seed]["loss"] for seed in both] for m in METHODS}
        ahead = sum(a < b for a, b in zip(loss["bayes"], loss["random"], strict=True))
        trials = " / ".join(f"{statistics.median(of[m][seed]['trials'] for seed in both):g}" for m in METHODS)
        medians = " | ".join(f"{statistics.median(loss[m]):.4f}" for m in METHODS)
        print(f"| {task} | {medians} | {trials} | {ahead} of {len(both)} |")


def main() -> None:
    """Run the studies that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--json", type=Path, default=Path("build/tuning.json"))
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--most", type=int, default=1000, help="studies in this call")
    asked = parser.parse_args()
    rows = json.loads(asked.json.read_text()) if asked.json.exists() else []
    done = {(row["task"], row["method"], row["seed"]) for row in rows}
    wanted = [(t, m, s) for s in range(SEEDS) for t in asked.tasks for m in METHODS if (t, m, s) not in done]
    for task, method, seed in wanted[: asked.most]:
        rows.append(study(task, method, seed, asked.data))
        print(rows[-1], flush=True)
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(rows, indent=1))
    report(rows)


if __name__ == "__main__":
    main()
