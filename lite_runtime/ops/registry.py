"""The planner's rules per operator: one infers result types and, if kernels exist, one binds the node to them.

    @infer("Relu")                 the result dtypes and shapes; raises ShapeError for incompatible operands
    @bind("Relu")                  the native steps; raises NoKernel if only the reference can compute the node

An operator without an `infer` rule, or whose rule needs a value that is not known yet, is run by its reference, and the
shapes of its results are taken from the computed arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lite_runtime.errors import ShapeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Node, Spec
from lite_runtime.steps.declaration import Step
from lite_runtime.steps.operand import Operand
from lite_runtime.targets import Target

__all__ = ["BINDS", "INFERS", "Binder", "DataDependent", "Inference", "NoKernel", "Operand", "Spec", "bind", "infer"]


class DataDependent(Exception):
    """A result's shape depends on a value that has not been computed yet."""


class NoKernel(Exception):
    """No native kernel computes this node in its present form; its reference does."""


class Inference(NamedTuple):
    """One node and what is known about its operands. `specs[i]` is None for an optional input that is left out."""

    node: Node
    specs: Sequence[Spec | None]
    values: Sequence[Array | None]

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or `default`."""
        return self.node.attrs.get(name, default)

    def has(self, i: int) -> bool:
        """Whether optional input `i` is present."""
        return i < len(self.specs) and self.specs[i] is not None

    def spec(self, i: int) -> Spec:
        """The type of input `i`, which must be present."""
        if i >= len(self.specs):
            raise self.error(f"expected at least {i + 1} inputs, got {len(self.specs)}")
        spec = self.specs[i]
        if spec is None:
            raise self.error(f"input {i} is required")
        return spec

    def value(self, i: int) -> Array:
        """The contents of input `i`; raises DataDependent if they are known only at run time."""
        self.spec(i)
        value = self.values[i]
        if value is None:
            raise DataDependent(self.node.where)
        return value

    def ints(self, i: int) -> tuple[int, ...]:
        """The contents of input `i`, which must be integers."""
        value = np.asarray(self.value(i))
        if value.dtype.kind not in "iub":
            raise self.error(f"input {i}: expected integers, got {value.dtype}")
        return tuple(int(v) for v in value.ravel())

    def error(self, what: str) -> ShapeError:
        """A ShapeError that names this node."""
        return ShapeError(f"{self.node.where}: {what}")


class Binder(Protocol):
    """The interface for bind rules. `inputs[i]` is None for an optional input that is left out; likewise
    `outputs[i]`."""

    node: Node
    target: Target
    """Whose kernels run the steps."""
    lanes: int
    """float32 elements in one vector of the target."""

    @property
    def inputs(self) -> Sequence[Operand | None]:
        """Operands in the node's order."""

    @property
    def outputs(self) -> Sequence[Operand | None]:
        """Results in the node's order."""

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or `default`."""

    def constant(self, array: Array) -> Operand:
        """A constant of the program itself (small tables)."""

    def packed(self, source: Operand, layout: str, pack: Callable[[Array], Array]) -> Operand:
        """`pack(source.value)`, computed once per model and cached: weights in the order in which a kernel reads them.
        `layout` identifies the order and everything that `pack` closes over."""

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Operand:
        """Arena memory that exists for this node only; contents undefined."""

    def emit(self, step: Step, *, kernel: str | None = None, parallel: bool = True) -> None:
        """Append a step. `kernel`: which of the declaration's kernels runs it, if there are several. `parallel=False`:
        only worker 0 runs it."""

    def view(self, output: int, of: Operand, offset: int = 0) -> None:
        """Make output `output` the memory of `of` from byte `offset` on, without a copy. Not allowed for constants."""

    def place(self, part: int, target: Operand, at: int, row: int) -> bool:
        """Make the step that computes input `part` write its rows directly into `target`, from element `at` on and
        `row` elements apart, without a copy. Returns False and changes nothing if it cannot or if the input has other
        readers."""

    def choose(self, key: str, options: Sequence[str]) -> str:
        """Choose one of several ways to compute this; the rule's own is first. `key` identifies the case for the
        choice."""
        raise NotImplementedError

    def reuse(self, output: int, of: Operand | None) -> None:
        """Output may overwrite `of` if it has no later readers: the kernel reads element i before it writes element
        i."""


InferRule = Callable[[Inference], Sequence[Spec]]
BindRule = Callable[[Binder], None]
INFERS: dict[str, InferRule] = {}
BINDS: dict[str, BindRule] = {}


def infer(*ops: str) -> Callable[[InferRule], InferRule]:
    """Register a rule that infers the types of a node's outputs, in order."""

    def register(rule: InferRule) -> InferRule:
        for op in ops:
            if op in INFERS:
                raise ValueError(f"expected one rule for the types of {op}, got two")
            INFERS[op] = rule
        return rule

    return register


def bind(*ops: str) -> Callable[[BindRule], BindRule]:
    """Register a rule that emits the native steps of a node."""

    def register(rule: BindRule) -> BindRule:
        for op in ops:
            if op in BINDS:
                raise ValueError(f"expected one rule that binds {op}, got two")
            BINDS[op] = rule
        return rule

    return register
