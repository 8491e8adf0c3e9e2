"""The evaluation of a set: sums on the devices, and metrics over the whole set on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from cloud.train.metrics.whole import Kept, SetMetric
from cloud.train.reports import Evaluation, means_of, summed
from cloud.train.stepping.step import Batch, Objective

__all__ = ["Measuring"]


class Measuring:
    """Evaluates an objective, with metrics over the whole set beside its own."""

    def __init__(self, objective: Objective, sets: Mapping[str, SetMetric]) -> None:
        self._sets = sets
        kept = Kept(sets)

        def run(params: Any, state: Any, batch: Batch) -> Any:
            sums, output = objective.measure(params, state, batch)
            return sums, kept.of(output, batch["labels"], batch["mask"]) if sets else []

        self._run = jax.jit(run)

    def __call__(self, weights: tuple[Any, Any], batches: Iterable[Batch], place: Callable[[Any], Any]) -> Evaluation:
        """Loss and metrics in inference form with `weights` (params, state); every example counts once."""
        sums: list[Any] = []
        kept, last = Kept(self._sets), None
        for batch in batches:
            of_batch, rows = self._run(*weights, place(batch))
            sums.append(of_batch)
            if last is not None:  # one batch behind, so that the device computes meanwhile
                kept.add(last)
            last = rows if self._sets else None
        if last is not None:
            kept.add(last)
        means = means_of(summed(sums))
        values = kept.values() if sums else {}
        tables = {name: value for name, value in values.items() if not isinstance(value, float)}
        numbers = {name: value for name, value in values.items() if name not in tables}
        return Evaluation(means.loss, {**means.metrics, **numbers}, means.examples, tables)
