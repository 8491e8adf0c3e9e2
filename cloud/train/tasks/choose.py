"""The task for a model, by the model's type."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud.errors import TrainError
from cloud.train.tasks.flax import LinenTask, NnxTask
from cloud.train.tasks.function import JaxTask
from cloud.train.tasks.task import Task

__all__ = ["as_task"]


def as_task(model: Any, *, trainable: Sequence[str] | None = None, frozen: Sequence[str] = ()) -> Task:
    """The task for a model: a task, returned unchanged; an `onnx_ir.Model` or the path of an ONNX file; a JAX function
    with its parameters, (function, params) or (function, params, state); a `flax.nnx.Module`; a pair (linen module,
    variables).

    `trainable` and `frozen` are for ONNX models (`OnnxTask`). Raises TrainError for anything else.
    """
    if isinstance(model, str | os.PathLike):
        model = _graph(Path(model))
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
    if isinstance(model, tuple) and len(model) in (2, 3) and inspect.isroutine(model[0]):
        made: Task = JaxTask(*model)
        return made
    raise TrainError(
        "expected an onnx_ir.Model or the path of an ONNX file, a JAX function with its parameters (function, params), "
        f"a flax.nnx.Module, (linen module, variables) or a Task, got {type(model).__name__}"
        + ("; give its parameters too: (function, params)" if callable(model) else "")
    )


def _graph(path: Path) -> Any:
    """The model of a file. What a run file describes is more than a model."""
    if path.suffix == ".toml":
        raise TrainError(
            f"expected the path of an ONNX file, got {str(path)!r}, a run file: job_of(read({str(path)!r})) of "
            "cloud.train.jobs is the trainer with its data, and `msedge train` runs it"
        )
    from cloud.train.jobs.graphs import graph_of

    return graph_of(path, key="Trainer")


def _is(module: str, value: Any) -> bool:
    """Whether a class called Module in `module`, which need not be installed, is among the classes of `value`."""
    return any(kind.__name__ == "Module" and kind.__module__ == module for kind in type(value).__mro__)
