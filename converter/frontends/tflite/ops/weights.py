"""Operands of contractions: weights, biases, and activations that LiteRT quantises at run time.

A contraction is one of three kinds by its operands' types: float; integer (both quantised, arriving as QDQ); or
dynamic-range, float activations by 8-bit weights. LiteRT (XNNPACK) runs the last one on integers too: it quantises the
activations to int8, one asymmetric range for each row of a matrix product and each image of a convolution, but for
each pixel of a 1 x 1 convolution of stride 1. Multiplying by dequantised weights instead is off by 0.2 to 1 percent of
the result's range; the same ranges agree to 1e-7 of it. What XNNPACK does not take (recurrent cells, some 4-bit
weights) LiteRT's own kernels quantise by a `scheme` of DynamicQuantizeLinear. Weights with a scale for each block have
no integer product here: the quantised activations are multiplied as real numbers, which agrees as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.model import Quant
from converter.frontends.tflite.op import Op
from converter.ir import build

__all__ = [
    "Scheme",
    "bias",
    "blockwise",
    "dynamic",
    "dynamic_range",
    "has_blocks",
    "own_scheme",
    "quantized",
    "stored_weights",
]

_FLOAT = ir.DataType.FLOAT
Scheme = Literal["", "SYMMETRIC", "ASYMMETRIC"]
"""How activations are quantised: as by XNNPACK, or by LiteRT's own kernels."""


def dynamic_range(op: Op, weights: int, x: int = 0) -> bool:
    """Whether LiteRT quantises the activations (input `x`) at run time to multiply them by input `weights`."""
    quant = _narrow(op, weights, x)
    return quant is not None and not quant.block


def has_blocks(op: Op, weights: int, x: int = 0) -> bool:
    """Whether it does, and input `weights` [rows, columns] has a scale for each block of columns."""
    quant = _narrow(op, weights, x)
    return quant is not None and bool(quant.block) and quant.axis == 1


def _narrow(op: Op, weights: int, x: int) -> Quant | None:
    """How input `weights` is quantised, if it is a constant of narrow integers between real inputs and results."""
    w = op.tensor(weights)
    if op.tensor(x).dtype != _FLOAT or op.output().dtype != _FLOAT or w.quant is None or op.const(weights) is None:
        return None
    return w.quant if w.type_name in ("INT8", "INT4") and not w.quant.zero_point.any() else None


def bias(op: Op, i: int, weights: int, x: int = 0) -> ir.Value | None:
    """Input `i` as the bias of a contraction of inputs `x` and `weights`; None when there is none.

    Integers are added to the accumulator as they are, so they count in steps of x_scale * w_scale, whatever scale the
    file gives them.
    """
    if not op.has(i):
        return None
    a, b, stored = op.tensor(x).quant, op.tensor(weights).quant, op.const(i)
    if a is None or b is None or stored is None or b.block or stored.dtype.kind != "i":
        return op.real(i)
    scale = np.asarray(a.scale * b.scale, np.float32)
    name = op.tensor(i).name
    if stored.dtype == np.int64:
        small = np.iinfo(np.int32)
        if stored.size and (stored.min() < small.min or stored.max() > small.max):
            return op.constant((stored * scale.astype(np.float64)).astype(np.float32), hint=name)
        stored = stored.astype(np.int32)
    attrs = {"axis": 0} if scale.ndim else {}
    return op.emit(
        "DequantizeLinear",
        [op.constant(stored, hint=name), op.constant(scale, hint=f"{name} scale")],
        attrs,
    )


def stored_weights(op: Op, i: int, perm: Sequence[int]) -> np.ndarray:
    """The contents of constant input `i` as stored, transposed by `perm`."""
    found = op.const(i)
    if found is None:
        op.fail(f"expected constant weights, got a computed {op.tensor(i).name!r}")
    return np.asarray(found.transpose(tuple(perm)), order="C")


def blockwise(op: Op, x: ir.Value, kept: int, weights: int) -> tuple[ir.Value, ir.Value]:
    """The two real factors of x @ weights.T: `x` after quantising it as in `dynamic`, and the weights [columns, rows]
    with the scales that XNNPACK multiplies by, which are bfloat16."""
    tensor = op.tensor(weights)
    if tensor.quant is None:
        op.fail(f"expected quantised weights, got {tensor.type_name} {tensor.name!r}")
    q, step, zero = quantized(op, x, kept)
    floats = (op.emit("Cast", [v], {"to": int(_FLOAT)}) for v in (q, zero))
    rounded = op.emit("Mul", [op.emit("Sub", [*floats]), step])
    stored, scale = stored_weights(op, weights, (1, 0)), tensor.quant.scale.T
    if tensor.dtype == ir.DataType.INT4:
        stored = stored.astype(ml_dtypes.int4)
    if op.litert:
        scale = scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    scales = op.constant(np.ascontiguousarray(scale), hint=f"{tensor.name} scale")
    attrs = {"axis": 0, "block_size": tensor.quant.block}
    return rounded, op.emit("DequantizeLinear", [op.constant(stored, hint=tensor.name), scales], attrs)


def own_scheme(op: Op) -> Scheme:
    """The scheme of LiteRT's own kernels of matrix products and recurrent cells."""
    return "ASYMMETRIC" if op.option("asymmetric_quantize_inputs", False) else "SYMMETRIC"


def quantized(op: Op, x: ir.Value, kept: int, scheme: Scheme = "") -> tuple[ir.Value, ...]:
    """`x` as int8, its scales and its zero points: one range for each index of its first `kept` axes."""
    attrs = {"kept": kept, "dtype": "int8", **({"scheme": scheme} if scheme else {})}
    return tuple(op.emit("DynamicQuantizeLinear", [x], attrs, outputs=3, domain=build.DOMAIN))


def dynamic(
    op: Op,
    kind: str,
    x: ir.Value,
    kept: int,
    stored: np.ndarray,
    weights: int,
    added: int,
    attrs: Mapping[str, Any],
    scheme: Scheme = "",
) -> ir.Value:
    """`kind` ("QLinearConv", "QLinearMatMul") with a float result, over `x` quantised to int8 at run time.

    One range for each index of x's first `kept` axes. `stored`: the contents of input `weights` in the layout that
    `kind` needs (4-bit weights stay 4-bit in the file); input `added` is the bias, if there is one.
    """
    tensor = op.tensor(weights)
    if tensor.quant is None:
        op.fail(f"expected quantised weights, got {tensor.type_name} {tensor.name!r}")
    if tensor.dtype == ir.DataType.INT4:
        stored = stored.astype(ml_dtypes.int4)
    scale = op.constant(tensor.quant.scale, hint=f"{tensor.name} scale")
    zero = op.constant(np.zeros((), np.int8), hint=f"{tensor.name} zero point")
    end = [None, None, op.real(added)] if op.has(added) else []
    operands = [*quantized(op, x, kept, scheme), op.constant(stored, hint=tensor.name), scale, zero, *end]
    return op.emit(kind, operands, attrs, domain=build.DOMAIN)
