"""Active learning beside random choice: how many labels reach the accuracy of all of them.

    python -m benchmarks.active --data ../shared/data --json active.json     # studies in the file are not repeated

Activities from a phone's inertial signals (later windows in the test) and spoken digits (other recordings). A study
begins with the same random tenth of the budget for every strategy; in each round the network is trained anew for the
same number of steps, converted to a bundle, and the device runtime looks at the pool; the strategy chooses the next
labels. The figure is the accuracy on the test set by the share of labels; a row ends with the smallest share
whose mean accuracy is not below the mean of training with all labels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

import lite_runtime
import msedge
from benchmarks.accuracy.examples import motion, spoken_digits
from benchmarks.window_networks import trained
from converter.ir.dropout import dropout_inputs
from lite_runtime._files import write_atomically
from lite_runtime.active import choose
from lite_runtime.active.choosing import STRATEGIES
from lite_runtime.active.predicting import look
from lite_runtime.graph import Array

SHARES = (0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4)
SEEDS, DROPOUT = 5, 0.3


class Task(NamedTuple):
    """x (n, channels, 1, steps), y: the pool; those of the test; the kernel of the network."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    kernel: int


def _har(data: Path) -> Task:
    (x, y), (test_x, test_y) = motion(data)
    return Task(x, y, test_x, test_y, 9)


def _digits(data: Path) -> Task:
    (x, y), (test_x, test_y) = spoken_digits(data)
    return Task(x.transpose(0, 2, 1, 3), y, test_x.transpose(0, 2, 1, 3), test_y, 5)


TASKS: Mapping[str, Callable[[Path], Task]] = {"har": _har, "digits": _digits}


def network(task: Task, rows: Array, seed: int) -> ir.Model:
    """The network, trained with the labels of `rows`."""
    return trained(
        task.x[rows], task.y[rows], int(task.y.max()) + 1, seed, kernel=task.kernel, dropout=DROPOUT
    )  # fmt: skip


def study(task: Task, strategy: str, seed: int, folder: Path) -> list[float]:
    """The test's accuracy at each of SHARES."""
    rng = np.random.default_rng(seed)
    rows, found = np.sort(rng.permutation(len(task.x))[: round(SHARES[0] * len(task.x))]), list[float]()
    for place, _ in enumerate(SHARES):
        path = folder / f"{strategy}-{seed}.mslite"
        msedge.convert(dropout_inputs(network(task, rows, seed)), output=path)
        model = lite_runtime.load(path)
        features = model.outputs()[1].name
        seen, guesses = look(model, {"x": task.test_x}, "random", features=features)
        found.append(float((guesses == task.test_y).mean()))
        print(f"  {strategy} {seed}: {len(rows)} labels, accuracy {found[-1]:.4f}", flush=True)
        if place + 1 < len(SHARES):
            left = np.setdiff1d(np.arange(len(task.x)), rows)
            seen, _ = look(
                model, {"x": task.x[left]}, strategy, features=features, labelled={"x": task.x[rows]}, seed=place
            )
            count = round(SHARES[place + 1] * len(task.x)) - len(rows)
            rows = np.sort(np.concatenate([rows, left[choose(strategy, count, seen, seed * 100 + place)]]))
    return found


def whole(task: Task, seed: int, folder: Path) -> float:
    """The test's accuracy with all labels."""
    path = folder / f"all-{seed}.mslite"
    msedge.convert(dropout_inputs(network(task, np.arange(len(task.x)), seed)), output=path)
    model = lite_runtime.load(path)
    _, guesses = look(model, {"x": task.test_x}, "random", features=model.outputs()[1].name)
    return float((guesses == task.test_y).mean())


def said(name: str, made: Mapping[str, Any]) -> None:
    """Print the table of a task: mean accuracy over seeds by share, and the share that is enough."""
    full = list(made.get(f"{name}/all", {}).values())
    if not full:
        return
    goal = statistics.mean(full)
    print(f"{name}: all labels {goal:.4f} ({min(full):.4f} to {max(full):.4f}, {len(full)} seeds)")
    print("  share " + "".join(f"{share:8.0%}" for share in SHARES) + "   enough")
    for strategy in STRATEGIES:
        curves = list(made.get(f"{name}/{strategy}", {}).values())
        if curves:
            means = [statistics.mean(values) for values in zip(*curves, strict=True)]
            enough = next((f"{share:.0%}" for share, mean in zip(SHARES, means, strict=True) if mean >= goal), "more")
            print(f"  {strategy:15}" + "".join(f"{mean:8.4f}" for mean in means) + f"   {enough} ({len(curves)} seeds)")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True, help="what was measured; it is continued")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--strategies", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args(arguments)
    made: dict[str, Any] = json.loads(args.json.read_text()) if args.json.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.tasks:
            task = TASKS[name](args.data)
            for seed in range(args.seeds):
                for strategy in ("all", *args.strategies):
                    at = made.setdefault(f"{name}/{strategy}", {})
                    if str(seed) not in at:
                        folder = Path(temporary)
                        run = whole(task, seed, folder) if strategy == "all" else study(task, strategy, seed, folder)
                        at[str(seed)] = run
                        write_atomically(args.json, json.dumps(made, indent=1).encode())
            said(name, made)


if __name__ == "__main__":
    main()
