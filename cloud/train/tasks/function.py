"""Any JAX function as a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud._jax import shaped
from cloud.errors import TrainError
from cloud.train.tasks.task import Tree

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["JaxTask"]


class JaxTask:
    """`function(params, *inputs) -> output`, or with `state`: `function(params, state, *inputs) -> (output, state)`.

    Inputs are named like the function's positional parameters. Keyword-only parameters `rng` (a key, None in inference)
    and `train` (a bool) are filled in if the function has them. An output may be an array or a dict of arrays.
    `examples`: arrays (or shapes with dtypes) by input name with which `export` traces the function; by default those
    of its last call. The exported model accepts any number of rows, the first dimension.
    """

    def __init__(
        self, function: Callable[..., Any], params: Tree, state: Tree = None,
        *, examples: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if not any(jnp.issubdtype(jnp.result_type(leaf), np.floating) for leaf in jax.tree.leaves(params)):
            raise TrainError("expected parameters with at least one float array, got none: there is nothing to train")
        self._function, self._start = function, (params, {} if state is None else state)
        self._stateful = state is not None
        self.inputs, self._extras = _inputs(function, 2 if self._stateful else 1)
        self._examples = {} if examples is None else {name: _shape(a) for name, a in examples.items()}
        if unknown := sorted(self._examples.keys() - set(self.inputs)):
            raise TrainError(f"expected examples of {list(self.inputs)}, got also {unknown}")

    def init(self) -> tuple[Tree, Tree]:
        """See `Task`."""
        return self._start

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """See `Task`. Raises TrainError for inputs with other names, and for a function that returns no state."""
        if set(inputs) != set(self.inputs):
            raise TrainError(f"expected inputs {list(self.inputs)}, got {sorted(inputs)}")
        self._examples = {name: _shape(inputs[name]) for name in self.inputs}
        return self._call(params, state, [inputs[name] for name in self.inputs], rng, train)

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """By jax2onnx, and checked: see `cloud.train.tasks.exported`. Raises TrainError if shapes are unknown."""
        from cloud.train.tasks.exported import to_onnx

        if missing := [name for name in self.inputs if name not in self._examples]:
            raise TrainError(f"exporting needs the shapes of {missing}: give JaxTask examples=, or train first")
        examples = {name: self._examples[name] for name in self.inputs}
        return to_onnx(lambda *inputs: self._call(params, state, inputs, None, train=False)[0], examples)

    def _call(self, params: Tree, state: Tree, inputs: Any, rng: Any, train: bool) -> tuple[Any, Tree]:
        extra = {name: value for name, value in {"rng": rng, "train": train}.items() if name in self._extras}
        if not self._stateful:
            return self._function(params, *inputs, **extra), state
        found = self._function(params, state, *inputs, **extra)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TrainError(f"expected a function with state to return (output, state), got {type(found).__name__}")
        return found


def _inputs(function: Callable[..., Any], skip: int) -> tuple[tuple[str, ...], set[str]]:
    """Names of the positional parameters after the first `skip`, and which of `rng` and `train` it takes."""
    parameters = inspect.signature(function).parameters.values()
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    extras = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} & {"rng", "train"}
    if len(positional) <= skip:
        before = ", ".join(["params", "state"][:skip])
        raise TrainError(f"expected a function of ({before}, inputs...), got one of ({', '.join(positional)})")
    return tuple(positional[skip:]), extras


def _shape(example: Any) -> Any:
    dtype = jnp.result_type(example)
    narrow = jnp.issubdtype(dtype, np.floating) and dtype.itemsize < 4  # the dtype in a mixed-precision step
    return shaped(np.shape(example), np.float32 if narrow else dtype)
