"""`python -m benchmarks.accuracy --models DIR --data DIR [--trained DIR] [--only WORD…]`: accuracy of int8 models.

All contenders (contenders.py) are calibrated on the same rows and evaluated on other rows. `--peers` adds ONNX
Runtime's other methods, NNCF and ai-edge-quantizer, as far as they are installed; `--seeds N` repeats with N random
choices of the calibration rows; `--trained` adds the networks that `python -m benchmarks.accuracy.trained` made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.accuracy import published, trained
from benchmarks.accuracy.contenders import CONTENDERS, FAILURES, USUAL, Outputs, Run, contenders
from benchmarks.accuracy.measures import Task
from benchmarks.accuracy.page import Score, cell, markdown, paired
from benchmarks.journal import Journal
from benchmarks.machine import code, versions
from edge.cli.output import emit


def sampled(task: Task, seed: int, rows: int | None) -> Task:
    """The task with three quarters of its calibration rows (or `rows` of them), drawn at random; all for seed 0."""
    count = len(next(iter(task.calibration.values())))
    kept = count if not seed and rows is None else min(count, rows or count * 3 // 4)
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[:kept]) if kept < count else np.arange(count)
    return replace(task, calibration={name: array[chosen] for name, array in task.calibration.items()})


def scores(task: Task, seed: int, names: Sequence[str], journal: Journal, rows: int | None) -> Iterator[Score]:
    """The scores of the contenders that take the task's network."""
    expected: list[Outputs] = []

    def reference() -> Outputs:
        if not expected:
            (_, make), *_ = contenders(task, ["fp32"])
            made = make()
            assert made is not None
            expected.append(made[1](task.evaluation))
        return expected[0]

    for name, make in contenders(sampled(task, seed, rows), names):

        def measure(name: str = name, make: object = make) -> dict[str, object] | None:
            try:
                made: tuple[int, Run] | None = make()  # type: ignore[operator]
            except FAILURES as error:
                print(f"{task.name}: {name} fails: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
                return None
            if made is None:
                return None
            size, run = made
            return asdict(_scored(task, seed, name, size, run(task.evaluation), reference()))

        found = journal.get(task.name, seed, name, rows, measure=measure)
        if found is not None:
            yield Score(**found)


def _scored(task: Task, seed: int, name: str, size: int, outputs: Outputs, expected: Outputs) -> Score:
    each = [] if task.metric is None else [round(float(x), 6) for x in task.metric.each(outputs)]
    figure = None if task.metric is None else task.metric.whole(np.array(each), np.arange(len(each)))
    unit = "SNR" if task.metric is None else task.metric.unit
    return Score(task.name, seed, name, size, _snr(expected, outputs), figure, unit, each)


def _snr(expected: Outputs, got: Outputs) -> float:
    from converter.report import Sums

    found = []
    for want, have in zip(expected.values(), got.values(), strict=True):
        sums = Sums()
        sums.add(want, have.reshape(want.shape))
        found.append(sums.snr)
    return float(np.mean(found))


def main() -> int:
    """Exit codes as msedge's: 0, 3 when there was nothing to measure."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trained", type=Path, metavar="DIR", help="networks of benchmarks.accuracy.trained")
    parser.add_argument(
        "--only", nargs="*", default=(), metavar="WORD", help="only tasks whose names contain one of these"
    )
    parser.add_argument("--contenders", nargs="*", choices=list(CONTENDERS), metavar="NAME", help="only these")
    parser.add_argument("--peers", action="store_true", help="also the peers that are installed")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="repeat with N calibration sets (1)")
    parser.add_argument("--rows", type=int, metavar="N", help="at most N calibration rows")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="save results in this file; reuse those in it")
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    args = parser.parse_args()
    names = args.contenders or (list(CONTENDERS) if args.peers else list(USUAL))
    results: list[Score] = []
    measures = {}
    with Journal(args.resume, {"versions": versions(), "code": code()}) as journal:
        made = (published.tasks(args.models, args.data), trained.tasks(args.data, args.trained) if args.trained else ())
        for task in chain(*made):
            if args.only and not any(word in task.name for word in args.only):
                continue
            measures[task.name] = task.metric
            for seed in range(args.seeds):
                for score in scores(task, seed, names, journal, args.rows):
                    print(f"{task.name}, seed {seed}: {score.contender} {cell(score)}", file=sys.stderr, flush=True)
                    results.append(score)
    if not results:
        print(f"error: expected models in {args.models} and their data in {args.data}, found none", file=sys.stderr)
        return 3
    if args.json:
        emit({"scores": [asdict(s) for s in results]})
    else:
        print(markdown(results))
        print()
        print(paired(results, measures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
