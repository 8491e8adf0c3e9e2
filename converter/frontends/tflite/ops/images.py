"""Resizing images. Channels are last in TFLite, first in ONNX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import counted, extents, payload, rank, relabelled, sizes

__all__: list[str] = []


@translate("RESIZE_BILINEAR")
def resize_bilinear(op: Op) -> ir.Value:
    """Each pixel from its four neighbours, edges repeated. TFLite interpolates stored numbers: where a file's scales
    differ, which they must not, the result's hold."""
    return _resize(op, relabelled(op), {"mode": "linear", "coordinate_transformation_mode": _coordinates(op)})


@translate("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(op: Op) -> ir.Value:
    """The nearest pixel. TFLite rounds in float32; where that picks other pixels than ONNX's exact rule, and for
    align_corners together with half_pixel_centers, which ONNX lacks, rows and columns are gathered by index.
    """
    (x,) = payload(op, 0)
    wanted, known = op.ints(1), sizes(op, 0)[1:3]
    _pixels(op)
    corners, half = bool(op.option("align_corners")), bool(op.option("half_pixel_centers"))
    if wanted is not None and all(known):
        pairs = [(int(n or 0), counted(op, out)) for n, out in zip(known, wanted, strict=True)]
        places = [_nearest(size, line, corners, half) for size, line in pairs]
        exact = [_onnx_nearest(size, line, corners, half) for size, line in pairs]
        if (corners and half) or not all(map(np.array_equal, places, exact)):
            for place, which in zip((1, 2), places, strict=True):
                x = op.emit("Gather", [x, op.constant(which, np.int64)], {"axis": place})
            return x
    elif corners and half:
        op.fail("expected align_corners or half_pixel_centers, got both with computed sizes; make the sizes constant")
    nearest = "floor" if _coordinates(op) == "asymmetric" else "round_prefer_ceil"
    attrs = {"mode": "nearest", "coordinate_transformation_mode": _coordinates(op), "nearest_mode": nearest}
    return _resize(op, x, attrs)


def _coordinates(op: Op) -> str:
    if op.option("align_corners"):
        return "align_corners"
    return "half_pixel" if op.option("half_pixel_centers") else "asymmetric"


def _resize(op: Op, x: ir.Value, attrs: Mapping[str, str]) -> ir.Value:
    turned = op.emit("Resize", [op.nchw(x), None, None, _pixels(op)], {"axes": [2, 3], **attrs})
    return op.nhwc(turned)


def _pixels(op: Op) -> ir.Value:
    """The height and width that input 1 asks for, as int64."""
    found = op.ints(1)
    if rank(op, 0) != 4 or (found is not None and len(found) != 2):
        count = "computed sizes" if found is None else f"{len(found)} sizes"
        op.fail(f"expected images of rank 4 and two sizes, got rank {rank(op, 0)} and {count}")
    return extents(op, 1, 1)


def _nearest(size: int, line: np.ndarray, corners: bool, half: bool) -> np.ndarray:
    """Source index of each output of `line`, in float32 as TFLite's kernel computes it."""
    f, out = np.float32, len(line)
    scale = f(size - 1) / f(out - 1) if corners and out > 1 else f(size) / f(out)
    at = (line.astype(f) + f(0.5 if half else 0.0)) * scale
    rounded = np.floor(at + f(0.5)) if corners else np.floor(at)
    return np.asarray(np.clip(rounded, 0, size - 1), np.int64)


def _onnx_nearest(size: int, line: np.ndarray, corners: bool, half: bool) -> np.ndarray:
    """The same by ONNX's rule, in float64."""
    x, out = line.astype(np.float64), len(line)
    if corners:
        at = x * ((size - 1) / (out - 1)) if out > 1 else x
        return np.asarray(np.clip(np.floor(at + 0.5), 0, size - 1), np.int64)
    at = (x + 0.5) / (out / size) - 0.5 if half else x / (out / size)
    return np.asarray(np.clip(np.floor(at + 0.5) if half else np.floor(at), 0, size - 1), np.int64)
