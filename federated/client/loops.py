"""Steps of SGD in arrays that stay: parameters, batches and gradients where the model reads and writes them.

The same arithmetic in the same order as `federated.algorithms.steps.descend` over `Learner.gradient`, so the same bits;
for small models half of the time of a step went into new arrays and dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from federated.learner import Batch
from federated.tree import Array, Tree
from lite_runtime import Model

__all__ = ["Loop"]


class Weight(NamedTuple):
    """A parameter: its name, the array that the model reads, its gradient, an array for the step."""

    name: str
    value: Array
    slope: Array
    step: Array


class Loop:
    """For one shape of batches. `sizes`: of the inputs and labels; `reads`: parameters by the name of the input that
    holds them; `slopes`: parameters by the name of the output with their gradient; `fixed`: inputs that do not change.
    """

    def __init__(
        self, model: Model, sizes: Mapping[str, tuple[int, ...]], reads: Mapping[str, str], slopes: Mapping[str, str],
        fixed: Mapping[str, Array],
    ) -> None:  # fmt: skip
        self._run = model.bind(sizes, "gradients")
        inputs, outputs = self._run.inputs, self._run.outputs
        self.fixed = self._run.fixed
        """Whether it can be used: the model runs without parts that make new arrays."""
        homes = {name: inputs[read] for read, name in reads.items() if name not in fixed}
        for read, name in reads.items():
            if name in fixed:
                inputs[read][...] = fixed[name]
        self._weights = [
            Weight(name, homes[name], outputs[output], np.empty_like(homes[name]))
            for output, name in (slopes.items() if self.fixed else ())
        ]
        self._labels = inputs["labels"]
        self._inputs = {name: inputs[name] for name in sizes if name != "labels"}

    def descend(self, params: Tree, batches: Batch, rate: float, pool: Batch | None) -> tuple[dict[str, Array], Array]:
        """The parameters after a step for each batch [steps, n, ...], and the mean loss. `pool`: batches are numbers of
        its examples."""
        for weight in self._weights:
            weight.value[...] = params[weight.name]
        losses = np.empty(len(batches.labels), np.float32)
        for at, rows in enumerate(batches.labels):
            if pool is None:
                for name, home in self._inputs.items():
                    home[...] = batches.inputs[name][at]
                self._labels[...] = rows
            else:
                for name, home in self._inputs.items():
                    # "raise" would go through another array; the numbers come from the pool's own size.
                    pool.inputs[name].take(rows, 0, out=home, mode="clip")
                pool.labels.take(rows, 0, out=self._labels, mode="clip")
            self._run()
            losses[at] = self._run.outputs["loss"]
            for weight in self._weights:
                np.multiply(weight.slope, rate, out=weight.step)
                np.subtract(weight.value, weight.step, out=weight.value)
        # As `losses.mean()`, which takes five times as long.
        return {weight.name: weight.value.copy() for weight in self._weights}, np.add.reduce(losses) / len(losses)
