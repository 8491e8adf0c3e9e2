"""`Task`: all that a trainer asks of whatever it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import jax
import onnx_ir as ir

__all__ = ["Task", "Tree"]

Tree: TypeAlias = Any
"""Arrays in any nesting that JAX knows as a pytree; dicts by preference, whose keys name what they hold."""


class Task(Protocol):
    """A model whose weights are given to it: pure functions of parameters (what gradients move), state (what the
    forward pass itself moves, such as BatchNormalization's running statistics) and inputs by name, rows first."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of `apply`."""

    def init(self) -> tuple[Tree, Tree]:
        """Parameters and state as training starts from them; the caller copies what it changes."""

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """Output (an array, or a dict of several) and the state afterwards: the same one unless `train`.

        `rng` is a key where `train`, else None. Parameters and inputs may come as bfloat16 or float16: then the task
        computes in that type, but for what needs float32 (statistics, exponentials).
        """

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """The model in inference form with these weights."""
