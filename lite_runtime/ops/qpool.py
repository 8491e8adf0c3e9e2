"""Means of quantised tensors: QLinearAveragePool in channels-last layout, QLinearReduceMean over any axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.ops._axes import expect
from lite_runtime.ops.pool import channels_at, infer_plane, infer_window, window_numbers
from lite_runtime.ops.reduce import Reduction, axes_of, infer_reduced, known_ints, reduce_to, result
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

_TYPES = frozenset({"int8", "uint8", "int16"})
_SPANS = {"int8": 1 << 8, "uint8": 1 << 8, "int16": 1 << 15}
"""Greatest distance of an element from 0; for bytes the larger of both types."""


def _scaled(n: Inference) -> tuple[Spec, str]:
    """The type of x and the element type of y, after checking scales and zero points."""
    x, y = expect(n, 0, _TYPES), expect(n, 4, _TYPES, "y_zero_point")
    for i, name, dtype in ((1, "x_scale", "float32"), (2, "x_zero_point", x.dtype), (3, "y_scale", "float32")):
        if expect(n, i, {dtype}, name).size != 1:
            raise n.error(f"expected one {name}, got shape {list(n.spec(i).shape)}")
    if y.size != 1:
        raise n.error(f"expected one y_zero_point, got shape {list(y.shape)}")
    return x, y.dtype


@infer("QLinearAveragePool")
def _infer_average_pool(n: Inference) -> tuple[Spec]:
    x, dtype = _scaled(n)
    return (Spec(dtype, infer_window(n, x)),)


@infer("QLinearGlobalAveragePool")
def _infer_global_average_pool(n: Inference) -> tuple[Spec]:
    x, dtype = _scaled(n)
    return (Spec(dtype, infer_plane(n, x)),)


@infer("QLinearReduceMean")
def _infer_reduce_mean(n: Inference) -> tuple[Spec]:
    x, dtype = _scaled(n)
    return (Spec(dtype, infer_reduced(n, x, 5)),)


class _Scales(NamedTuple):
    """Values derived from a mean's constants."""

    ratio: np.float32
    x_zero: int
    y_zero: int
    same: bool
    """Whether x and y have the same scale, zero point and type."""
    low: float
    high: float


def _known(b: Binder, i: int) -> Any:
    operand = b.inputs[i]
    if operand is None or operand.value is None:
        raise NoKernel("scales that only a run knows")
    return operand.value.ravel()[0]


def _scales(b: Binder) -> tuple[Operand, Operand, _Scales]:
    """x, y and the scales; NoKernel if these are known only at run time."""
    x, y = b.inputs[0], result(b)
    assert x is not None
    x_scale, x_zero, y_scale, y_zero = (_known(b, i) for i in range(1, 5))
    bounds = np.iinfo(y.dtype)
    with np.errstate(all="ignore"):
        ratio = np.float32(x_scale) / np.float32(y_scale)
    same = bool(x_scale == y_scale and x_zero == y_zero and x.dtype == y.dtype)
    return x, y, _Scales(ratio, int(x_zero), int(y_zero), same, float(bounds.min), float(bounds.max))


def _held(dtype: str, count: int) -> str:
    """The narrowest type that holds twice the sum of `count` elements plus another `count`."""
    return "int32" if (2 * _SPANS[dtype] + 1) * count < 1 << 31 else "int64"


@bind("QLinearAveragePool")
def _bind_average_pool(b: Binder) -> None:
    x, y, s = _scales(b)
    if channels_at(b) != "NHWC" or x.dtype != y.dtype:
        raise NoKernel("a mean that is not channels-last, or changes the element type")
    window = window_numbers(b, x)
    name = "average" if s.same else "mean"
    b.emit(
        steps.QuantisedMean(
            x=x,
            y=y,
            x_zero=s.x_zero,
            y_zero=s.y_zero,
            factor=float(s.ratio),
            low=s.low,
            high=s.high,
            **window.words,
        ),
        kernel=f"qpool.{x.dtype}_{_held(x.dtype, window.taps)}_{name}__nhwc",
    )


@bind("QLinearGlobalAveragePool")
def _bind_global_average_pool(b: Binder) -> None:
    rank = len(b.inputs[0].shape) if b.inputs[0] is not None else 0
    _mean(b, range(2, rank) if channels_at(b) == "NCHW" else range(1, rank - 1), away=True)


@bind("QLinearReduceMean")
def _bind_reduce_mean(b: Binder) -> None:
    x = b.inputs[0]
    assert x is not None
    _mean(b, axes_of(known_ints(b, 5), len(x.shape), int(b.attr("noop_with_empty_axes", 0))))


def _mean(b: Binder, axes: Sequence[int], *, away: bool = False) -> None:
    """Sums over `axes`, then one step that computes means; away: with equal parameters, round as a pool does."""
    x, y, s = _scales(b)
    count = prod(x.shape[a] for a in axes)
    held = _held(x.dtype, count)
    total = b.scratch(held, y.shape)
    reduce_to(b, x, total, axes, Reduction(f"{x.dtype}_{held}_sum", f"{held}_{held}_sum", family="qreduce"))
    if away and s.same:
        b.emit(
            steps.AverageSum(x=total, y=y, elements=y.size, n=count, low=s.low, high=s.high),
            kernel=f"qreduce.{held}_{y.dtype}_average",
        )
        return
    with np.errstate(all="ignore"):
        factor = s.ratio * (np.float32(1) / np.float32(count))
        shift = np.float32(s.y_zero) - np.float32(count * s.x_zero) * factor
    b.emit(
        steps.PlaceSum(x=total, y=y, elements=y.size, factor=float(factor), shift=float(shift), low=s.low, high=s.high),
        kernel=f"qreduce.{held}_{y.dtype}_place",
    )
