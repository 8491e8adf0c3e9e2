"""Quantisation with a given or measured scale, dequantisation, and functions of a byte as look-up tables.

QuantizeLinear and DequantizeLinear are bound as members of elementwise chains (`lowering`).
"""

from __future__ import annotations

from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array, itemsize
from lite_runtime.ops._axes import attr_int, axis_of
from lite_runtime.ops._checks import choice, element_type, one_of
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer
from lite_runtime.reference.quantize import SCHEMES

__all__: list[str] = []

_BYTES = ("uint8", "int8")
PIECE = 8192
"""Elements of a row that one work item covers."""


# -- what comes out ---------------------------------------------------------------------------------------------------


def _check_scale(n: Inference) -> None:
    """The scale (and zero point) is one value, one per index of the axis, or one per block along it."""
    data, scale = n.spec(0), n.spec(1)
    if (
        n.has(2)
        and n.spec(2).shape != scale.shape
        and not (n.spec(2).size == scale.size == 1 and len(n.spec(2).shape) <= 1)
    ):
        raise n.error(f"expected a zero point of shape {scale.shape}, got {n.spec(2).shape}")
    if scale.size == 1 and len(scale.shape) <= 1:
        return
    axis, block = axis_of(n, len(data.shape), 1), attr_int(n, "block_size", 0)
    if block:
        expected = tuple(-(-size // block) if i == axis else size for i, size in enumerate(data.shape))
    else:
        expected = (data.shape[axis],)
    if scale.shape != expected:
        raise n.error(f"expected a scale of shape {expected} along axis {axis} of {data.shape}, got {scale.shape}")


@infer("QuantizeLinear")
def _quantize(n: Inference) -> list[Spec]:
    _check_scale(n)
    if n.has(2):
        return [Spec(n.spec(2).dtype, n.spec(0).shape)]
    code = n.attr("output_dtype", 0)
    return [Spec(element_type(n, code) if code else "uint8", n.spec(0).shape)]


@infer("DequantizeLinear")
def _dequantize(n: Inference) -> list[Spec]:
    _check_scale(n)
    if n.has(2) and n.spec(2).dtype != n.spec(0).dtype:
        raise n.error(f"expected a zero point of {n.spec(0).dtype}, got {n.spec(2).dtype}")
    code = n.attr("output_dtype", 0)
    return [Spec(element_type(n, code) if code else n.spec(1).dtype, n.spec(0).shape)]


@infer("DynamicQuantizeLinear")
def _dynamic_quantize(n: Inference) -> list[Spec]:
    data, dtype = one_of(n, 0, ("float32",)), choice(n, "dtype", "uint8", _BYTES)
    rank = len(data.shape)
    kept = attr_int(n, "kept", 0, range(max(rank, 1)))
    if choice(n, "scheme", "", SCHEMES) and dtype != "int8":
        raise n.error(f"expected dtype int8 with a scheme, got {dtype!r}")
    rows = (*data.shape[:kept], *(1,) * (rank - kept)) if kept else ()
    return [Spec(dtype, data.shape), Spec("float32", rows), Spec(dtype, rows)]


@infer("LookupTable")
def _lookup_table(n: Inference) -> list[Spec]:
    data, table = one_of(n, 0, _BYTES), n.spec(1)
    if table.shape != (256,):
        raise n.error(f"expected a table of shape (256,), got {table.shape}")
    return [Spec(table.dtype, data.shape)]


# -- kernels ----------------------------------------------------------------------------------------------------------


@bind("DynamicQuantizeLinear")
def _bind_dynamic(b: Binder) -> None:
    """Computes ranges of pieces of rows if a row has several; then a step quantises the pieces."""
    x = b.inputs[0]
    assert x is not None
    if not x.size:
        raise NoKernel("ranges of no elements")
    rows = prod(x.shape[: int(b.attr("kept", 0))])
    n = x.size // rows
    pieces = -(-n // PIECE)
    ranges = None
    if pieces > 1:
        ranges = b.scratch("float32", (rows, pieces, 2))
        b.emit(steps.Range(x=x, ranges=ranges, rows=rows, n=n, pieces=pieces, size=PIECE))
    y, scales, zeros = [*b.outputs, None, None][:3]
    signed = b.attr("dtype", "uint8") == "int8"
    b.emit(
        steps.QuantizeRows(
            x=x,
            ranges=ranges,
            y=y,
            scales=scales,
            zeros=zeros,
            rows=rows,
            n=n,
            pieces=pieces,
            size=PIECE,
            scheme=1 + SCHEMES.index(b.attr("scheme", "")) if signed else 0,
        ),
        parallel=rows * pieces > 1,
    )


def _by_unsigned(table: Array) -> Array:
    """A table for int8, reordered so that it is indexed by the same bytes read as unsigned."""
    return np.roll(table, 128)


@bind("LookupTable")
def _bind_lookup(b: Binder) -> None:
    x, table = b.inputs
    y = b.outputs[0]
    assert x is not None and table is not None and y is not None
    size = itemsize(table.dtype)
    if table.value is None or size not in (1, 2, 4):
        raise NoKernel("a table that is computed, or of more than four bytes an element")
    if x.dtype == "int8":
        table = b.packed(table, "lookup int8", _by_unsigned)
    if size == 1:
        b.reuse(0, x)
    step = steps.Lookup(x=x, table=table, y=y, total=x.size)
    b.emit(step, kernel=f"lookup.x8_lookup__{size}", parallel=x.size >= 2 * PIECE)
