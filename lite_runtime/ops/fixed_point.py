"""Result types of fixed-point operators, which run as members of elementwise chains (`lowering`), and tables of 16-bit
functions."""

from __future__ import annotations

from lite_runtime import steps
from lite_runtime.operators.record import INTS
from lite_runtime.ops._axes import attr_int
from lite_runtime.ops._checks import broadcast, choice, one_of, one_or
from lite_runtime.ops.registry import Binder, Inference, Spec, bind, infer
from lite_runtime.reference.fixed_point import INTEGER_BITS, ROUNDINGS, TABLE

__all__: list[str] = []

PIECE = 4096
"""Elements from twice of which a table is shared between workers."""
_INTS = tuple(name for name in INTS if name != "uint64")


@infer("Rescale")
def _rescale(n: Inference) -> list[Spec]:
    choice(n, "rounding", "", ROUNDINGS)
    x = one_of(n, 0, _INTS)
    shape = broadcast(n, x.shape, *(one_of(n, i, ("int32",)).shape for i in (1, 2)))
    if n.has(4):
        one_or(n, 4, "x_zero_point", (x.dtype,))
    return [Spec(one_or(n, 3, "y_zero_point", _INTS).dtype, shape)]


@infer("FixedPointSigmoid", "FixedPointTanh")
def _sigmoid(n: Inference) -> list[Spec]:
    attr_int(n, "integer_bits", 3, INTEGER_BITS)
    interpolated = attr_int(n, "interpolated", 0, range(2))
    return [Spec("int16", one_of(n, 0, ("int32" if interpolated else "int16",)).shape)]


@infer("FixedPointRsqrt")
def _rsqrt(n: Inference) -> list[Spec]:
    choice(n, "part", "", ("MULTIPLIER", "SHIFT"))
    return [one_of(n, 0, ("int32",))]


@infer("FixedPointDiv")
def _div(n: Inference) -> list[Spec]:
    attr_int(n, "multiplier", -1, range(1 << 31))
    attr_int(n, "shift", -1, range(63))
    return [Spec("int32", broadcast(n, *(one_of(n, i, ("int32",)).shape for i in (0, 1))))]


@infer("InterpolatedTable")
def _interpolated(n: Inference) -> list[Spec]:
    x, table = one_of(n, 0, ("int16",)), one_of(n, 1, ("int16",))
    if table.shape != (TABLE,):
        raise n.error(f"expected a table of shape ({TABLE},), got {table.shape}")
    return [x]


@bind("InterpolatedTable")
def _bind_interpolated(b: Binder) -> None:
    x, table = b.inputs
    y = b.outputs[0]
    assert x is not None and table is not None and y is not None
    b.reuse(0, x)
    b.emit(steps.Interpolated(x=x, table=table, y=y, total=x.size), parallel=x.size >= 2 * PIECE)
