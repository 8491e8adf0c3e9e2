"""Finds the first value that is not finite: repeats the computation operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core

from cloud._jax import bound, written_at
from cloud.parallel.tracing.inline import flat
from cloud.train.stepping.step import Batch, Objective, TrainState

__all__ = ["culprit", "first_bad"]


def culprit(objective: Objective, seed: int, before: TrainState, batch: Batch) -> str:
    """`first_bad` of the loss and its gradient in the step that follows `before`."""
    key = jax.random.fold_in(jax.random.key(seed), before.step)

    def mean(parameter: Any, state: Any, batch: Batch) -> Any:
        sums, _ = objective.loss_sums(parameter, state, batch, key)
        return sums["loss"] / sums["examples"]

    def slopes(batch: Batch, parameter: Any, state: Any) -> Any:
        return jax.value_and_grad(mean)(parameter, state, batch)

    return first_bad(slopes, batch=batch, parameter=before.params, state=before.state)


def first_bad(function: Callable[..., Any], **arguments: Any) -> str:
    """A description of an array among the arguments, else of the first operator that produces NaN from finite operands,
    else of the first that produces an infinity. Slow: every operator is compiled and run separately."""
    for name, tree in arguments.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if (row := _bad(leaf)) is not None:
                within = jax.tree_util.keystr(path, simple=True, separator="/")
                return f"{name} {within!r} already holds {row}"
    closed = jax.make_jaxpr(lambda arguments: function(**arguments))(arguments)
    found = list(_makers(flat(closed), jax.tree.leaves(arguments)))
    nan = [text for text in found if text.startswith("nan")]
    return next(iter(nan or found), "every value of the forward pass is finite; check divisions in the loss's gradient")


def _makers(closed: Any, arguments: list[Any]) -> Iterator[str]:
    """A description for every operator that produces non-finite values from finite ones, up to the first NaN."""
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, arguments, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in closed.jaxpr.eqns:
        operands = [value(atom) for atom in eqn.invars]
        results = bound(eqn, operands)
        values.update(zip(eqn.outvars, results, strict=True))
        for result in results:
            if (row := _bad(result)) is not None and all(_bad(operand) is None for operand in operands):
                yield f"{row} produced by {eqn.primitive.name} at {written_at(eqn.source_info)}"
                if row.startswith("nan"):
                    return


def _bad(array: Any) -> str | None:
    """Such as "nan in row 3", for an array that is not all finite."""
    if not jax.numpy.issubdtype(jax.numpy.result_type(array), np.floating):
        return None
    found = np.asarray(array, np.float32)
    places = np.argwhere(~np.isfinite(found))
    if not len(places):
        return None
    what = "nan" if np.isnan(found).any() else "infinity"
    return f"{what} in row {places[0][0]}" if found.ndim else what
