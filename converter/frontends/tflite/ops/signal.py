"""Fourier transforms and complex numbers, which are pairs (real, imaginary) along a last axis of size 2."""

from __future__ import annotations

import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import contents, rank

__all__: list[str] = []

_PARTS = {"REAL": 0, "IMAG": 1}


@translate("RFFT2D")
def rfft2d(op: Op) -> ir.Value:
    """The two last axes, cut or zero-padded to fft_length: one-sided along the last, whole along the other."""
    rows, columns = _lengths(op)
    dims = rank(op, 0)
    x = op.emit("Unsqueeze", [op.real(0), op.constant([-1])])
    one_sided = op.emit("DFT", [x, op.constant(columns), op.constant(dims - 1)], {"onesided": 1})
    return op.emit("DFT", [one_sided, op.constant(rows), op.constant(dims - 2)])


@translate("Irfft2d")
def irfft2d(op: Op) -> ir.Value:
    """RFFT2D undone: real numbers from pairs."""
    rows, columns = _lengths(op)
    dims = rank(op, 0)
    x = _cut(op, op.raw(0), dims, rows, columns // 2 + 1)
    whole = op.emit("DFT", [x, op.constant(rows), op.constant(dims - 2)], {"inverse": 1})
    found = op.emit("DFT", [whole, op.constant(columns), op.constant(dims - 1)], {"inverse": 1, "onesided": 1})
    return op.emit("Squeeze", [found, op.constant([-1])])


def _lengths(op: Op) -> tuple[int, int]:
    found = contents(op, 1, "fft_length")
    if len(found) != 2 or min(found) < 1:
        op.fail(f"expected two transform lengths of at least 1, got {list(found)}")
    return found[0], found[1]


def _cut(op: Op, x: ir.Value, dims: int, rows: int, bins: int) -> ir.Value:
    ends, axes = op.constant([rows, bins]), op.constant([dims - 2, dims - 1])
    return op.emit("Slice", [x, op.constant([0, 0]), ends, axes])


@translate(*_PARTS)
def part(op: Op) -> ir.Value:
    """One number of each pair."""
    return op.emit("Gather", [op.raw(0), op.constant(_PARTS[op.name])], {"axis": -1})


@translate("COMPLEX_ABS")
def complex_abs(op: Op) -> ir.Value:
    """The length of each pair."""
    return op.emit("ReduceL2", [op.raw(0), op.constant([-1])], {"keepdims": 0})
