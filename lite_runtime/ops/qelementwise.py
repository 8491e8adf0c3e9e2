"""QLinearAdd, QLinearSub and QLinearMul: result types, and kernels for operands broadcast in any way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.ops._checks import broadcast, choice, one_of
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.reference.qelementwise import multipliers
from lite_runtime.reference.qlinear import bounds_of

__all__: list[str] = []

_BYTES = ("int8", "uint8")
_PARALLEL_FROM = 1 << 14
"""Elements: about two microseconds of one worker."""


@infer("QLinearAdd", "QLinearSub", "QLinearMul")
def _infer(n: Inference) -> list[Spec]:
    a, b = one_of(n, 0, _BYTES), one_of(n, 3, _BYTES)
    for i in (1, 4, 6):
        one_of(n, i, ("float32",))
    for i in (2, 3, 5, 7):
        if n.spec(i).dtype != a.dtype:
            raise n.error(f"expected input {i} to be {a.dtype} as input 0 is, got {n.spec(i).dtype}")
    for i in (1, 2, 4, 5, 6, 7):
        if n.spec(i).size != 1:
            raise n.error(f"expected input {i} to hold one element, got shape {n.spec(i).shape}")
    choice(n, "activation", "", ("", "Relu", "Clip"))
    return [Spec(a.dtype, broadcast(n, a.shape, b.shape))]


# -- broadcasting -----------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Adjacent axes of the result along which each operand varies (1) or is constant (0)."""

    extent: int
    a: int
    b: int


def _groups(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> list[_Group]:
    """The result's axes, outermost first, in as few groups as possible; at least one."""
    found: list[_Group] = []
    wide = [(1,) * (len(shape) - len(s)) + tuple(s) for s in (a, b)]
    for size, *own in zip(shape, *wide, strict=True):
        if size == 1:
            continue
        varies = tuple(int(n != 1) for n in own)
        if found and found[-1][1:] == varies:
            found[-1] = found[-1]._replace(extent=found[-1].extent * size)
        else:
            found.append(_Group(size, *varies))
    return found or [_Group(1, 1, 1)]


def _around(groups: Sequence[_Group]) -> tuple[steps.Group, ...]:
    """The groups around the innermost run, from the inside out, with the byte distances between their elements."""
    *outer, run = groups
    found, step_a, step_b = [], run.extent if run.a else 1, run.extent if run.b else 1
    for group in reversed(outer):
        found.append(steps.Group(group.extent, group.a * step_a, group.b * step_b))
        step_a, step_b = step_a * (group.extent if group.a else 1), step_b * (group.extent if group.b else 1)
    return tuple(found)


# -- kernels ----------------------------------------------------------------------------------------------------------


class _Scaled(NamedTuple):
    """An operand, its scale and zero point, and its sign in a sum."""

    x: Operand
    scale: float
    zero: int
    sign: int = 1


def _numbers(b: Binder) -> list[Any]:
    """The scales and zero points, which must be known while planning."""
    given = [b.inputs[i] for i in (1, 2, 4, 5, 6, 7)]
    values = [o.value for o in given if o is not None and o.value is not None]
    if len(values) != len(given):
        raise NoKernel("scales or zero points that are computed")
    return [v.reshape(()).item() for v in values]


def _bounds(b: Binder, dtype: str, y_scale: float, y_zero: int) -> tuple[int, int]:
    clip = {k: float(b.attr(k, d)) for k, d in (("activation_min", -np.inf), ("activation_max", np.inf))}
    return bounds_of(np.dtype(dtype), y_scale, y_zero, str(b.attr("activation", "")), **clip)


@bind("QLinearAdd", "QLinearSub", "QLinearMul")
def _bind(b: Binder) -> None:
    x, _, _, w = b.inputs[:4]
    y = b.outputs[0]
    assert x is not None and w is not None and y is not None
    a_scale, a_zero, b_scale, b_zero, y_scale, y_zero = _numbers(b)
    left = _Scaled(x, a_scale, a_zero)
    right = _Scaled(w, b_scale, b_zero, -1 if b.node.op == "QLinearSub" else 1)
    groups = _groups(y.shape, x.shape, w.shape)
    if not groups[-1].a:  # in both kernels the first operand varies along a run
        left, right = right, left
        groups = [_Group(g.extent, g.b, g.a) for g in groups]
    low, high = _bounds(b, y.dtype, y_scale, y_zero)
    rule, name = (_product, "product") if b.node.op == "QLinearMul" else (_sum, "sum")
    walk = _Walk(y=y, total=y.size, run=groups[-1].extent, groups=_around(groups), group_count=len(groups) - 1)
    step = rule(left, right, y_scale, y_zero, (low, high), walk)
    spread = "" if groups[-1].b else "__spread"
    b.emit(step, kernel=f"qelementwise.{y.dtype}_{name}{spread}", parallel=y.size >= _PARALLEL_FROM)


if TYPE_CHECKING:

    class _Walk(TypedDict):
        """The result, and the loops over it."""

        y: Operand
        total: int
        run: int
        group_count: int
        groups: tuple[steps.Group, ...]

else:
    _Walk = dict


def _sum(a: _Scaled, b: _Scaled, y_scale: float, y_zero: int, bounds: tuple[int, int], walk: _Walk) -> steps.ByteSum:
    found = multipliers(a.scale, b.scale, y_scale)
    if found is None:
        raise NoKernel("scales that the reference refuses")
    ma, mb = a.sign * found.a, b.sign * found.b
    start = (1 << (found.shift - 1)) - a.zero * ma - b.zero * mb
    low, high = bounds
    return steps.ByteSum(
        a=a.x,
        b=b.x,
        a_factor=ma,
        b_factor=mb,
        start=start,
        shift=found.shift,
        zero=y_zero,
        low=low,
        high=high,
        **walk,
    )


def _product(
    a: _Scaled, b: _Scaled, y_scale: float, y_zero: int, bounds: tuple[int, int], walk: _Walk
) -> steps.ByteProduct:
    with np.errstate(all="ignore"):
        factor = float(np.float32(a.scale) * np.float32(b.scale) / np.float32(y_scale))
    low, high = bounds
    return steps.ByteProduct(
        a=a.x,
        b=b.x,
        a_zero=a.zero,
        b_zero=b.zero,
        zero=y_zero,
        factor=factor,
        low=float(low - y_zero),
        high=float(high - y_zero),
        **walk,
    )
