"""Profile of a pipeline's time, and the best number of threads or processes: measured on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cloud.data import ir
from cloud.data.api import Pipeline
from cloud.data.columns import tree_map
from cloud.data.functions import Function
from cloud.data.reading.iterate import Batches
from cloud.data.reading.sources import open_source

__all__ = ["Profile", "Stage", "Trial", "Tuned", "profile", "tune"]

_MOVING = "ordering, stacking, moving"
_NEAR = 0.95
"""Share of the best trial's rate: the trial with the fewest threads or processes that reaches it is chosen."""


@dataclass(frozen=True)
class Stage:
    """A source or a function: its seconds per batch, and their share of all."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Profile:
    """Seconds per batch, read by one thread (`alone`) and as the pipeline is configured (`ready`), by stage."""

    stages: tuple[Stage, ...]
    alone: float
    ready: float
    rows: int
    step: float | None
    bottleneck: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def table(self) -> str:
        """The profile as text."""
        lines = [f"{'stage':<40} {'ms/batch':>11} {'share':>6} {'rows/s':>11}"]
        for stage in self.stages:
            rate = self.rows / stage.seconds if stage.seconds else float("inf")
            lines.append(f"{stage.name:<40} {stage.seconds * 1e3:>11.3f} {stage.share:>6.0%} {rate:>11.0f}")
        return "\n".join([*lines, self.bottleneck])


@dataclass(frozen=True)
class Trial:
    """One setting for reading ahead and its rate in batches per second."""

    workers: int
    threads: int
    ahead: int
    rate: float


@dataclass(frozen=True)
class Tuned:
    """The pipeline with the chosen setting, and all trials."""

    pipeline: Pipeline
    trials: tuple[Trial, ...]


def profile(pipeline: Pipeline, seconds: float = 2.0, *, step: float | None = None) -> Profile:
    """Read batches for about `seconds` with every source and function timed, and then for as long again as the pipeline
    is normally read (with prefetching). `step`: seconds of a training step, for the verdict."""
    spent: dict[str, float] = {}
    batches, alone, rows = _read(_timed(pipeline, spent).prefetch(threads=0), seconds)
    waiting, ready_alone, _ = _read(pipeline, seconds, warm=True)
    spent = {name: used / batches for name, used in spent.items()}
    total = alone / batches
    spent[_MOVING] = max(total - sum(spent.values()), 0.0)
    stages = [Stage(name, used, used / total) for name, used in spent.items()]
    stages.sort(key=lambda stage: -stage.seconds)
    ready = ready_alone / waiting
    return Profile(tuple(stages), total, ready, rows, step, _verdict(stages[0], ready, step))


def tune(pipeline: Pipeline, seconds: float = 1.0, *, cores: int | None = None, memory: int = 2**30) -> Tuned:
    """Try threads and worker processes within `cores` (by default those this process may use) that keep at most
    `memory` bytes of batches ready; each is read for `seconds` after its first batch. The smallest setting within 5 %
    of the best is chosen."""
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with pipeline.prefetch(threads=0).batches() as batches:
        size = _size(next(batches))
    trials = []
    for workers, threads in _candidates(cores):
        ahead = max(2, threads)
        if (workers or threads) and size * ahead * max(workers, 1) > memory:
            continue
        count, taken, _ = _read(pipeline.prefetch(workers, threads, ahead), seconds, warm=True)
        trials.append(Trial(workers, threads, ahead, count / taken))
    best = max(trial.rate for trial in trials)
    chosen = next(trial for trial in trials if trial.rate >= _NEAR * best)
    return Tuned(pipeline.prefetch(chosen.workers, chosen.threads, chosen.ahead), tuple(trials))


def _candidates(cores: int) -> list[tuple[int, int]]:
    """(workers, threads), from the fewest to the most."""
    powers = [2**k for k in range(cores.bit_length()) if 2**k <= cores]
    return [(0, 0), *((0, n) for n in sorted({*powers, cores})), *((n, 0) for n in sorted({*powers, cores}))]


def _read(pipeline: Pipeline, seconds: float, warm: bool = False) -> tuple[int, float, int]:
    """Batches read within `seconds` (at least one, over several epochs if they are short), the time it took, and rows
    per batch. `warm`: the first batch, which includes the start of threads and processes, does not count."""
    count, rows, epochs = 0, 0, _epochs(pipeline)
    batches = next(epochs)
    try:
        if warm:
            next(batches, None)
        begun = time.perf_counter()
        while (taken := time.perf_counter() - begun) < seconds or not count:
            batch = next(batches, None)
            if batch is None:
                batches = next(epochs)
                continue
            count, rows = count + 1, rows or _rows(batch)
        return count, taken, rows
    finally:
        batches.close()


def _epochs(pipeline: Pipeline) -> Iterator[Batches]:
    epoch = 0
    while True:
        yield pipeline.batches(epoch=epoch)
        epoch += 1


def _timed(pipeline: Pipeline, spent: dict[str, float]) -> Pipeline:
    """The same pipeline, adding the seconds of each stage to `spent`; only reads in this process are counted."""
    return Pipeline(_timed_node(pipeline.node, spent))


def _timed_node(node: ir.Node, spent: dict[str, float]) -> ir.Node:
    node = ir.with_parents(node, tuple(_timed_node(parent, spent) for parent in ir.parents(node)))
    match node:
        case ir.Map(_, steps):
            return replace(node, steps=tuple(replace(s, function=_clocked(s.function, spent)) for s in steps))
        case ir.Filter(_, function) | ir.Blend(_, function):
            return replace(node, function=_clocked(function, spent))
        case ir.Iterable(make):
            return ir.Iterable(replace(make, call=lambda: _clocked_items(make, spent)))
        case _ if not ir.parents(node):
            source = _Clocked(open_source(node), f"read {type(node).__name__.lower()}", spent)
            return ir.Items(Function(lambda: source, "timed"))
    return node


def _clocked(function: Function, spent: dict[str, float]) -> Function:
    return replace(function, call=partial(_call, function.call, function.shown, spent), name=function.shown)


def _call(call: Callable[..., Any], name: str, spent: dict[str, float], *arguments: Any) -> Any:
    begun = time.perf_counter()
    try:
        return call(*arguments)
    finally:
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - begun


def _clocked_items(make: Function, spent: dict[str, float]) -> Iterator[Any]:
    there = iter(make.call())
    while (found := _call(partial(next, there, _NONE), make.shown, spent)) is not _NONE:
        yield found


_NONE = object()


class _Clocked:
    """A source that measures the time spent in it."""

    def __init__(self, source: Any, name: str, spent: dict[str, float]) -> None:
        self._source, self._name, self._spent = source, name, spent
        if hasattr(source, "take_rows"):
            self.take_rows = partial(_call, source.take_rows, name, spent)
        if hasattr(source, "__getitems__"):
            self.__getitems__ = partial(_call, source.__getitems__, name, spent)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> Any:
        return _call(self._source.__getitem__, self._name, self._spent, number)


def _verdict(worst: Stage, ready: float, step: float | None) -> str:
    most = f"most time is spent in {worst.name} ({worst.share:.0%})"
    if step is None:
        return f"A batch is ready every {ready * 1e3:.2f} ms; {most}."
    both = f"a batch is ready every {ready * 1e3:.2f} ms, a step takes {step * 1e3:.2f} ms"
    if ready <= step:
        return f"The pipeline keeps up: {both}; {most}."
    return f"The step waits for data: {both}; {most}: make it cheaper, or let `tune` find workers."


def _rows(batch: Any) -> int:
    found: list[int] = []
    tree_map(lambda leaf: found.append(len(leaf)), batch)
    return found[0]


def _size(batch: Any) -> int:
    found: list[int] = []
    tree_map(lambda leaf: found.append(int(np.asarray(leaf).nbytes)), batch)
    return sum(found)
