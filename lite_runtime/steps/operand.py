"""The operands of steps: a tensor type, a buffer of the plan, and a byte offset into it."""

from __future__ import annotations

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Spec

__all__ = ["Operand"]


class Operand(NamedTuple):
    """A tensor that a kernel reads or writes: `slot` is the planner's buffer, `offset` the byte offset in it."""

    spec: Spec
    slot: int
    offset: int = 0
    value: Array | None = None
    """Contents, if known while planning (a constant)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """One of `graph.DTYPES`."""
        return self.spec.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    def at(self, offset: int, shape: tuple[int, ...]) -> Operand:
        """A dense view starting `offset` bytes further on."""
        return Operand(Spec(self.spec.dtype, shape), self.slot, self.offset + offset)
