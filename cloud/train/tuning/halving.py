"""Successive halving without waiting: which trials go on at a rung.

Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020), as a
function of the values alone, so that a study that was interrupted decides as one that was not. optuna's own pruner
keeps the rungs a trial has passed in the trial, and lets one go on that was killed between the decision and its record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["is_rung", "stops"]


def is_rung(at: int, least: int, factor: int) -> bool:
    """Whether evaluation number `at` (from 1) is least * factor^n for a whole n."""
    rung = least
    while rung < at:
        rung *= factor
    return rung == at


def stops(curve: Sequence[float], others: Iterable[Sequence[float]], *, lower: bool, least: int, factor: int) -> bool:
    """Whether a trial with these values so far ends at its last one: at a rung it goes on only as one of the best
    1 / factor of those that reached the rung, itself included, and the best one always. `lower`: less is better.
    A value that is not finite ends it everywhere, also with factor 0, with which there are no rungs."""
    at, value = len(curve), curve[-1]
    if not math.isfinite(value):
        return True
    if not factor or not is_rung(at, least, factor):
        return False
    reached = [other[at - 1] for other in others if len(other) >= at]
    better = sum(math.isfinite(v) and (v < value if lower else v > value) for v in reached)
    return better >= max(1, (len(reached) + 1) // factor)
