"""Images of quantised numbers as LiteRT resizes and joins them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.fixed_point import Factor, dtype_of, rescaled, scale_of, zero_of
from converter.frontends.tflite.ops.operands import axis, cast, counted, rank, same_quant, sizes
from converter.ir import build

__all__: list[str] = []

_T = ir.DataType
_BITS = 10
"""Of a place between two pixels."""


class _Places(NamedTuple):
    """For each row or column of a result: the two that it lies between, and the weights of both, which add up to
    2**_BITS."""

    first: np.ndarray
    second: np.ndarray
    weights: tuple[np.ndarray, np.ndarray]


@integers("RESIZE_BILINEAR")
def resize_bilinear(op: Op) -> ir.Value | None:
    """Of 16 bits: the stored integers times weights of ten bits in each direction (ResizeBilinearInteger)."""
    known, wanted = sizes(op, 0), op.ints(1)
    if op.tensor(0).dtype != _T.INT16 or op.tensor(0).dtype != op.output().dtype:
        return None
    if wanted is None or len(wanted) != 2 or len(known) != 4 or None in known[1:3] or min(wanted) < 1:
        return None
    x = cast(op, op.raw(0), _T.INT64)
    for along, size, out in zip((1, 2), known[1:3], wanted, strict=True):
        places = _places(op, int(size or 0), out)
        parts = [op.emit("Gather", [x, op.constant(where)], {"axis": along}) for where in places[:2]]
        shape = (-1, 1, 1) if along == 1 else (-1, 1)
        weighted = [
            op.emit("Mul", [part, op.constant(weight.reshape(shape))])
            for part, weight in zip(parts, places.weights, strict=True)
        ]
        x = op.emit("Add", weighted)
    by = Factor(np.asarray(1, np.int32), np.asarray(2 * _BITS, np.int32), "AWAY")
    return rescaled(op, x, by, _T.INT16)


def _places(op: Op, size: int, out: int) -> _Places:
    corners, one = bool(op.option("align_corners")) and out > 1, 1 << _BITS
    before, after = (size - 1, out - 1) if corners else (size, out)
    step, line = (one * before + after // 2) // after, counted(op, out)
    at = line * step + (step // 2 - one // 2 if op.option("half_pixel_centers") else 0)
    first = np.clip(np.trunc(at / one).astype(np.int64), 0, size - 1)
    second = np.minimum(np.trunc((at + one - 1) / one).astype(np.int64), size - 1)
    return _Places(first, second, (one - (at - one * first), at - one * first))


@integers("CONCATENATION")
def concatenation(op: Op) -> ir.Value | None:
    """Of unsigned bytes: operands with other scales than the result's are converted in float32."""
    tensors, y = [op.tensor(i) for i in range(op.count_inputs)], op.output()
    scales = [scale_of(t) for t in (*tensors, y)]
    if {t.dtype for t in (*tensors, y)} != {_T.UINT8} or None in scales or op.option("fused_activation_function", 0):
        return None
    parts = [op.raw(i) if same_quant(t, y) else _converted(op, i) for i, t in enumerate(tensors)]
    return op.emit("Concat", parts, {"axis": axis(op, op.option("axis", 0), rank(op, 0))})


def _converted(op: Op, i: int) -> ir.Value:
    x, y = op.tensor(i), op.output()
    factor = np.float32(scale_of(x)) * (np.float32(1) / np.float32(scale_of(y)))
    real = np.arange(256, dtype=np.float32) * factor - np.float32(zero_of(x)) * factor
    whole = np.trunc(real.astype(np.float64) + np.copysign(0.5, real)) + zero_of(y)
    table = op.constant(np.clip(whole, 0, 255).astype(dtype_of(op, y).numpy()))
    return op.emit("LookupTable", [op.raw(i), table], domain=build.DOMAIN)
