"""Reductions and pools of quantised numbers as LiteRT's own kernels compute them (kernels/reduce.cc, pooling.cc,
l2norm.cc). Means and sums of bytes are XNNPACK's, which our integer operators compute."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.fixed_functions import scales_of
from converter.frontends.tflite.ops.fixed_point import (
    QUIETLY,
    Factor,
    bounds,
    dtype_of,
    factor,
    narrowed,
    rescaled,
    short_factor,
    zero_of,
)
from converter.frontends.tflite.ops.operands import cast, same_quant, sizes
from converter.frontends.tflite.ops.pooling import averaged
from converter.frontends.tflite.ops.reductions import axes_of
from converter.ir import build

__all__: list[str] = []

_T = ir.DataType
_BYTES = (_T.INT8, _T.UINT8)


@integers("AVERAGE_POOL_2D")
def average_pool(op: Op) -> ir.Value | None:
    """The mean of the stored integers, whatever the result's scale, then the activation's bounds. None for a plain
    pool, which an integer pass converts."""
    x, y = op.tensor(0), op.output()
    scales, ends = scales_of(op), bounds(op)
    plain = not op.option("fused_activation_function", 0) and same_quant(x, y)
    if scales is None or ends is None or plain or x.dtype != y.dtype:
        return None
    mean = averaged(op)
    return op.emit("Clip", [mean, *(op.constant(np.asarray(end, dtype_of(op, y).numpy())) for end in ends)])


def _reduced(op: Op) -> tuple[tuple[int, ...], int] | None:
    """The reduced axes and how many elements each result has, if both are known."""
    axes, shape = axes_of(op), sizes(op, 0)
    found = None if axes is None else [shape[a] for a in axes]
    if axes is None or found is None or None in found or 0 in found:
        return None
    return axes, prod(size for size in found if size is not None)


def _total(op: Op, axes: tuple[int, ...]) -> ir.Value:
    attrs = {"keepdims": int(op.option("keep_dims", False)), "noop_with_empty_axes": 1}
    return op.emit("ReduceSum", [cast(op, op.raw(0), _T.INT32), op.constant(list(axes), np.int64)], attrs)


@integers("MEAN")
@QUIETLY
def mean(op: Op) -> ir.Value | None:
    """Of 16 bits: the sum times a multiplier that the count has divided."""
    scales, reduced = scales_of(op), _reduced(op)
    if scales is None or reduced is None or op.tensor(0).dtype in _BYTES:
        return None
    axes, count = reduced
    by = factor(float(scales[0]) / float(scales[1]))
    more = max(min(count.bit_length() - 1, 32, 62 - int(by.shift)), 0)
    multiplier = (int(by.multiplier) << more) // count
    by = Factor(np.asarray(multiplier, np.int32), np.asarray(int(by.shift) + more, np.int32))
    return rescaled(op, _total(op, axes), by, dtype_of(op, op.output()), zero_of(op.output()))


@integers("SUM")
def total(op: Op) -> ir.Value | None:
    """Of 16 bits: the sum times the ratio of scales in float32, halves away from zero."""
    scales, reduced = scales_of(op), _reduced(op)
    if scales is None or reduced is None or op.tensor(0).dtype in _BYTES:
        return None
    whole = cast(op, _total(op, reduced[0]), _T.FLOAT)
    real = op.emit("Mul", [whole, op.constant(scales[0] / scales[1])])
    size = op.emit("Abs", [real])
    floor = op.emit("Floor", [size])
    more = op.emit("GreaterOrEqual", [op.emit("Sub", [size, floor]), op.constant(np.float32(0.5))])
    rounded = op.emit("Mul", [op.emit("Add", [floor, cast(op, more, _T.FLOAT)]), op.emit("Sign", [real])])
    ends = (float(v) for v in (np.iinfo(np.int16).min, np.iinfo(np.int16).max))
    return cast(op, op.emit("Clip", [rounded, *(op.constant(v) for v in ends)]), dtype_of(op, op.output()))


@integers("REDUCE_PROD")
@QUIETLY
def product(op: Op) -> ir.Value | None:
    """One factor after the other, in the order of memory; each product is rescaled by the n-th root of the scale, and
    wraps around."""
    scales, reduced = scales_of(op), _reduced(op)
    shape = sizes(op, 0)
    if scales is None or reduced is None or None in shape:
        return None
    axes, count = reduced
    kept = [a for a in range(len(shape)) if a not in axes]
    by = short_factor(float(scales[0]) / float(scales[1]) ** (1 / count))
    zero = op.constant(np.asarray(zero_of(op.tensor(0)), np.int32))
    turned = op.emit("Transpose", [op.emit("Sub", [cast(op, op.raw(0), _T.INT32), zero])], {"perm": [*axes, *kept]})
    rows = op.emit("Reshape", [turned, op.constant([count, *(shape[a] for a in kept)], np.int64)])
    first, *others = _split(op, rows, count)
    if others:

        def body(inner: Op, values: list[ir.Value]) -> list[ir.Value]:
            both = inner.emit("Mul", [cast(inner, v, _T.INT64) for v in values])
            return [cast(inner, rescaled(inner, both, by, _T.INT64), _T.INT32)]

        attrs = {"body": op.graph(body, [first, first]), "num_scan_inputs": 1}
        first = op.emit("Scan", [first, others[0]], attrs)
    whole = cast(op, rescaled(op, cast(op, first, _T.INT64), by, _T.INT64), _T.INT32)
    whole = op.emit("Add", [whole, op.constant(np.asarray(zero_of(op.output()), np.int32))])
    result = narrowed(op, whole, dtype_of(op, op.output()))
    if not op.option("keep_dims", False):
        return result
    return op.emit("Reshape", [result, op.constant([1 if a in axes else n for a, n in enumerate(shape)], np.int64)])


def _split(op: Op, rows: ir.Value, count: int) -> list[ir.Value]:
    """The first row, and the others if there are any."""
    first = op.emit("Gather", [rows, op.constant(0)], {"axis": 0})
    if count == 1:
        return [first]
    return [first, op.emit("Slice", [rows, *(op.constant([v]) for v in (1, count, 0))])]


@integers("L2_NORMALIZATION")
def l2_normalization(op: Op) -> ir.Value | None:
    """Bytes times the inverse root of the sum of squares; the result counts in 128ths."""
    scales, x = scales_of(op), op.tensor(0)
    if scales is None or x.dtype not in _BYTES:
        return None
    centred = op.emit("Sub", [cast(op, op.raw(0), _T.INT32), op.constant(np.asarray(zero_of(x), np.int32))])
    total = op.emit("ReduceSum", [op.emit("Mul", [centred, centred]), op.constant([-1])], {"keepdims": 1})
    multiplier, shift = (
        op.emit("FixedPointRsqrt", [total], {"part": part}, domain=build.DOMAIN) for part in ("MULTIPLIER", "SHIFT")
    )
    if x.dtype == _T.UINT8:
        centred = op.emit("Mul", [centred, op.constant(np.asarray(128, np.int32))])
    else:
        shift = op.emit("Sub", [shift, op.constant(np.asarray(7, np.int32))])
    zero = op.constant(np.asarray(128 if x.dtype == _T.UINT8 else 0, dtype_of(op, x).numpy()))
    return op.emit("Rescale", [centred, multiplier, shift, zero], {"rounding": "DOUBLE"}, domain=build.DOMAIN)
