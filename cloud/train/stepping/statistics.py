"""The statistics of BatchNormalization, estimated again for weights that were never trained with (averages).

A statistic moves as s -> m s + c, where c is the batch's part. m and c follow from two passes with different s, so that
the mean of c / (1 - m) over batches is an estimate that does not depend on the momentum. State that moves otherwise is
carried from batch to batch as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np

from cloud.train.stepping.step import Batch, Objective

__all__ = ["Statistics"]

_CLOSE = 1e-3
"""How far a statistic may be from moving by m s + c, of its size."""


class Statistics:
    """Estimates the state of an objective's task."""

    def __init__(self, objective: Objective, seed: int) -> None:
        def moved(params: Any, state: Any, batch: Batch, number: Any) -> Any:
            key = jax.random.fold_in(jax.random.key(seed), number)
            return objective.loss_sums(params, state, batch, key)[1]

        self._moved = jax.jit(moved)

    def of(self, params: Any, state: Any, batches: Iterable[Batch], most: int) -> Any:
        """The state for `params`, over at most `most` batches (0: all); `state` is where it starts."""
        leaves, tree = jax.tree.flatten(jax.device_get(state))
        keeps: list[Any] = []
        carried, sums, count = leaves, [np.zeros(leaf.shape) for leaf in leaves], 0

        def after(given: list[Any], batch: Batch) -> list[Any]:
            found = self._moved(params, jax.tree.unflatten(tree, given), batch, np.int32(count))
            return list(map(np.asarray, jax.tree.leaves(found)))

        for batch in islice(batches, most or None):
            if not count:
                keeps = _kept(leaves, partial(after, batch=batch))
            zero = [c if m is None else np.zeros_like(c) for c, m in zip(carried, keeps, strict=True)]
            carried = after(zero, batch)
            sums = [total + part for total, part in zip(sums, carried, strict=True)]
            count += 1
        if not count:
            return state
        found = [
            jax.numpy.asarray(now if m is None else (total / count / (1 - m)).astype(now.dtype))
            for now, total, m in zip(carried, sums, keeps, strict=True)
        ]
        return jax.tree.unflatten(tree, found)


def _kept(leaves: list[Any], after: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """m of every array, None for one that stays or moves otherwise."""
    first = after(leaves)
    moves = [
        jax.numpy.issubdtype(old.dtype, np.floating) and not np.array_equal(old, new, equal_nan=True)
        for old, new in zip(leaves, first, strict=True)
    ]

    def at(share: float, base: list[Any]) -> list[Any]:
        parts = zip(leaves, base, moves, strict=True)
        return [(share * (1 + np.abs(b))).astype(a.dtype) if move else a for a, b, move in parts]

    base = after(at(0, leaves))
    one, two = after(at(1, base)), after(at(2, base))
    found: list[Any] = []
    for move, *parts in zip(moves, base, one, two, strict=True):
        if not move:
            found.append(None)
            continue
        b, x, y = (part.astype(np.float64) for part in parts)
        size = 1 + np.abs(b)
        m = (x - b) / size
        linear = np.all((np.abs(y - b - 2 * (x - b)) <= _CLOSE * size) & (m >= 0) & (m < 1))
        found.append(m if linear else None)
    return found
