"""Changes of element type, and quantisation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import cast

__all__: list[str] = []


@translate("CAST")
def cast_(op: Op) -> ir.Value:
    """Of stored numbers: quantisation does not count. A complex number becomes its real part, a real number a pair."""
    x, complex_ = op.raw(0), ir.DataType.COMPLEX64
    source, target = op.tensor(0).dtype, op.output().dtype
    if (source == complex_) == (target == complex_):
        return x if source == complex_ else cast(op, x, target)
    if source == complex_:
        return cast(op, op.emit("Gather", [x, op.constant(0)], {"axis": -1}), target)
    pairs = op.emit("Unsqueeze", [cast(op, x, ir.DataType.FLOAT), op.constant([-1])])
    return op.emit("Pad", [pairs, op.constant([0, 1]), op.constant(0, np.float32), op.constant([-1])])


@translate("QUANTIZE", "DEQUANTIZE")
def requantize(op: Op) -> ir.Value:
    """The same real number in another form; reading and writing the operands does the conversion."""
    x = op.real(0)
    return x if op.output().quantized else cast(op, x, op.output().dtype)


@translate("DENSIFY")
def densify(op: Op) -> ir.Value:
    """A constant's sparse form made dense, which reading it has done."""
    return op.raw(0)


@translate("BITCAST")
def bitcast(op: Op) -> ir.Value:
    """The same bytes as another type. Types of other widths gain or lose a last axis."""
    source, target = op.tensor(0).dtype, op.output().dtype
    if source is None or target is None or ir.DataType.STRING in (source, target) or source.itemsize != target.itemsize:
        op.fail(f"expected types of equal size, got {source} and {target}")
    return op.emit("BitCast", [op.raw(0)], {"to": int(target)})


@translate("FAKE_QUANT")
def fake_quant(op: Op) -> ir.Value:
    """Through num_bits-wide integers and back. The range is nudged so that zero is one of them.

    Whole 8 and 16 bits become QuantizeLinear and DequantizeLinear, which passes understand; others are computed.
    """
    bits, narrow = int(op.option("num_bits", 8)), bool(op.option("narrow_range", False))
    scale, zero = _nudged(op, float(op.option("min", 0.0)), float(op.option("max", 0.0)), bits, narrow)
    x = op.real(0)
    if bits in (8, 16) and not narrow:
        kind = np.uint8 if bits == 8 else np.uint16
        parameters = [op.constant(np.float32(scale)), op.constant(np.asarray(zero, kind))]
        return op.emit("DequantizeLinear", [op.emit("QuantizeLinear", [x, *parameters]), *parameters])
    low, high = np.float32((int(narrow) - zero) * scale), np.float32((2**bits - 1 - zero) * scale)
    cut = op.emit("Clip", [x, op.constant(low), op.constant(high)])
    steps = op.emit("Mul", [op.emit("Sub", [cut, op.constant(low)]), op.constant(np.float32(1) / scale)])
    whole = op.emit("Floor", [op.emit("Add", [steps, op.constant(0.5)])])
    return op.emit("Add", [op.emit("Mul", [whole, op.constant(scale)]), op.constant(low)])


def _nudged(op: Op, low: float, high: float, bits: int, narrow: bool) -> tuple[np.float32, int]:
    if not low < high or not low <= 0 <= high or not np.isfinite((low, high)).all():
        op.fail(f"expected a range around zero, got min {low} and max {high}")
    if not 2 <= bits <= 16:
        op.fail(f"expected 2 to 16 bits, got {bits}")
    first, last = int(narrow), 2**bits - 1
    scale = np.float32(np.float32(high - low) / np.float32(last - first))
    zero = first - low / scale
    return scale, int(np.clip(np.floor(zero + 0.5), first, last))
