"""The best options of a `Problem`: proven if the integer program is small, else the best that is found.

Problems are large when meshes of two axes are searched: hundreds of options per node, and an integer program whose
linear relaxation alone takes HiGHS minutes. For these, messages (see `messages`) estimate in tenths of a second the
worth of each option and give a lower bound; an integer program of the few best options of every node is small, and its
optimum is mostly the global one. Remaining improvements are found along a *family*: all decisions about one mesh axis,
with the rest fixed, are a small integer program too.
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
"""Up to this number, all rows are given to the integer program at once; of more, only those found to be violated."""

SMALL, PATIENCE = 8000, 5.0
"""Variables up to which the whole integer program is tried first, and its seconds; memory can make it slow."""

WIDER = 0, 2, 6
"""Numbers of best options of every node, by each belief, that are tried together with all known choices: more each
time, until the integer program takes too long. The last only if memory does not bind: if it does, that always takes too
long."""

BRIEF = 2.0
"""Seconds for one exchange along a family."""

LEAST = 3.0
"""Seconds to find how much memory would be enough, although none are left."""

Family: TypeAlias = Sequence[npt.NDArray[np.int64]]
"""For every node, a label for each option."""


@dataclass(frozen=True)
class Choice:
    """Options of every node, their cost in seconds, and the bytes by which the fullest row exceeds its limit."""

    options: Options
    cost: float
    over: float

    @property
    def rank(self) -> tuple[float, float]:
        """Order: choices that fit first, then by cost."""
        return max(self.over, 0.0), self.cost


class Infeasible(PlanError):
    """No choice of options fits, or none that fits was found. `least`: the least limit known to fit a choice, in bytes
    (inf if transfers alone exclude all); `rows`: labels of the rows that are then full; `options`: that choice. `over`:
    what compiled programs need as a multiple of the estimate, 0 if nothing was compiled."""

    over = 0.0

    def __init__(self, text: str, least: float, rows: tuple[str, ...], options: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.least, self.rows, self.options = least, rows, options


def solve(
    problem: Problem, seconds: float = 60.0, gap: float = 1e-6, starts: Sequence[Options] = (),
    families: Sequence[Family] = (),
) -> Solution:  # fmt: skip
    """The cheapest options that satisfy all rows: for a small problem within a proven relative `gap`, for a large one
    the best that was found. For a large one, `starts` are initial choices, and a family gives each option of each node
    a label: options of one label may be exchanged in one move. The same problem gives the same options, unless time
    runs out. Raises `Infeasible`, and `PlanError` if time ran out before any choice that fits was found."""
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
        raise _infeasible(problem, model, max(start + seconds - time.monotonic(), LEAST))
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
        raise Infeasible("no possible choice was found: every one needs an impossible transfer", np.inf, ())
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
    """Among these options, the choice whose fullest row is least over its limit. Raises `Infeasible` if it is over."""
    found = _judged(problem, Programme(_only(problem, some)).fullest(max(end - time.monotonic(), LEAST))[1])
    if found.over > 0:
        raise _over(problem, found.options)
    return found


def _along(problem: Problem, options: Options, families: Sequence[Family], end: float) -> Options:
    """The best choice reached by exchanges along one family after the other."""
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
    """The best choice among some options of every node."""
    left = min(max((end - time.monotonic()) / 3, 1.0), patience)
    return fitting(Programme(_only(problem, some)), [], left, 1e-4)


def _only(problem: Problem, some: Sequence[Collection[int]]) -> Problem:
    nodes = [np.full(len(costs), np.inf) for costs in problem.nodes]
    for few, costs, options in zip(nodes, problem.nodes, some, strict=True):
        few[list(options)] = costs[list(options)]
    return replace(problem, nodes=tuple(nodes))


def _infeasible(problem: Problem, model: Programme, seconds: float) -> Infeasible:
    if not problem.rows or model.run([], seconds, 1e-6).status == 2:
        return Infeasible("no choice of options is possible: every one needs an impossible transfer", np.inf, ())
    return _over(problem, model.fullest(seconds)[1])


def _over(problem: Problem, options: Options) -> Infeasible:
    """The error for a leanest choice whose fullest rows exceed their limits."""
    _, bytes_ = evaluate(problem, options)
    over = np.array([bytes_[k] - row.limit for k, row in enumerate(problem.rows)])
    full = [k for k in np.argsort(-over, kind="stable") if over[k] > 0.99 * over.max()]
    limit, need = problem.rows[full[0]].limit, float(bytes_[full[0]])
    names = tuple(problem.rows[k].label for k in full[:5])
    fits = f"the least that fits is {need:.4g}, at {', '.join(names)}"
    text = f"expected a plan within {limit:.4g} bytes per device; {fits}: give more memory or allow recomputation"
    return Infeasible(text, need, names, options)
