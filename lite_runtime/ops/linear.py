"""Matrix products: MatMul with its bias, residual and activation; Gemm."""

from __future__ import annotations

from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array
from lite_runtime.ops._checks import dense_strides
from lite_runtime.ops._copy import Dim, emit_copy
from lite_runtime.ops._outer import emit_transposed_product
from lite_runtime.ops._panels import (
    NO_ACTIVATION,
    broadcast,
    column_bias,
    finish_of,
    float32_only,
    packed_size,
    panels,
    tile_vectors,
    widths,
)
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__ = ["Product", "emit_product"]


def _swapped(shape: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


@infer("MatMul")
def _(n: Inference) -> list[Spec]:
    a, b = n.spec(0), n.spec(1)
    if not a.shape or not b.shape:
        raise n.error(f"expected matrices, got shapes {list(a.shape)} and {list(b.shape)}")
    if a.dtype != b.dtype:
        raise n.error(f"expected one dtype, got {a.dtype} and {b.dtype}")
    left = _swapped(a.shape if len(a.shape) > 1 else (1, *a.shape), bool(n.attr("transA", 0)))
    right = _swapped(b.shape if len(b.shape) > 1 else (*b.shape, 1), bool(n.attr("transB", 0)))
    if left[-1] != right[-2]:
        raise n.error(f"inner sizes differ: {list(left)} times {list(right)}")
    try:
        batch = broadcast([left[:-2], right[:-2]])
    except ValueError:
        raise n.error(f"batches do not broadcast: {list(left)} times {list(right)}") from None
    shape = (*batch, *((left[-2],) if len(a.shape) > 1 else ()), *((right[-1],) if len(b.shape) > 1 else ()))
    for i in (2, 3):
        if n.has(i):
            _must_broadcast(n, n.spec(i), Spec(a.dtype, shape))
    return [Spec(a.dtype, shape)]


def _must_broadcast(n: Inference, operand: Spec, result: Spec) -> None:
    try:
        fits = broadcast([operand.shape, result.shape]) == result.shape
    except ValueError:
        fits = False
    if not fits or operand.dtype != result.dtype:
        raise n.error(f"{operand.dtype}{list(operand.shape)} cannot be added to {result.dtype}{list(result.shape)}")


@infer("Gemm")
def _(n: Inference) -> list[Spec]:
    a, b = n.spec(0), n.spec(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise n.error(f"expected two matrices, got shapes {list(a.shape)} and {list(b.shape)}")
    left, right = _swapped(a.shape, bool(n.attr("transA", 0))), _swapped(b.shape, bool(n.attr("transB", 0)))
    if left[1] != right[0] or a.dtype != b.dtype:
        raise n.error(f"{a.dtype}{list(left)} times {b.dtype}{list(right)}: inner sizes and dtypes must agree")
    result = Spec(a.dtype, (left[0], right[1]))
    if n.has(2):
        _must_broadcast(n, n.spec(2), result)
    return [result]


class Product:
    """The geometry of one f32_gemm step; the defaults describe a plain (m, k) by (k, n) product."""

    def __init__(self, rows: int, columns: int, depth: int) -> None:
        self.rows, self.columns, self.depth = rows, columns, depth
        self.taps: tuple[int, ...] = (0,)
        self.out_row = columns
        self.per_image = self.per_row = rows
        self.image_step = self.row_step = 0
        self.column_step = 4 * depth
        self.groups, self.group_a, self.group_w = 1, 0, 0
        self.batches, self.batch_a, self.batch_w, self.batch_c = 1, 0, 0, 0
        self.vectors = 0
        """Vectors of a full panel; 0: chosen by the rule."""

    def choose_width(self, b: Binder) -> None:
        """Let the machine's tuning results choose the panels' width; for constant weights."""
        rows = self.rows * self.batches
        key = f"f32 panels {rows}x{self.columns}x{len(self.taps) * self.depth}"
        options = widths(rows, self.columns, b.target.shape)
        self.vectors = int(b.choose(key, options)) if len(options) > 1 else int(options[0])


def emit_product(
    b: Binder,
    p: Product,
    a: Operand,
    w: Operand,
    bias: Operand | None,
    residual: Operand | None,
    out: Operand,
    *,
    activate: bool = True,
) -> None:
    """Append the step of a product with packed weights, and of the node's activation if `activate`."""
    finish = finish_of(b) if activate else NO_ACTIVATION
    taps_at = b.constant(np.array(p.taps, np.int64))
    b.emit(
        steps.F32Gemm(
            a=a,
            w=w,
            taps_at=taps_at,
            bias=bias or b.constant(np.zeros(p.columns * p.groups, np.float32)),
            residual=residual,
            c=out,
            rows=p.rows,
            columns=p.columns,
            taps=len(p.taps),
            depth=p.depth,
            vectors=p.vectors or tile_vectors(p.columns, b.target.shape),
            c_row=p.out_row,
            per_image=p.per_image,
            per_line=p.per_row,
            image_step=p.image_step,
            line_step=p.row_step,
            row_step=p.column_step,
            groups=p.groups,
            group_a=p.group_a,
            group_w=p.group_w,
            batches=p.batches,
            batch_a=p.batch_a,
            batch_w=p.batch_w,
            batch_c=p.batch_c,
            **finish,
        )
    )


@bind("MatMul")
def _(b: Binder) -> None:
    bias = b.inputs[2] if len(b.inputs) > 2 else None
    residual = b.inputs[3] if len(b.inputs) > 3 else None
    _bind_product(b, bias, residual, bool(b.attr("transA", 0)), bool(b.attr("transB", 0)))


@bind("Gemm")
def _(b: Binder) -> None:
    if b.attr("alpha", 1.0) != 1.0 or b.attr("beta", 1.0) != 1.0:
        raise NoKernel("a scaled Gemm")
    bias = b.inputs[2] if len(b.inputs) > 2 else None
    _bind_product(b, bias, None, bool(b.attr("transA", 0)), bool(b.attr("transB", 0)))


def _bind_product(b: Binder, bias: Operand | None, residual: Operand | None, trans_a: bool, trans_b: bool) -> None:
    a, right, out = b.inputs[0], b.inputs[1], b.outputs[0]
    assert a is not None and right is not None and out is not None
    float32_only(a, right, bias, residual)
    if a.size == 0:
        raise NoKernel("an empty reduction")
    if residual is not None and residual.shape != out.shape:
        raise NoKernel("a broadcast residual")
    left_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    if trans_a and not trans_b and bias is None and residual is None and _outer(b, a, right, out):
        return
    if trans_a:
        a, left_shape = _transposed(b, a, left_shape)
    right_shape = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    k, n = (right_shape[-1], right_shape[-2]) if trans_b else (right_shape[-2], right_shape[-1])
    m = left_shape[-2]
    batch_b = prod(right_shape[:-2])
    if batch_b == 1:
        p = Product(prod(left_shape[:-1]), n, k)
    else:
        p = Product(m, n, k)
        batch = broadcast([left_shape[:-2], right_shape[:-2]])
        a, left_shape = _spread(b, a, left_shape, batch)
        right, right_shape = _spread(b, right, right_shape, batch)
        batch_b = prod(right_shape[:-2])
        p.batches, p.batch_c = prod(batch), 4 * m * n
        p.batch_a = _batch_step(left_shape[:-2], batch, 4 * m * k)
        p.batch_w = _batch_step(right_shape[:-2], batch, 4 * packed_size(k, n, b.lanes))
    if right.value is not None:
        p.choose_width(b)
    w = _pack(b, right, batch_b, k, n, trans_b, vectors=p.vectors)
    emit_product(b, p, a, w, column_bias(b, bias, n), residual, out)


def _outer(b: Binder, a: Operand, right: Operand, out: Operand) -> bool:
    """A^T B of computed matrices without a copy; False if another way is better or the only one."""
    if right.value is not None or min(len(a.shape), len(right.shape)) < 2 or b.attr("activation", ""):
        return False
    batch = out.shape[:-2]
    own = [prod(o.shape[:-2]) == prod(batch) for o in (a, right)]
    if any(not o and prod(x.shape[:-2]) != 1 for o, x in zip(own, (a, right), strict=True)):
        return False
    sizes = (a.shape[-2], a.shape[-1], right.shape[-1])
    emit_transposed_product(b, a, right, out, sizes, (prod(batch), int(own[0]), int(own[1])))
    return True


def _batch_step(shape: tuple[int, ...], batch: tuple[int, ...], step: int) -> int:
    """Byte distance between batches: 0 if one matrix is used for all."""
    return step if prod(shape) == prod(batch) else 0


def _spread(b: Binder, x: Operand, shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[Operand, tuple[int, ...]]:
    """An operand that has neither one matrix nor all, such as the keys that several heads share, as a dense copy with
    all of them."""
    if prod(shape[:-2]) in (1, prod(batch)):
        return x, shape
    whole = (*batch, *shape[-2:])
    own = (*(1,) * (len(whole) - len(shape)), *shape)
    taken = [0 if size == 1 else step for size, step in zip(own, dense_strides(own), strict=True)]
    copy = b.scratch("float32", whole)
    emit_copy(b, x, copy, [Dim(*d) for d in zip(whole, taken, dense_strides(whole), strict=True)])
    return copy, whole


def _pack(
    b: Binder,
    right: Operand,
    batches: int,
    k: int,
    n: int,
    trans: bool,
    factor: float = 1.0,
    vectors: int = 0,
) -> Operand:
    """The right operand in panels: packed now if it is constant, otherwise by a step."""
    if right.value is not None:

        def pack(value: Array) -> Array:
            matrices = value.reshape(batches, *((n, k) if trans else (k, n)))
            turned = (m.T if trans else m for m in matrices)
            return np.concatenate([panels(m * np.float32(factor), b.target.shape, vectors) for m in turned])

        return b.packed(right, f"panels {trans} {factor} {b.lanes} {vectors}", pack)
    size = packed_size(k, n, b.lanes)
    packed = b.scratch("float32", (batches * size,))
    emit_pack(b, right, packed, (k, n), trans=trans, batches=(batches, 4 * k * n, 4 * size), factor=factor)
    return packed


def emit_pack(
    b: Binder,
    right: Operand,
    packed: Operand,
    sizes: tuple[int, int],
    *,
    trans: bool,
    batches: tuple[int, int, int] = (1, 0, 0),
    factor: float = 1.0,
) -> None:
    """Append the step that packs computed right operands. sizes: depth and columns; trans: columns come first in
    memory; batches: their number, and the byte distances between batches of `right` and of `packed`."""
    depth, columns = sizes
    row_step, column_step = (4, 4 * depth) if trans else (4 * columns, 4)
    count, batch_b, batch_packed = batches
    b.emit(
        steps.F32Pack(
            b=right,
            packed=packed,
            depth=depth,
            columns=columns,
            vectors=tile_vectors(columns, b.target.shape),
            row_step=row_step,
            column_step=column_step,
            batches=count,
            batch_b=batch_b,
            batch_packed=batch_packed,
            factor=factor,
        )
    )


def _transposed(b: Binder, a: Operand, shape: tuple[int, ...]) -> tuple[Operand, tuple[int, ...]]:
    """The left operand with its last two axes swapped, as a dense copy."""
    batches, rows, columns = prod(shape[:-2]), shape[-2], shape[-1]
    turned = b.scratch("float32", (*shape[:-2], columns, rows))
    b.emit(steps.F32Transpose(a=a, out=turned, batches=batches, rows=rows, columns=columns))
    return turned, turned.shape
