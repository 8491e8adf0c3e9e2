"""The best options of a `Problem`: proven where the integer programme is small, else the best of many descents.

Large problems are what searching on meshes of two axes gives: forty options a node, and a programme whose relaxation
alone takes HiGHS minutes. There, descents from many starts (see `local`) are *fused*: a programme in which every node
may only take options that one of the best descents took is small, and its best is often better than all of them. The
other move is along a *family*: all there is to decide about one mesh axis, the rest staying, is a small programme too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.errors import PlanError
from cloud.parallel.solving.local import Choice, Options, descents
from cloud.parallel.solving.problem import Problem, Solution, evaluate
from cloud.parallel.solving.programme import Programme, fitting

__all__ = ["Family", "Infeasible", "evaluate", "least", "solve"]

FEW_ROWS = 32
"""Up to so many rows are given to the programme at once; of more, those that turn out to bind."""

SMALL, PATIENCE = 8000, 5.0
"""Variables up to which the whole programme is tried first, and the seconds it gets; memory can make it long."""

POOL, ROUND, IDLE = 10, 5, 1
"""Choices that are fused, descents before each fusion, and fusions without gain after which the search ends."""


Family: TypeAlias = Sequence[npt.NDArray[np.int64]]
"""Of every node, a label for each option."""


class Infeasible(PlanError):
    """No choice of options fits, or none that fits was found. `least`: the least limit known at which one would, in
    bytes (inf where transfers alone rule all out); `rows`: labels of the rows that then are full; `options`: that
    choice."""

    def __init__(self, text: str, least: float, rows: tuple[str, ...], options: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.least, self.rows, self.options = least, rows, options


def solve(
    problem: Problem, seconds: float = 60.0, gap: float = 1e-6, starts: Sequence[Options] = (),
    families: Sequence[Family] = (),
) -> Solution:  # fmt: skip
    """The cheapest options whose rows all fit: of a small problem to a proven relative `gap`, of a large one the best
    that was found. Of a large one, `starts` are choices to begin from, and a family gives each option of each node a
    label: options of one label may be exchanged in one move. The same problem gives the same options, unless time runs
    out. Raises `Infeasible`, and `PlanError` where time ran out before any choice that fits was found."""
    start = time.monotonic()
    model = Programme(problem)
    if model.width > SMALL:
        return _large(problem, start, seconds, starts, families, model.width)
    rows = list(range(len(problem.rows))) if len(problem.rows) <= FEW_ROWS else []
    found = fitting(model, rows, min(seconds, PATIENCE), gap)
    if not found.proven:
        given = [*starts, *([found.options] if found.options else [])]
        return _large(problem, start, seconds, given, families, model.width)
    if found.options is None:
        raise _infeasible(problem, model, 10.0)
    held = evaluate(problem, found.options)[1]
    facts = {"variables": model.width, "rows": len(rows), "proven": found.proven}
    bound = min(found.bound, found.cost)
    return Solution(found.options, found.cost, bound, held, time.monotonic() - start, facts)


def _large(
    problem: Problem, start: float, seconds: float, starts: Sequence[Options], families: Sequence[Family], width: int
) -> Solution:
    end, pool = start + seconds, list[Choice]()
    number = idle = rounds = 0
    while idle < IDLE and (not pool or time.monotonic() < end):
        before = pool[0].rank if pool else (np.inf, np.inf)
        given = [_along(problem, each, families, end) for each in starts] if not rounds else []
        pool += [_judged(problem, each) for each in given]
        pool += descents(problem, given, range(number, number + ROUND), end)
        number, rounds = number + ROUND, rounds + 1
        pool = _best(pool)
        fused = _fused(problem, pool, end)
        if fused is not None:
            pool = _best([*pool, *descents(problem, [_along(problem, fused, families, end)], (), end)])
        idle = 0 if pool[0].rank < before else idle + 1
    best = pool[0]
    if not np.isfinite(best.cost) or best.over == np.inf:
        raise Infeasible("no choice was found possible: every one needs a transfer that cannot be", np.inf, ())
    cost, held = evaluate(problem, best.options)
    if best.over > 0:
        raise _over(problem, best.options)
    bound = float(sum(costs.min() for costs in problem.nodes))
    facts = {"variables": width, "rows": len(problem.rows), "descents": number, "fusions": rounds, "proven": False}
    return Solution(best.options, cost, min(bound, cost), held, time.monotonic() - start, facts)


def _best(pool: Sequence[Choice]) -> list[Choice]:
    """Different choices, best first; last the cheapest of those that do not fit."""
    choices = sorted({choice.options: choice for choice in pool}.values(), key=lambda choice: choice.rank)
    rest = sorted((choice for choice in choices[POOL:] if choice.over > 0), key=lambda choice: choice.cost)
    return choices[:POOL] + rest[: POOL // 2]


def _fused(problem: Problem, pool: Sequence[Choice], end: float) -> Options | None:
    """The best choice made of the pool's options; None where none was found."""
    return _among(problem, [sorted({choice.options[i] for choice in pool}) for i in range(len(problem.nodes))], end)


