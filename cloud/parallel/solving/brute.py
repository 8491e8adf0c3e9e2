"""Every choice of a small `Problem`, tried: the definition of what `solve` must find."""

from __future__ import annotations

from itertools import product

from cloud.parallel.solving.problem import Problem
from cloud.parallel.solving.solve import evaluate

__all__ = ["brute_force"]


def brute_force(problem: Problem) -> tuple[float, tuple[int, ...]] | None:
    """The least cost whose rows all fit and the first options that have it; None where none fits."""
    best: tuple[float, tuple[int, ...]] | None = None
    for options in product(*(range(len(costs)) for costs in problem.nodes)):
        cost, rows = evaluate(problem, options)
        fits = all(held <= row.limit for held, row in zip(rows, problem.rows, strict=True))
        if fits and cost < (best[0] if best else float("inf")):
            best = cost, options
    return best
