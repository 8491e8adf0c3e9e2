"""Prediction for a dataset of Ray by actors, with a bundle or an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cloud.errors import TrainError

__all__ = ["Predictor", "predict"]


class Predictor:
    """A bundle or an ONNX file, for `ray.data.Dataset.map_batches`: it reads the columns named like the model's inputs,
    and returns columns named like its outputs, in addition to those of `keep`."""

    def __init__(self, path: str, keep: Sequence[str] = ()) -> None:
        self._inputs, self._run = (_of_bundle if path.endswith(".mslite") else _of_onnx)(path)
        self._keep = tuple(keep)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs of a batch of rows."""
        if missing := [name for name in (*self._inputs, *self._keep) if name not in batch]:
            raise TrainError(f"expected columns {[*self._inputs, *self._keep]}, got {sorted(batch)}: no {missing}")
        found = self._run({name: batch[name] for name in self._inputs})
        return {**{name: batch[name] for name in self._keep}, **found}


def predict(
    dataset: Any, path: str | os.PathLike[str], *, batch_size: int = 256, workers: int = 1, keep: Sequence[str] = (),
    **resources: Any,
) -> Any:  # fmt: skip
    """The `ray.data.Dataset` of the outputs of the model at `path` (a bundle or an ONNX file, readable by all workers)
    for `dataset`, computed by `workers` actors; `resources`, such as num_gpus=1, are each one's. See `Predictor`."""
    return dataset.map_batches(
        Predictor, fn_constructor_args=(os.path.abspath(path), tuple(keep)), batch_size=batch_size,
        batch_format="numpy", concurrency=workers, **resources,
    )  # fmt: skip


_Run = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]


def _of_bundle(path: str) -> tuple[list[str], _Run]:
    import lite_runtime

    model = lite_runtime.load(path)

    def run(inputs: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {name: np.array(value) for name, value in model.run(inputs).items()}

    return [value.name for value in model.inputs()], run


def _of_onnx(path: str) -> tuple[list[str], _Run]:
    import jax
    import onnx_ir as ir

    from cloud.engine import lower

    model = ir.load(path)
    function = lower(model)
    forward = jax.jit(lambda inputs: function.apply(function.params, function.state, inputs, train=False)[0])

    def run(inputs: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in forward(inputs).items()}

    return [spec.name for spec in function.inputs], run
