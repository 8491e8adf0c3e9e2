"""Steps and seconds to reach the same validation loss, with every optimiser tuned by the same search.

    python -m benchmarks.optimizers --data DIR --task characters --trials 12 --steps 300 --seeds 5

The table goes to standard output, progress to standard error; `--json FILE` saves all curves. Times are of the
processor: with `XLA_FLAGS=--xla_cpu_multi_thread_eigen=false OPENBLAS_NUM_THREADS=1` one core's, whoever else uses it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.optimizers.contest import OPTIMIZERS, Curve, curve, search, shortest, steps_to
from benchmarks.optimizers.tasks import TASKS
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError


def main() -> None:
    """Search, run new seeds, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with mnist.npz, har_30_subjects.npz, tinyshakespeare.txt"
    )
    parser.add_argument("--task", choices=TASKS, default="characters")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--every", type=int, default=10, help="steps between measurements")
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=[*OPTIMIZERS], help="these optimisers")
    parser.add_argument("--whole-runs", action="store_true", help="also look for the shortest run that ends there")
    parser.add_argument("--json", type=Path, help="write all curves to this file")
    asked = parser.parse_args()
    task = TASKS[asked.task](asked.data)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    best, tried = {}, {}
    for name in asked.only:
        best[name], tried[name] = search(task, name, asked.trials, asked.steps, asked.steps // 4, say)
    curves: dict[str, list[Curve]] = {name: [] for name in asked.only}
    for seed in range(1, asked.seeds + 1):  # one seed after another, so that all see the same machine load
        for name in asked.only:
            curves[name].append(curve(task, name, best[name], asked.steps, seed, asked.every))
            say(f"{task.name}: {name} seed {seed}: {curves[name][-1].end:.4f}")
    ends = {name: float(np.mean([c.end for c in found])) for name, found in curves.items()}
    target = min(ends[name] for name in asked.only if OPTIMIZERS[name].first_order)
    print(f"{task.name}: {asked.steps} steps, {asked.trials} trials each, {asked.seeds} seeds; target {target:.4f}\n")
    print("| optimiser | rate | decay | momentum | final loss, mean ± sd | steps to target | shortest whole run |"
          " ms a step | most ms | seconds |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, found in curves.items():
        steps, seconds = steps_to(target, found), float(np.median([c.seconds for c in found]))
        seeds = range(1, asked.seeds + 1) if asked.whole_runs else ()
        whole = shortest(task, name, best[name], asked.steps, seeds, target, say) if seeds else None
        fewest = min((n for n in (steps, whole) if n is not None), default=None)
        reached = " | ".join("—" if n is None else f"{n:.0f}" for n in (steps, whole))
        spent = "—" if fewest is None else f"{fewest * seconds:.1f}"
        spread = float(np.std([c.end for c in found]))
        s = best[name]
        peak = 1e3 * float(np.median([c.peak for c in found]))
        print(f"| {name} | {s['rate']:.2g} | {s['decay']:.2g} | {s['b1']:.2f} | {ends[name]:.4f} ± {spread:.4f} | "
              f"{reached} | {1e3 * seconds:.1f} | {peak:.1f} | {spent} |")  # fmt: skip
    if asked.json:
        facts = {"target": target, "best": best, "tried": tried,
                 "curves": {name: [asdict(c) for c in found] for name, found in curves.items()}}  # fmt: skip
        write_atomically(asked.json, json.dumps(facts, indent=1).encode(), MsedgeError)


if __name__ == "__main__":
    main()
