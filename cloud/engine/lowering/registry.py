"""The lowering table: ONNX operator -> function of arrays. A decorator fills it, in one file per family.

Calling convention: `fn(*inputs, **attributes)`. An omitted optional input is None; attributes have ONNX's names.
A function that needs more than its operands declares a keyword-only `context: Context`. It returns one value, or a
tuple of them in the order of the node's outputs (more values than the node's outputs are allowed).

There are two kinds of values. A NumPy array is *static*: a constant, a shape, or a value computed from those alone; it
keeps its 64-bit integers and may determine shapes. A JAX array is *dynamic*. A function whose operands are all static
uses NumPy if it can (see `namespace`); so chains of Shape, Gather, Concat and Reshape are evaluated while the model is
traced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from cloud._jax import is_traced
from cloud.errors import EngineError
from lite_runtime.operators import require

__all__ = [
    "LOWERINGS",
    "Context",
    "Lowering",
    "Program",
    "Step",
    "Tensor",
    "is_static",
    "lowering",
    "namespace",
    "normalise_axes",
    "static_array",
    "static_float",
    "static_int",
    "static_ints",
]

Tensor: TypeAlias = Any
"""A NumPy array (static) or a JAX array (dynamic)."""

Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass(frozen=True)
class Lowering:
    """One row of the table."""

    function: Callable[..., Any]
    wants_context: bool


LOWERINGS: dict[str, Lowering] = {}


def lowering(*ops: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the lowering of `ops`."""

    def enter(function: Rule) -> Rule:
        row = Lowering(function, "context" in inspect.signature(function).parameters)
        require(ops, "lowerings to JAX")
        for op in ops:
            if op in LOWERINGS:
                raise EngineError(f"two lowerings are registered for {op}")
            LOWERINGS[op] = row
        return function

    return enter


@dataclass(frozen=True)
class Step:
    """One node, ready to run: attributes are Python values, subgraphs are `Program`s; `still`: never trained."""

    op: str
    row: Lowering
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    where: str
    index: int
    still: bool = False


@dataclass(frozen=True)
class Program:
    """A graph or subgraph as steps in order over named values."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    constants: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Context:
    """The context of a lowering beyond its operands.

    `statistics` holds the current BatchNorm statistics by initialiser name and receives their updates; it is None
    inside a subgraph, where updates are not possible. `run(program, inputs, salt)` evaluates a subgraph with access to
    the outer names; `salt` makes its random numbers differ from those of another iteration.
    """

    where: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    train: bool
    statistics: MutableMapping[str, Tensor] | None
    rng: jax.Array | None
    index: int
    run: Callable[..., list[Tensor]]

    def key(self) -> jax.Array:
        """This node's random key."""
        if self.rng is None:
            raise EngineError(f"{self.where} draws random numbers, but no rng was given; pass rng=jax.random.key(seed)")
        return jax.random.fold_in(self.rng, self.index)

    def wants(self, output: int) -> bool:
        """Whether the node's output with that number is used."""
        return output < len(self.outputs) and bool(self.outputs[output])


def is_static(*values: Tensor) -> bool:
    """Whether all present values are static."""
    return all(value is None or isinstance(value, np.ndarray | np.generic) for value in values)


def namespace(*values: Tensor) -> Any:
    """`numpy` if all values are static, else `jax.numpy`."""
    return np if is_static(*values) else jnp


def static_array(value: Tensor, what: str) -> npt.NDArray[Any]:
    """The elements of an operand that determines shapes; `EngineError` if they are known only when the model runs."""
    if is_traced(value):
        raise EngineError(
            f"{what} must be known when the model is traced, but it is computed from the model's inputs or "
            "parameters; make it a constant of the graph"
        )
    return np.asarray(value)


def static_ints(value: Tensor, what: str) -> tuple[int, ...]:
    """`static_array` as a tuple of integers."""
    return tuple(int(item) for item in static_array(value, what).reshape(-1))


def static_int(value: Tensor, what: str) -> int:
    """`static_array` as one integer."""
    return int(static_array(value, what).reshape(()))


def static_float(value: Tensor, what: str) -> float:
    """`static_array` as one float."""
    return float(static_array(value, what).reshape(()))


def normalise_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front; each must name one of `rank` axes."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise EngineError(f"axis {axis} is out of range for an operand of rank {rank}")
    return tuple(axis % rank for axis in axes)
