"""What can be trained: ONNX models, JAX functions, Flax modules, behind one `Task`."""

from __future__ import annotations

from cloud.train.tasks.choose import as_task
from cloud.train.tasks.flax import LinenTask, NnxTask
from cloud.train.tasks.function import JaxTask
from cloud.train.tasks.onnx import OnnxTask
from cloud.train.tasks.task import Task, Tree

__all__ = ["JaxTask", "LinenTask", "NnxTask", "OnnxTask", "Task", "Tree", "as_task"]
