"""Helpers for rules to read operands: as int64 indices, as stored or as real values, with known sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op
from converter.ir import build

__all__ = [
    "axis",
    "cast",
    "contents",
    "counted",
    "emit_all",
    "extents",
    "index",
    "indices",
    "moved_whole",
    "payload",
    "rank",
    "ranked",
    "relabelled",
    "same_quant",
    "single",
    "sizes",
    "zero_point",
]

_T = ir.DataType
_COUNTED_UP_TO = 1 << 22
"""The longest constant that a rule creates from a size, so that a damaged file cannot request excessive memory."""


def cast(op: Op, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """`value` as `dtype`; itself when it already is (or when the type is unknown)."""
    if dtype is None or value.dtype == dtype:
        return value
    return op.emit("Cast", [value], {"to": int(dtype)})


def emit_all(
    op: Op, kind: str, inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any], outputs: int
) -> list[ir.Value]:
    """Emit a node of `outputs` results, which may be one."""
    if outputs < 1:
        op.fail("expected at least one output, got none")
    if outputs == 1:
        return [op.emit(kind, inputs, attrs)]
    return list(op.emit(kind, inputs, attrs, outputs=outputs))


def indices(op: Op, i: int) -> ir.Value:
    """Integer input `i` as int64, the type ONNX requires for shapes and indices. Constants are converted here."""
    found = op.const(i)
    return cast(op, op.raw(i), _T.INT64) if found is None else op.constant(found.astype(np.int64))


def extents(op: Op, i: int, least: int = 0) -> ir.Value:
    """Integer input `i`, a shape or repetitions, as int64. Fails when a constant one holds a number below `least`."""
    found = op.ints(i)
    if found is not None and min(found, default=least) < least:
        op.fail(f"expected sizes of at least {least} in {op.tensor(i).name!r}, got {list(found)}")
    return indices(op, i)


def index(op: Op, i: int) -> ir.Value:
    """Integer input `i` of one element as an int64 vector of one element."""
    found = op.ints(i)
    if found is not None:
        return op.constant(list(found[:1]), np.int64)
    return op.emit("Reshape", [indices(op, i), op.constant([1])])


def contents(op: Op, i: int, what: str) -> tuple[int, ...]:
    """The integers of input `i`, which must be constant. `what` names it in the error."""
    found = op.ints(i)
    if found is None:
        name = op.tensor(i).name
        op.fail(f"expected constant {what}, got {name!r}, which is computed; export the model with fixed {what}")
    return found


def single(op: Op, i: int, what: str) -> int:
    """The integer of input `i`, which must be constant and hold only this one. `what` names it in the error."""
    found = contents(op, i, what)
    if len(found) != 1:
        op.fail(f"expected one number as {what}, got {len(found)}")
    return found[0]


def rank(op: Op, i: int) -> int:
    """The number of dimensions of input `i`, without the axis of complex numbers' pairs."""
    found, tensor = build.rank(op.raw(i)), op.tensor(i)
    if found is not None:
        return found - (tensor.dtype == ir.DataType.COMPLEX64)
    if not tensor.has_rank:
        op.fail(f"expected {tensor.name!r} to have a known rank; export the model with fixed shapes")
    return tensor.rank


def ranked(op: Op, i: int, least: int) -> None:
    """Fail when input `i` has less than `least` dimensions."""
    if rank(op, i) < least:
        op.fail(f"expected {op.tensor(i).name!r} to have at least {least} dimensions, got {rank(op, i)}")


def axis(op: Op, number: int, dims: int) -> int:
    """An axis counted from the front. Fails when it is outside `dims` dimensions."""
    if not -dims <= number < max(dims, 1):
        op.fail(f"expected an axis from {-dims} to {dims - 1}, got {number}")
    return number % dims if dims else 0


def counted(op: Op, size: int) -> np.ndarray:
    """0, 1, … below `size`. Fails for sizes no model has."""
    if size > _COUNTED_UP_TO:
        op.fail(f"expected a size of at most {_COUNTED_UP_TO}, got {size}")
    return np.arange(size)


def sizes(op: Op, i: int) -> tuple[int | None, ...]:
    """The shape of input `i`, None where a size is not known; without the axis of complex numbers' pairs."""
    found, dims = build.dims(op.raw(i)), rank(op, i)
    if found is None:
        return (None,) * dims
    return tuple(d if isinstance(d, int) else None for d in found[:dims])


def same_quant(a: Tensor, b: Tensor) -> bool:
    """Whether stored values of both mean the same numbers (both may be unquantised); one scale per tensor only."""
    if a.quant is None or b.quant is None:
        return a.quant is b.quant
    if a.dtype != b.dtype or not (a.quant.per_tensor and b.quant.per_tensor):
        return False
    return bool(a.quant.scale == b.quant.scale and a.quant.zero_point == b.quant.zero_point)


def payload(op: Op, *inputs: int) -> list[ir.Value]:
    """Inputs a rule moves without computing: as stored when that means the same in output 0, else as real numbers."""
    stored = all(moved_whole(op, i) for i in inputs)
    return [op.raw(i) if stored else op.real(i) for i in inputs]


def moved_whole(op: Op, i: int, k: int = 0) -> bool:
    """Whether output `k` takes the stored numbers of input `i`. LiteRT's does even where the scales differ, which a
    correct file does not have."""
    x, y = op.tensor(i), op.output(k)
    return same_quant(x, y) or (op.litert and _alike(x, y))


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether both are quantised numbers of one type with one scale each."""
    return a.dtype == b.dtype and all(t.quant is not None and t.quant.per_tensor for t in (a, b))


def relabelled(op: Op, i: int = 0) -> ir.Value:
    """Input `i` as real numbers, as if it had output 0's scale: what operators that compute on stored integers see."""
    quant = op.output().quant
    if quant is None or same_quant(op.tensor(i), op.output()) or not _alike(op.tensor(i), op.output()):
        return op.real(i)
    zero = quant.zero_point.astype((op.raw(i).dtype or _T.UINT8).numpy())
    return op.emit("DequantizeLinear", [op.raw(i), op.constant(quant.scale, np.float32), op.constant(zero)])


def zero_point(op: Op, value: ir.Value, i: int = 0) -> ir.Value:
    """The scalar that means zero among `value`s read by `payload`: input `i`'s zero point, or plain zero."""
    tensor = op.tensor(i)
    stored = tensor.quant is not None and value.dtype == tensor.dtype
    number = int(tensor.quant.zero_point) if stored and tensor.quant is not None else 0
    return op.constant(np.asarray(number, (value.dtype or _T.FLOAT).numpy()))
