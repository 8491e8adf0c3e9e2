"""Result types of fixed-point operators, which run as members of elementwise chains (`lowering`)."""

from __future__ import annotations

from lite_runtime.operators.record import INTS
from lite_runtime.ops._axes import attr_int
from lite_runtime.ops._checks import broadcast, choice, one_of, one_or
from lite_runtime.ops.registry import Inference, Spec, infer
from lite_runtime.reference.fixed_point import INTEGER_BITS, ROUNDINGS

__all__: list[str] = []

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
def _of_sixteen_bits(n: Inference) -> list[Spec]:
    attr_int(n, "integer_bits", 3, INTEGER_BITS)
    return [one_of(n, 0, ("int16",))]
