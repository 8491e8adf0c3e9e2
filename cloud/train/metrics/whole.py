"""`SetMetric`: a metric that is not a mean over examples, such as F1 or the area under a curve.

The device reduces each example to what its metric needs; the host keeps that of all examples, leaves padding rows out,
and computes the value in float64. The result does not depend on batch sizes, devices or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cloud._jax import rows_of_all
from cloud.errors import TrainError

__all__ = ["Kept", "SetMetric"]


@dataclass(frozen=True)
class SetMetric:
    """`rows(output, labels)`: arrays [batch, ...] in any tree, computed on the device; `value(rows)`: a number, or an
    array (a table), from the NumPy arrays [examples, ...] of the whole set. `lower`: smaller values are better."""

    rows: Callable[[Any, Any], Any]
    value: Callable[[Any], Any]
    lower: bool = False


class Kept:
    """What some metrics keep of a set's examples; metrics with the same `rows` share it."""

    def __init__(self, metrics: Mapping[str, SetMetric]) -> None:
        self._metrics = metrics
        self._rows = list(dict.fromkeys(metric.rows for metric in metrics.values()))
        self._parts: list[list[Any]] = []

    def of(self, output: Any, labels: Any, mask: Any) -> list[Any]:
        """What is kept of a batch, and its mask; for use inside a compiled function."""
        found = [_asked(rows, output, labels) for rows in self._rows]
        for leaf in jax.tree.leaves(found):
            if leaf.shape[:1] != mask.shape:
                raise TrainError(
                    f"expected a metric to keep one row per example, {mask.shape[0]} in all, got {list(leaf.shape)}"
                )
        return [*found, mask]

    def add(self, batch: Sequence[Any]) -> None:
        """The result of `of`, computed."""
        *found, mask = rows_of_all(list(batch))
        counts = mask > 0
        self._parts.append(jax.tree.map(lambda array: array[counts], found))

    def values(self) -> dict[str, Any]:
        """The value of every metric: a float, or a NumPy array. Raises TrainError if batches have several shapes."""
        if not self._metrics:
            return {}
        try:
            whole = jax.tree.map(lambda *arrays: np.concatenate(arrays), *self._parts)
        except ValueError as error:
            raise TrainError(
                f"metrics over the whole set need batches of one shape: {error}; pad all examples to one size"
            ) from error
        values = {name: metric.value(whole[self._rows.index(metric.rows)]) for name, metric in self._metrics.items()}
        return {name: float(value) if np.ndim(value) == 0 else np.asarray(value) for name, value in values.items()}


def _asked(rows: Callable[[Any, Any], Any], output: Any, labels: Any) -> Any:
    try:
        return rows(output, labels)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        given = (jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", tree) for tree in (output, labels))
        shown, reason = " and labels ".join(map(str, given)), str(error).partition("\n")[0]
        raise TrainError(f"a metric over the whole set does not fit an output {shown}: {reason}") from error
