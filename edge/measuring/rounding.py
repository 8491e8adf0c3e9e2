"""How far a model's outputs move in one runtime, by no more than float32 rounding.

A model that rounds to integers at run time makes a whole step of a difference of 1e-7. Two correct runtimes then differ
by as much as one of them does from itself, once its inputs change in their last bits, or once it adds in another order
because its optimisations are off. No limit that is the same for all models can tell this from a mistake; the source's
own runtime can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from edge.measuring.parity import ROUNDING, Difference
from edge.peers.oracle import as_array
from edge.peers.stream import Runner
from lite_runtime.graph import Array

__all__ = ["FACTOR", "TRIES", "is_rounding", "own_differences"]

TRIES = 8
"""How often all runs are repeated with changed inputs."""
FACTOR = 2.0
"""Twice the largest of so few differences is still rounding."""


def own_differences(
    start: Callable[[], Runner],
    rows: Sequence[Mapping[str, Array]],
    others: Sequence[Callable[[], Runner]] = (),
    seed: int = 0,
) -> dict[str, float]:
    """By output, the largest difference of a model from itself where its real inputs change by up to ROUNDING of their
    value, over TRIES random changes of all runs; and where `others`, the runtime with other settings, run it. Of
    outputs that are not real, the largest share of elements that differ.

    start: gives a runner whose state is the initial one, as others do; each run continues the one before.
    """
    rng, plain = np.random.default_rng(seed), _outputs(start(), rows)
    trials = [(start, [{n: _changed(x, rng) for n, x in row.items()} for row in rows]) for _ in range(TRIES)]
    found: dict[str, float] = {}
    for begin, inputs in (*trials, *((other, rows) for other in others)):
        for before, after in zip(plain, _outputs(begin(), inputs), strict=True):
            for name, x in before.items():
                found[name] = max(found.get(name, 0.0), _distance(x, after[name]))
    return found


def is_rounding(differences: Iterable[Difference], own: Mapping[str, float]) -> bool:
    """Whether no difference is more than FACTOR times what `own_differences` found for its output."""
    return all((d.unequal or d.largest) <= FACTOR * own.get(d.name, 0.0) for d in differences)


def _outputs(run: Runner, rows: Iterable[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Copies of the outputs: a runtime may give its own memory."""
    return [{name: as_array(value).copy() for name, value in run(row).items()} for row in rows]


def _changed(x: Array, rng: np.random.Generator) -> Array:
    if x.dtype.kind != "f":
        return x
    change = ROUNDING * rng.uniform(-1, 1, x.shape)
    return np.asarray(x * (1 + change) if np.any(x) else change).astype(x.dtype)


def _distance(x: Array, other: Any) -> float:
    if x.shape != other.shape or not x.size:
        return 0.0
    if x.dtype.kind != "f":
        return float(np.mean(x != other))
    with np.errstate(invalid="ignore"):
        distance = np.abs(x.astype(np.float64) - other)
    return float(np.max(distance, where=np.isfinite(distance), initial=0.0))
