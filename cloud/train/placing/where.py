"""The values of `Trainer(parallel=...)` as functions that place a recipe."""

from __future__ import annotations

from pathlib import Path

from cloud.errors import TrainError
from cloud.parallel.plan import Plan
from cloud.train.placing.placement import Alone, DataParallel, Prepare

__all__ = ["Parallel", "prepare_of"]

Parallel = str | Path | Plan | Prepare


def prepare_of(parallel: Parallel) -> Prepare:
    """"none", "data", "auto", a plan, its file, or a function that makes a placement. Raises TrainError."""
    known: dict[str, Prepare] = {
        "none": lambda recipe, state, batch: Alone(recipe.step()),
        "data": lambda recipe, state, batch: DataParallel(recipe.step()),
        "auto": lambda recipe, state, batch: _planned(None)(recipe, state, batch),
    }
    if isinstance(parallel, Plan):
        return _planned(parallel)
    if isinstance(parallel, Path) or (isinstance(parallel, str) and parallel.endswith(".json")):
        from cloud.parallel.explaining import planfile

        return _planned(planfile.read(parallel).plan)
    if callable(parallel):
        return parallel
    if parallel not in known:
        choices = f"{', '.join(known)}, a plan's .json file, a Plan or Auto(...)"
        raise TrainError(f"expected parallel to be one of {choices}, got {parallel!r}")
    return known[parallel]


def _planned(plan: Plan | None) -> Prepare:
    """The planner's modules are loaded only if a plan is wanted."""
    from cloud.train.placing.planned import Auto

    return Auto(plan=plan)
