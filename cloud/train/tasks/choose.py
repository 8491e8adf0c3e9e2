"""The task for a model, by the model's type."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cloud.errors import TrainError
from cloud.train.tasks.flax import LinenTask, NnxTask
from cloud.train.tasks.task import Task

__all__ = ["as_task"]


def as_task(model: Any, *, trainable: Sequence[str] | None = None, frozen: Sequence[str] = ()) -> Task:
    """The task for a model: a task, returned unchanged; an `onnx_ir.Model`; a `flax.nnx.Module`; a pair (linen module,
    variables).

    `trainable` and `frozen` are for ONNX models (`OnnxTask`). Raises TrainError for anything else.
    """
    # What reads ONNX takes a second to load: only who has an ONNX model has loaded it.
    if "onnx_ir" in sys.modules and isinstance(model, sys.modules["onnx_ir"].Model):
        from cloud.train.tasks.onnx import OnnxTask

        return OnnxTask(model, trainable=trainable, frozen=frozen)
    if trainable is not None:
        raise TrainError("`trainable` names initialisers of an ONNX model; for other models use freeze=")
    if all(hasattr(model, name) for name in ("inputs", "init", "apply", "export")):
        task: Task = model
        return task
    if isinstance(model, tuple) and len(model) == 2 and _is("flax.linen.module", model[0]):
        return LinenTask(*model)
    if _is("flax.nnx.module", model):
        return NnxTask(model)
    raise TrainError(
        f"expected an onnx_ir.Model, a flax.nnx.Module, (linen module, variables) or a Task, got "
        f"{type(model).__name__}; wrap a JAX function: JaxTask(function, params)"
    )


def _is(module: str, value: Any) -> bool:
    """Whether a class called Module in `module`, which need not be installed, is among the classes of `value`."""
    return any(kind.__name__ == "Module" and kind.__module__ == module for kind in type(value).__mro__)
