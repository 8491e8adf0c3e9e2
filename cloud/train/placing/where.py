"""The values of `Trainer(parallel=...)` as functions that place a recipe."""

from __future__ import annotations

from pathlib import Path

from cloud.errors import TrainError
from cloud.parallel.compressed.method import AUTO, Compress
from cloud.parallel.plan import Plan
from cloud.train.placing.placement import Alone, DataParallel, Placement, Prepare
from cloud.train.stepping.step import Batch, Recipe, TrainState

__all__ = ["Parallel", "prepare_of"]

Parallel = str | Path | Plan | Prepare


def prepare_of(parallel: Parallel, compress: str | Compress | None = None) -> Prepare:
    """"none", "data", "auto", a plan, its file, or a function that makes a placement. `compress`: how gradients cross
    slow links. Raises TrainError."""
    how = Compress.named(compress) if isinstance(compress, str) else compress
    known: dict[str, Prepare] = {
        "none": lambda recipe, state, batch: Alone(recipe.step()),
        "data": lambda recipe, state, batch: DataParallel(recipe.step()),
        "auto": lambda recipe, state, batch: _planned(None, how)(recipe, state, batch),
    }
    if how is not None:
        return _compressing(parallel, how, known["auto"])
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


def _compressing(parallel: Parallel, how: Compress, auto: Prepare) -> Prepare:
    """With compressed gradients: data parallelism, or what the planner chooses between."""
    if parallel == "data":
        return lambda recipe, state, batch: _data(recipe, state, batch, how)
    if parallel == "auto":
        return auto
    raise TrainError(
        f'compress={str(how)!r} is for parallel="data" or "auto" (or Auto(compress=...)), got {parallel!r}: one device '
        "exchanges no gradients, and a plan says already what is exchanged"
    )


def _data(recipe: Recipe, state: TrainState, batch: Batch, how: Compress) -> Placement:
    from cloud.train.placing.compressed import Compressed, weighed

    if how.method == AUTO:
        chosen = weighed(recipe, state, batch, how)
        return DataParallel(recipe.step()) if chosen is None else chosen
    return Compressed(recipe, state, how)


def _planned(plan: Plan | None, how: Compress | None = None) -> Prepare:
    """The planner's modules are loaded only if a plan is wanted."""
    from cloud.train.placing.planned import Auto

    return Auto(plan=plan, compress=how)
