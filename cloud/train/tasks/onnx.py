"""An ONNX model as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import onnx_ir as ir

from cloud.engine import export, lower
from cloud.errors import TrainError
from cloud.train.tasks.task import Tree

__all__ = ["OnnxTask"]


class OnnxTask:
    """`model` (ai.onnx, opset 18 or later), whose initialisers matching the glob patterns `trainable` are parameters;
    by default all that `cloud.engine.lower` treats as weights. BatchNormalization whose scale is `frozen` (patterns
    too) keeps its statistics and normalises with them. The model is not changed."""

    def __init__(self, model: ir.Model, *, trainable: Sequence[str] | None = None, frozen: Sequence[str] = ()) -> None:
        self.model, self._trainable = model, trainable
        self.function = lower(model, training=True, trainable=trainable, frozen=frozen)
        if not self.function.params:
            raise TrainError("the model has no float initialisers to train; are its weights Constant nodes?")

    def refrozen(self, frozen: Sequence[str]) -> OnnxTask:
        """The same task with other parameters frozen."""
        return OnnxTask(self.model, trainable=self._trainable, frozen=frozen)

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Task`."""
        return tuple(spec.name for spec in self.function.inputs)

    def init(self) -> tuple[Tree, Tree]:
        """See `Task`."""
        return self.function.params, self.function.state

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """See `Task`."""
        outputs, state = self.function.apply(params, state, inputs, rng=rng, train=train)
        return (next(iter(outputs.values())) if len(outputs) == 1 else outputs), state

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """See `Task`."""
        return export(self.model, params, state)