def _along(problem: Problem, options: Options, families: Sequence[Family], end: float) -> Options:
    """The best that exchanges along one family after the other lead to."""
    still = 0
    while still < len(families) and time.monotonic() < end:
        for family in families:
            like = [np.flatnonzero(labels == labels[o]).tolist() for labels, o in zip(family, options, strict=True)]
            found = _among(problem, like, end)
            moved = found is not None and _judged(problem, found).rank < _judged(problem, options).rank
            options, still = (found, 0) if found is not None and moved else (options, still + 1)
            if still == len(families):
                break
    return options


def _judged(problem: Problem, options: Options) -> Choice:
    cost, rows = evaluate(problem, options)
    over = max((held - row.limit for held, row in zip(rows, problem.rows, strict=True)), default=0.0)
    return Choice(tuple(options), cost, over if cost < np.inf else np.inf)


def _among(problem: Problem, some: Sequence[Sequence[int]], end: float) -> Options | None:
    """The best choice of some options of every node; None where none was found."""
    nodes = [np.full(len(costs), np.inf) for costs in problem.nodes]
    for few, costs, options in zip(nodes, problem.nodes, some, strict=True):
        few[list(options)] = costs[list(options)]
    left = min(max((end - time.monotonic()) / 3, 1.0), PATIENCE)
    return fitting(Programme(replace(problem, nodes=tuple(nodes))), [], left, 1e-4).options


def least(problem: Problem, seconds: float = 60.0) -> tuple[float, tuple[int, ...]]:
    """The least memory any choice needs: the largest row of the choice whose largest row is smallest, taking all limits
    as equal; and that choice."""
    equal = replace(problem, rows=tuple(replace(row, limit=0.0) for row in problem.rows))
    return Programme(equal).fullest(seconds)


def _infeasible(problem: Problem, model: Programme, seconds: float) -> Infeasible:
    if not problem.rows or model.run([], seconds, 1e-6).status == 2:
        return Infeasible("no choice of options is possible: every one needs a transfer that cannot be", np.inf, ())
    return _over(problem, model.fullest(seconds)[1])


def _over(problem: Problem, options: Options) -> Infeasible:
    """What to say where the fullest rows of the leanest choice are past their limits."""
    _, bytes_ = evaluate(problem, options)
    over = np.array([bytes_[k] - row.limit for k, row in enumerate(problem.rows)])
    full = [k for k in np.argsort(-over, kind="stable") if over[k] > 0.99 * over.max()]
    limit, need = problem.rows[full[0]].limit, float(bytes_[full[0]])
    names = tuple(problem.rows[k].label for k in full[:5])
    fits = f"the least that would fit is {need:.4g}, at {', '.join(names)}"
    text = f"expected a plan within {limit:.4g} bytes a device; {fits}: give more memory or allow recomputing"
    return Infeasible(text, need, names, options)
