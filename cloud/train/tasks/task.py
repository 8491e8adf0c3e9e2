"""`Task`: the interface between a trainer and the model it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Delegated", "Task", "Tree"]

Tree: TypeAlias = Any
"""Arrays in any pytree of JAX; preferably dicts, whose keys name the arrays."""


class Task(Protocol):
    """A model without its weights: pure functions of parameters (changed by gradients), state (changed by the forward
    pass itself, such as BatchNormalization's running statistics) and inputs by name, rows first."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of `apply`."""

    def init(self) -> tuple[Tree, Tree]:
        """The initial parameters and state; the caller copies what it changes."""

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """Output (an array, or a dict of several) and the state afterwards, which is unchanged unless `train`.

        `rng` is a key if `train`, else None. Parameters and inputs may be bfloat16 or float16: then the task computes
        in that type, except for operations that need float32 (statistics, exponentials).
        """

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """The model in inference form with these weights."""


class Delegated:
    """A task that another one computes; subclasses set both attributes, and override what differs."""

    inputs: tuple[str, ...]
    _task: Task

    def init(self) -> tuple[Tree, Tree]:
        """See `Task`."""
        return self._task.init()

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """See `Task`."""
        return self._task.apply(params, state, inputs, rng, train)

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """See `Task`."""
        return self._task.export(params, state)
