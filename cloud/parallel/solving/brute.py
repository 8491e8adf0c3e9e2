"""Brute force over every choice of a small `Problem`: the definition of what `solve` must find."""

from __future__ import annotations

from itertools import product

from cloud.parallel.solving.problem import Problem
from cloud.parallel.solving.solve import evaluate

__all__ = ["brute_force"]


def brute_force(problem: Problem) -> tuple[float, tuple[int, ...]] | None:
    """The least cost whose memory constraints all hold and the first options with that cost; None if none fits."""
    best: tuple[float, tuple[int, ...]] | None = None
    for options in product(*(range(len(costs)) for costs in problem.nodes)):
        cost, rows = evaluate(problem, options)
        fits = all(held <= row.limit for held, row in zip(rows, problem.rows, strict=True))
        if fits and cost < (best[0] if best else float("inf")):
            best = cost, options
    return best
