"""What can be trained: ONNX models, JAX functions, Flax modules, behind one `Task`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud.train.tasks.choose import as_task
from cloud.train.tasks.flax import LinenTask, NnxTask
from cloud.train.tasks.function import JaxTask
from cloud.train.tasks.task import Task, Tree
from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from cloud.train.tasks.onnx import OnnxTask

__all__ = ["JaxTask", "LinenTask", "NnxTask", "OnnxTask", "Task", "Tree", "as_task"]

__getattr__ = lazy(__name__, {"OnnxTask": "cloud.train.tasks.onnx"})
