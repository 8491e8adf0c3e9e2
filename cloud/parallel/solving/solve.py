"""The best options of a `Problem`: proven where the integer programme is small, else the best that can be found.

Large problems are what searching on meshes of two axes gives: hundreds of options a node, and a programme whose
relaxation alone takes HiGHS minutes. There, messages (see `messages`) say in tenths of a second what each option is
worth and what no choice can beat; a programme of the few best options of every node is small, and its best is mostly
best of all. What then may be better still lies along a *family*: all there is to decide about one mesh axis, the rest
staying, is a small programme too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.errors import PlanError
from cloud.parallel.solving.messages import Options, bids
from cloud.parallel.solving.problem import Problem, Solution, evaluate
from cloud.parallel.solving.programme import Found, Programme, fitting, variables

__all__ = ["Family", "Infeasible", "evaluate", "solve"]

FEW_ROWS = 32
"""Up to so many rows are given to the programme at once; of more, those that turn out to bind."""

SMALL, PATIENCE = 8000, 5.0
"""Variables up to which the whole programme is tried first, and the seconds it gets; memory can make it long."""

WIDER = 0, 2, 6
"""So many options of every node that each belief likes best are tried together with all choices that are known: with
ever more, until the programme takes too long. The last only where memory does not bind: there, it always does."""

BRIEF = 2.0
"""Seconds for one exchange along a family."""

Family: TypeAlias = Sequence[npt.NDArray[np.int64]]
"""Of every node, a label for each option."""


@dataclass(frozen=True)
class Choice:
    """Options of every node, what they cost in seconds, and the bytes by which the fullest row is over its limit."""

    options: Options
    cost: float
    over: float

    @property
    def rank(self) -> tuple[float, float]:
        """What fits comes first, then what is cheap."""
        return max(self.over, 0.0), self.cost


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
    if variables(problem) > SMALL:
        return _large(problem, start, seconds, starts, families)
    model = Programme(problem)
    rows = list(range(len(problem.rows))) if len(problem.rows) <= FEW_ROWS else []
    found = fitting(model, rows, min(seconds, PATIENCE), gap)
    if not found.proven:
        given = [*starts, *([found.options] if found.options else [])]
        return _large(problem, start, seconds, given, families)
    if found.options is None:
        raise _infeasible(problem, model, 10.0)
    held = evaluate(problem, found.options)[1]
    facts = {"variables": model.width, "rows": len(rows), "proven": found.proven}
    bound = min(found.bound, found.cost)
    return Solution(found.options, found.cost, bound, held, time.monotonic() - start, facts)


def _large(
    problem: Problem, start: float, seconds: float, starts: Sequence[Options], families: Sequence[Family]
) -> Solution:
    end = start + seconds
    beliefs = list(bids(problem))
    pool = _best([_judged(problem, each) for each in [*starts, *(belief.options for belief in beliefs)]])
    some = [{choice.options[i] for choice in pool} for i in range(len(problem.nodes))]
    for few in WIDER if len(beliefs) == 1 else WIDER[:2]:
        for belief in beliefs:
            for options, worth in zip(some, belief.worth, strict=True):
                options.update(int(o) for o in np.argsort(worth, kind="stable")[:few] if worth[o] < np.inf)
        found = _among(problem, some, end)
        pool += [_judged(problem, found.options)] if found.options else []
        if not found.proven:
            break
    best = _best(pool)[0]
    if best.over == np.inf:
        raise Infeasible("no choice was found possible: every one needs a transfer that cannot be", np.inf, ())
    if best.over > 0:
        best = _leanest(problem, some, end)
    best = _judged(problem, _along(problem, best.options, families, end))
    cost, held = evaluate(problem, best.options)
    bound = min(max(belief.bound for belief in beliefs), cost)
    facts = {"variables": variables(problem), "rows": len(problem.rows), "beliefs": len(beliefs), "proven": False}
    return Solution(best.options, cost, bound, held, time.monotonic() - start, facts)


def _best(pool: Sequence[Choice]) -> list[Choice]:
    return sorted({choice.options: choice for choice in pool}.values(), key=lambda choice: choice.rank)


def _leanest(problem: Problem, some: Sequence[Collection[int]], end: float) -> Choice:
    """Of these options the choice whose fullest row is least over its limit. Raises `Infeasible` where that is."""
    found = _judged(problem, Programme(_only(problem, some)).fullest(max(end - time.monotonic(), 10.0))[1])
    if found.over > 0:
        raise _over(problem, found.options)
    return found


def _along(problem: Problem, options: Options, families: Sequence[Family], end: float) -> Options:
    """The best that exchanges along one family after the other lead to."""
    still = 0
    while still < len(families) and time.monotonic() < end:
        for family in families:
            like = [np.flatnonzero(labels == labels[o]).tolist() for labels, o in zip(family, options, strict=True)]
            found = _among(problem, like, end, BRIEF).options
            moved = found and _judged(problem, found).rank < _judged(problem, options).rank
            options, still = (found, 0) if found and moved else (options, still + 1)
            if still == len(families):
                break
    return options


def _judged(problem: Problem, options: Options) -> Choice:
    cost, rows = evaluate(problem, options)
    over = max((held - row.limit for held, row in zip(rows, problem.rows, strict=True)), default=0.0)
    return Choice(tuple(options), cost, over if cost < np.inf else np.inf)


def _among(problem: Problem, some: Sequence[Collection[int]], end: float, patience: float = PATIENCE) -> Found:
    """The best choice of some options of every node."""
    left = min(max((end - time.monotonic()) / 3, 1.0), patience)
    return fitting(Programme(_only(problem, some)), [], left, 1e-4)


def _only(problem: Problem, some: Sequence[Collection[int]]) -> Problem:
    nodes = [np.full(len(costs), np.inf) for costs in problem.nodes]
    for few, costs, options in zip(nodes, problem.nodes, some, strict=True):
        few[list(options)] = costs[list(options)]
    return replace(problem, nodes=tuple(nodes))


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
