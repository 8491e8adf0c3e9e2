"""Steps and seconds to reach the same validation loss, with every optimiser tuned by the same search.

    python -m benchmarks.optimizers --data DIR --task characters --trials 12 --steps 300 --seeds 5

The table goes to standard output, progress to standard error. `--journal FILE` keeps what was measured: the same
command, also with more trials, seeds or optimisers, goes on from there; with `--minutes` it stops by itself (exit code
3). Times are of the processor: with `XLA_FLAGS=--xla_cpu_multi_thread_eigen=false OPENBLAS_NUM_THREADS=1` one core's,
whoever else uses it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.journal import Journal, TimeIsUp
from benchmarks.machine import code, facts, versions
from benchmarks.optimizers.contest import OPTIMIZERS, SHARES, Curve, Settings, curve, in_turns, settings_of, steps_to
from benchmarks.optimizers.tasks import TASKS, Task

BASE = "adamw"
"""What the others take turns with."""

FINALISTS, AGAIN = 3, (101, 102)
"""How many of the trials are run with these seeds too, because one seed can be lucky."""


@dataclass(frozen=True)
class Contest:
    """A task and the numbers that the command line gave, whose curves and times come from the journal."""

    task: Task
    journal: Journal
    steps: int
    every: int
    seeds: Sequence[int]

    def curve(self, name: str, settings: Settings, steps: int, seed: int, every: int) -> Curve:
        """One run, measured at most once."""
        measure = partial(_curve, self.task, name, settings, steps, seed, every)
        found = self.journal.get(name, *settings.values(), steps, seed, every, measure=measure)
        return Curve(found["every"], tuple(found["losses"]))

    def search(self, name: str, trials: int) -> Settings:
        """The settings that end lowest: of all trials with seed 0, and of the best of these on the mean of `AGAIN`."""
        about, ends = settings_of(name, trials), list[float]()
        for number, settings in enumerate(about, 1):
            ends.append(self._end(name, settings, 0))
            _say(f"{self.task.name}: {name} trial {number}/{trials}: rate {settings['rate']:.2g} -> {ends[-1]:.4f}")
        best = sorted(range(trials), key=lambda k: ends[k])[:FINALISTS]
        for k in best if trials > 1 else ():
            ends[k] = float(np.mean([ends[k], *(self._end(name, about[k], seed) for seed in AGAIN)]))
            _say(f"{self.task.name}: {name} trial {k + 1} with {1 + len(AGAIN)} seeds: {ends[k]:.4f}")
        return about[min(best, key=lambda k: ends[k])]

    def _end(self, name: str, settings: Settings, seed: int) -> float:
        return self.curve(name, settings, self.steps, seed, self.steps // 4).end

    def curves(self, best: Mapping[str, Settings]) -> dict[str, list[Curve]]:
        """The best settings with seeds that no trial used."""
        found: dict[str, list[Curve]] = {name: [] for name in best}
        for seed in self.seeds:
            for name, settings in best.items():
                found[name].append(self.curve(name, settings, self.steps, seed, self.every))
                _say(f"{self.task.name}: {name} seed {seed}: {found[name][-1].end:.4f}")
        return found

    def times(self, name: str, best: Mapping[str, Settings]) -> dict[str, list[float]]:
        """Processor seconds of steps, in turns with AdamW's."""
        pair = {each: best[each] for each in dict.fromkeys((BASE, name))}
        keys = [str(value) for settings in pair.values() for value in settings.values()]
        measure = partial(in_turns, self.task, pair, self.steps)
        found: dict[str, list[float]] = self.journal.get("times", name, *keys, self.steps, measure=measure)
        return found

    def shortest(self, name: str, settings: Settings, target: float) -> int | None:
        """Steps of the shortest complete run, among `SHARES` of `steps`, whose mean final loss reaches `target`; None
        if even the longest does not."""
        found = None
        for share in SHARES:
            fewer = round(share * self.steps)
            end = float(np.mean([self.curve(name, settings, fewer, seed, fewer).end for seed in self.seeds]))
            _say(f"{self.task.name}: {name} in {fewer} steps: {end:.4f}")
            if not end <= target:
                break
            found = fewer
        return found


def main() -> int:
    """Search, run new seeds, print the table. Exit code 3: the minutes ended before."""
    asked = _parser().parse_args()
    if BASE not in asked.only:
        asked.only.insert(0, BASE)
    conditions = {"machine": facts(), "versions": versions(("jax", "optax")), "task": asked.task,
                  "code": code(packages=("cloud/train/optim",))}  # fmt: skip
    try:
        with Journal(asked.journal, conditions, minutes=asked.minutes) as journal:
            task, seeds = TASKS[asked.task](asked.data), range(1, asked.seeds + 1)
            _contest(Contest(task, journal, asked.steps, asked.every, seeds), asked)
    except TimeIsUp as error:
        _say(str(error))
        return 3
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with mnist.npz, har_30_subjects.npz, tinyshakespeare.txt"
    )
    parser.add_argument("--task", choices=TASKS, default="characters")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--every", type=int, default=10, help="steps between measurements")
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=[*OPTIMIZERS], help="these, and adamw")
    parser.add_argument("--whole-runs", action="store_true", help="also look for the shortest run that ends there")
    parser.add_argument("--journal", type=Path, help="keep all curves and times in this file, and go on from it")
    parser.add_argument("--minutes", type=float, help="begin nothing after this time")
    return parser


def _contest(contest: Contest, asked: argparse.Namespace) -> None:
    best = {name: contest.search(name, asked.trials) for name in asked.only}
    curves = contest.curves(best)
    ends = {name: float(np.mean([c.end for c in found])) for name, found in curves.items()}
    target = min(ends[name] for name in asked.only if OPTIMIZERS[name].first_order)
    rows = []
    for name, found in curves.items():
        steps, times = steps_to(target, found), contest.times(name, best)
        whole = contest.shortest(name, best[name], target) if asked.whole_runs else None
        rows.append(_row(name, best[name], found, (steps, whole), times))
    print(f"{contest.task.name}: {asked.steps} steps, {asked.trials} trials each, {asked.seeds} seeds; "
          f"target {target:.4f}\n")  # fmt: skip
    print("| optimiser | rate | decay | momentum | final loss, mean ± sd | steps to target | shortest whole run |"
          " ms a step | AdamW's in turns | more | most ms | seconds to target |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))


def _row(name: str, s: Settings, found: Sequence[Curve], reached: Sequence[float | None],
         times: Mapping[str, Sequence[float]]) -> str:  # fmt: skip
    ends = [c.end for c in found]
    mine, base = (1e3 * float(np.mean(times[each])) for each in (name, BASE))
    fewest = min((n for n in reached if n is not None), default=None)
    cells = [
        name, f"{s['rate']:.2g}", f"{s['decay']:.2g}", f"{s['b1']:.2f}", f"{np.mean(ends):.4f} ± {np.std(ends):.4f}",
        *("—" if n is None else f"{n:.0f}" for n in reached), f"{mine:.2f}", f"{base:.2f}", f"{mine / base - 1:.0%}",
        f"{1e3 * max(times[name]):.1f}", "—" if fewest is None else f"{fewest * mine / 1e3:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _curve(*about: Any) -> dict[str, Any]:
    return asdict(curve(*about))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
