"""NarrowMatMul: a product with constant weights that are kept in memory as float16, int8 or int4."""

from __future__ import annotations

from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array
from lite_runtime.ops._checks import one_of
from lite_runtime.ops._panels import broadcast, column_bias, finish_of, tile_vectors
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.reference.narrow import unpack4
from lite_runtime.targets import Shape

__all__: list[str] = []

_BYTES = ("int8", "uint8")
_ONE: tuple[tuple[int, ...], ...] = ((), (1,))
"""Shapes of a single scale for all weights."""


# -- what comes out ---------------------------------------------------------------------------------------------------


@infer("NarrowMatMul")
def _(n: Inference) -> list[Spec]:
    a, right = one_of(n, 0, ("float32",)), one_of(n, 1, (*_BYTES, "float16"))
    stored, shape = right.shape, tuple(n.attr("shape", ()))
    if shape:
        if right != Spec("uint8", (-(-prod(shape) // 2),)):
            raise n.error(f"expected uint8[{-(-prod(shape) // 2)}] for shape {list(shape)}, got {right}")
        stored = shape
    if len(stored) != 2 or not a.shape:
        raise n.error(f"expected a matrix of weights, got shapes {list(a.shape)} and {list(stored)}")
    turned = bool(n.attr("transB", 0))
    depth, columns = stored[::-1] if turned else stored
    if a.shape[-1] != depth:
        raise n.error(f"inner sizes differ: {list(a.shape)} times {[depth, columns]}")
    dtype = right.dtype if not shape else "int8" if n.attr("signed", 0) else "uint8"
    if (dtype == "float16") == n.has(2) or (dtype == "float16" and (n.has(3) or n.attr("block_size", 0))):
        raise n.error("expected a scale with integers, and no scale, zero point or blocks with float16")
    if n.has(2):
        _check_scales(n, depth, columns, turned, dtype)
    result = Spec("float32", (*a.shape[:-1], columns))
    for i in (4, 5):
        if n.has(i) and (n.spec(i).dtype != "float32" or not _broadcasts(n.spec(i).shape, result.shape)):
            raise n.error(f"{n.spec(i).dtype}{list(n.spec(i).shape)} cannot be added to float32{list(result.shape)}")
    return [result]


def _check_scales(n: Inference, depth: int, columns: int, turned: bool, dtype: str) -> None:
    block = int(n.attr("block_size", 0))
    each = (-(-depth // block), columns) if block else (columns,)
    each = each[::-1] if turned else each
    scale = one_of(n, 2, ("float32",))
    if scale.shape != each and (block or scale.shape not in _ONE):
        raise n.error(f"expected a scale of shape {list(each)}, got {list(scale.shape)}")
    if n.has(3):
        zero = n.spec(3)
        alike = zero.shape == scale.shape or (zero.shape in _ONE and scale.shape in _ONE)
        if zero.dtype != dtype or not alike:
            raise n.error(f"expected zero points {dtype}{list(scale.shape)}, got {zero.dtype}{list(zero.shape)}")


def _broadcasts(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    try:
        return broadcast([shape, result]) == result
    except ValueError:
        return False


# -- kernels ----------------------------------------------------------------------------------------------------------


@bind("NarrowMatMul")
def _(b: Binder) -> None:
    a, right, scale, zero, bias, residual = (*b.inputs, None, None, None, None)[:6]
    out = b.outputs[0]
    assert a is not None and right is not None and out is not None
    if right.value is None or any(o is not None and o.value is None for o in (scale, zero)):
        raise NoKernel("computed weights")
    if residual is not None and residual.shape != out.shape:
        raise NoKernel("a broadcast residual")
    depth, columns = a.shape[-1], out.shape[-1]
    if not a.size:
        raise NoKernel("an empty reduction")
    block = int(b.attr("block_size", 0)) or depth
    four = bool(b.attr("shape", ())) and depth % 8 == 0 and (block % 8 == 0 or block >= depth)
    kind = "f16" if right.dtype == "float16" else "i4" if four else "i8"
    panels, scales, offsets = _panels(b, right, scale, zero, kind, (depth, columns, block))
    finish = finish_of(b)
    b.emit(
        steps.NarrowGemm(
            a=a,
            w=panels,
            scales=scales,
            offsets=offsets,
            bias=column_bias(b, bias, columns),
            residual=residual,
            c=out,
            rows=a.size // depth,
            columns=columns,
            depth=depth,
            vectors=tile_vectors(columns, b.target.shape),
            block=min(block, depth),
            **finish,
        ),
        kernel=f"wgemm.{kind}_gemm",
    )


def _panels(
    b: Binder, right: Operand, scale: Operand | None, zero: Operand | None, kind: str, sizes: tuple[int, int, int]
) -> tuple[Operand, Operand | None, Operand | None]:
    """Weights, scales and offsets in the order in which the kernel reads them."""
    depth, columns, block = sizes
    turned, shape, lanes = bool(b.attr("transB", 0)), tuple(b.attr("shape", ())), b.lanes
    signed = right.dtype == "int8" or bool(b.attr("signed", 0))
    middle = 0 if signed or kind == "f16" else 8 if shape else 128
    """The value subtracted from unsigned weights to make them signed."""

    def matrix(value: Array) -> Array:
        whole = unpack4(value, shape, int(signed)) if shape else value
        whole = whole.T if turned else whole
        return whole if not middle else (whole.astype(np.int16) - middle).astype(np.int8)

    def pack(value: Array) -> Array:
        return _in_panels(_nibbles(matrix(value)) if kind == "i4" else matrix(value), b.target.shape)

    panels = b.packed(right, f"narrow {kind} {turned} {shape} {signed} {lanes}", pack)
    if scale is None:
        return panels, None, None
    blocks = -(-depth // block)

    def table(value: Array) -> Array:
        """One value per block and column, (blocks, columns)."""
        whole = value.T if turned and value.ndim == 2 else value
        return np.broadcast_to(whole, (blocks, columns))

    scales = b.packed(scale, f"narrow scales {turned} {sizes} {lanes}", lambda s: _in_panels(table(s), b.target.shape))
    if zero is None and not middle:
        return panels, scales, None
    points = np.zeros((), np.int64) if zero is None or zero.value is None else zero.value.astype(np.int64)
    off = middle - points
    if not off.any():
        return panels, scales, None
    assert scale.value is not None
    offsets = (table(scale.value) * table(off).astype(np.float32)).astype(np.float32)
    return panels, scales, b.constant(_in_panels(offsets, b.target.shape))


def _in_panels(matrix: Array, shape: Shape) -> Array:
    """(k, n) -> panels of tile_vectors(n) * lanes columns, each (k, width), zero-padded after column n, flat."""
    (k, n), lanes = matrix.shape, shape.lanes
    width, padded = tile_vectors(n, shape) * lanes, -(-n // lanes) * lanes
    whole = np.zeros((k, padded), matrix.dtype)
    whole[:, :n] = matrix
    return np.concatenate([whole[:, at : at + width].ravel() for at in range(0, padded, width)])


def _nibbles(matrix: Array) -> Array:
    """(k, n) of -8 to 7 -> (k / 8, n) dwords, the first of eight in the lowest bits."""
    eights = (matrix.view(np.uint8) & 15).astype(np.uint32).reshape(-1, 8, matrix.shape[1])
    packed = np.zeros((len(eights), matrix.shape[1]), np.uint32)
    for i in range(8):
        packed |= eights[:, i] << np.uint32(4 * i)
    return packed
