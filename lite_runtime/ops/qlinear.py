"""Integer contractions: QLinearConv (channels last, 1-D and 2-D), QLinearMatMul, ConvInteger, MatMulInteger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import DTYPES, Array
from lite_runtime.ops import _qpanels as q
from lite_runtime.ops._checks import SCALE_TYPES, broadcast, one_of, one_or
from lite_runtime.ops.convolution import Geometry, geometry_of
from lite_runtime.ops.misc import as_conv
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.targets import Shape

__all__ = ["INTEGERS", "images_of", "scaled"]

_MOST_TAPS = 254
"""Of a depthwise window: what qwide sums without looking."""


# -- types ------------------------------------------------------------------------------------------------------------


def _product(n: Inference, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a matrix product; vectors are treated as in NumPy's matmul."""
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise n.error(f"expected operands with one common size, got {a} and {b}")
    rows = left[-2:-1] if len(a) > 1 else ()
    columns = right[-1:] if len(b) > 1 else ()
    return (*broadcast(n, left[:-2], right[:-2]), *rows, *columns)


_BYTES = ("int8", "uint8")
INTEGERS = (*_BYTES, "int16")
_FLOATS8 = tuple(name for name in DTYPES if name.startswith("float8"))

_Shapes = tuple[tuple[int, ...], ...]


def _rows_and_columns(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[_Shapes, _Shapes]:
    """Shapes with one number per row of `a` and per column of `b`; none for vectors, whose products lack that axis."""
    if len(b) < 2:
        return (), ()
    columns: _Shapes = (b[-1:],)
    return ((a[-2:-1], (*a[:-1], 1)), (*columns, (*b[:-2], 1, b[-1]))) if len(a) > 1 else ((), columns)


def images_of(x: tuple[int, ...]) -> _Shapes:
    """Shapes with one number per image of `x`."""
    return x[:1], (*x[:1], *(1,) * (len(x) - 1))


@infer("MatMulInteger")
def _matmul_integer(n: Inference) -> list[Spec]:
    a, b = (one_of(n, i, _BYTES) for i in (0, 1))
    shape = _product(n, a.shape, b.shape)
    for i, of, shapes in zip((2, 3), (a, b), _rows_and_columns(a.shape, b.shape), strict=True):
        if n.has(i):
            one_or(n, i, "zero point", (of.dtype,), *shapes)
    return [Spec("int32", shape)]


@infer("ConvInteger")
def _conv_integer(n: Inference) -> list[Spec]:
    x, w = (one_of(n, i, _BYTES) for i in (0, 1))
    result = as_conv(n, 0, 1, "int32")
    for i, of, shapes in ((2, x, images_of(x.shape)), (3, w, (w.shape[:1],))):
        if n.has(i):
            one_or(n, i, "zero point", (of.dtype,), *shapes)
    return result


def scaled(n: Inference, left: _Shapes, right: _Shapes, columns: int, results: Sequence[str]) -> str:
    """The type of y: that of its zero point, or float32 if scale and zero point are left out. Checks the operands other
    than x and w: scales and zero points, one value or one of these shapes, and B, one value per column: float32 for a
    real result, otherwise the integer type of the sums."""
    x, w = n.spec(0), n.spec(3)
    for i, name, of, shapes in ((1, "x", x, left), (4, "w", w, right)):
        one_or(n, i, f"{name}_scale", SCALE_TYPES, *shapes)
        one_or(n, i + 1, f"{name}_zero_point", (of.dtype,), *shapes)
    if n.has(6) != n.has(7):
        raise n.error("expected both y_scale and y_zero_point, or neither")
    dtype = "float32"
    if n.has(7):
        one_or(n, 6, "y_scale", SCALE_TYPES)
        dtype = one_or(n, 7, "y_zero_point", results).dtype
    if n.has(8):
        wanted = Spec("float32" if dtype == "float32" else "int64" if x.dtype == "int16" else "int32", (columns,))
        if n.spec(8) != wanted:
            raise n.error(f"bias: expected {wanted.dtype}[{columns}], got {n.spec(8).dtype}{list(n.spec(8).shape)}")
    return dtype


@infer("QLinearMatMul")
def _qlinear_matmul(n: Inference) -> list[Spec]:
    """ONNX's operator also takes 8-bit floats, with a result of these."""
    narrow = n.has(7) and n.spec(7).dtype in _FLOATS8
    given = (*_BYTES, *_FLOATS8) if narrow else INTEGERS
    a, b = one_of(n, 0, given).shape, one_of(n, 3, given).shape
    if n.attr("transB", 0):
        if len(b) < 2:
            raise n.error(f"expected at least a matrix to transpose, got shape {b}")
        b = (*b[:-2], b[-1], b[-2])
    shape = _product(n, a, b)
    columns = b[-1] if len(b) > 1 else 1
    return [Spec(scaled(n, *_rows_and_columns(a, b), columns, _FLOATS8 if narrow else INTEGERS), shape)]


@infer("QLinearConv")
def _qlinear_conv(n: Inference) -> list[Spec]:
    x, w = one_of(n, 0, INTEGERS), one_of(n, 3, _BYTES)
    (result,) = as_conv(n, 0, 3, "float32")
    return [Spec(scaled(n, images_of(x.shape), (w.shape[:1],), w.shape[0], INTEGERS), result.shape)]


# -- the step ---------------------------------------------------------------------------------------------------------


@dataclass
class _Product:
    """The geometry of one gemm step, in elements; the defaults describe a plain (rows, depth) by (depth, columns)
    product."""

    rows: int
    columns: int
    depth: int
    taps: tuple[int, ...] = (0,)
    per_image: int = 0
    per_row: int = 0
    image_step: int = 0
    row_step: int = 0
    column_step: int = 0
    groups: int = 1
    group_a: int = 0
    batches: int = 1
    batch_a: int = 0
    batch_w: int = 0
    """Step in weight matrices between batches: 1, or 0 if they share one."""
    rows_a_scale: int = 0

    def __post_init__(self) -> None:
        self.per_image = self.per_image or self.rows
        self.per_row = self.per_row or self.rows
        self.column_step = self.column_step or self.depth


@dataclass(frozen=True)
class _Weights:
    """The right operand as a step reads it, and in which order; sums and biases, (matrices, columns) each, if they are
    constant."""

    panels: Operand
    split: q.Cut
    bias: Operand
    weight_sum: Operand


def _emit(b: Binder, p: _Product, t: q.Terms, a: Operand, w: _Weights, shift: Array) -> None:
    """Append the step; `shift`: a column's real bias."""
    out, lanes, split = b.outputs[0], b.lanes, w.split
    assert out is not None
    r = q.result_of(b, t, out)
    target = q.sums_of(b, r, out)
    table = -(-p.columns // lanes) * lanes * (8 if t.wide else 4)  # bytes of a batch's biases
    panel = q.panel_bytes(len(split.places), p.columns, _shape(b, t), t.shifted)
    scale, column_shift = q.factors(b, t, r.kind, shift, p.groups)
    declared = (
        steps.X16GemmDeep if t.deep else steps.X16Gemm if t.wide else steps.X8GemmShifted if t.shifted else steps.X8Gemm
    )
    b.emit(
        declared(
            a=a,
            w=w.panels,
            places=b.constant(np.array(split.places, np.int64)),
            bias=w.bias,
            scale=b.constant(scale),
            shift=b.constant(column_shift),
            weight_sum=w.weight_sum,
            weight_zero=b.constant(q.per_column(t.w_zero, p.groups, lanes, "int32")),
            **q.moving_operands(b, t),
            c=target,
            rows=p.rows,
            columns=p.columns,
            dwords=len(split.places),
            quick=split.quick,
            vectors=q.full_vectors(p.columns, _shape(b, t), t.shifted),
            size=r.size,
            c_row=p.groups * p.columns,
            per_image=p.per_image,
            per_line=p.per_row,
            image_step=t.size * p.image_step,
            line_step=t.size * p.row_step,
            row_step=t.size * p.column_step,
            groups=p.groups,
            group_a=t.size * p.group_a,
            group_w=panel,
            batches=p.batches,
            batch_a=t.size * p.batch_a,
            batch_w=p.batch_w * panel,
            batch_c=r.size * p.rows * p.columns,
            batch_bias=p.batch_w * table,
            kind=r.kind,
            zero=r.zero,
            low=r.low,
            high=r.high,
            rows_a_scale=p.rows_a_scale if t.moving > 1 else 0,
            turn=r.turn,
            wild=int(r.wild),
        )
    )
    q.settle(b, t, r, target, out)


def _cut(b: Binder, t: q.Terms, taps: Sequence[int], depth: int) -> q.Cut:
    """The reduction in dwords, in the order that the target's kernel wants."""
    split = q.cut(taps, depth, t.size)
    return q.fours_first(split) if _shape(b, t).indexed and not t.wide else split


def _shape(b: Binder, t: q.Terms) -> Shape:
    """What the panels of a product depend on."""
    return b.target.shape_of("qwide" if t.wide else "qgemm")


def _constant_weights(
    b: Binder, t: q.Terms, matrices: str, split: q.Cut, groups: int, arrange: Callable[[Array], Array]
) -> _Weights:
    """Packed weights and the values derived from them. `arrange`, named `matrices`: w -> (matrix, reduction,
    column)."""
    lanes, shifted, shape = b.lanes, t.shifted, _shape(b, t)
    if shape.outer:
        source, name = split.source, f"wide {matrices} {split.depth}"
        wide = b.packed(t.w, name, lambda w: q.wide_dwords(arrange(q.signed(w)), source)).value
        assert wide is not None
        split = q.narrow_first(split, wide)

    def pack(w: Array) -> Array:
        whole = arrange(q.signed(w))
        if t.wide:
            whole = whole.astype(np.int16) - t.w_zero.reshape(groups, 1, -1).astype(np.int16)
        return np.concatenate([q.quantised_panels(m, split.source, shape, shifted) for m in whole])

    def sums(w: Array) -> Array:
        return np.asarray(arrange(q.signed(w)).sum(1, dtype=np.int64))

    total = b.packed(t.w, f"sums {matrices}", sums).value
    assert total is not None
    length = int((split.source >= 0).sum())
    weight_sum, bias = _folded(t, total.reshape(-1, len(t.w_zero)), length)  # (matrices, groups * columns)
    return _Weights(
        b.packed(t.w, f"bytes {matrices} {split.depth} {shifted} {_zeros(t)} {shape}", pack),
        split,
        b.constant(q.per_column(bias, groups, lanes, "int64" if t.wide else "int32")),
        b.constant(q.per_column(weight_sum, groups, lanes, "int32")),
    )


def _zeros(t: q.Terms) -> str:
    """What packed weights depend on besides the weights themselves."""
    return "" if not t.wide else f"wide {t.w_zero.tolist() if t.w_zero.any() else 0}"


def _real_bias(t: q.Terms, columns: int) -> Array:
    """The bias added to a real result; -0.0 changes nothing, not even the sign of a zero."""
    if t.bias is None or t.bias.dtype != "float32":
        return np.full(columns, -0.0, np.float32)
    if t.bias.value is None:
        raise NoKernel("a computed bias")
    return t.bias.value


# -- convolutions -----------------------------------------------------------------------------------------------------


@bind("QLinearConv", "ConvInteger")
def _(b: Binder) -> None:
    integer = b.node.op == "ConvInteger"
    x, w, out = b.inputs[0], b.inputs[1 if integer else 3], b.outputs[0]
    assert x is not None and w is not None and out is not None
    if b.attr("layout", "NCHW") != "NHWC" or len(x.shape) > 4 or w.value is None or w.size == 0:
        raise NoKernel("a convolution that is not channels-last, is 3-D, or has computed weights")
    t = q.terms_of(b, w.shape[0])
    if t.moving not in (1, x.shape[0]):
        raise NoKernel(f"{t.moving} scales for {x.shape[0]} images")
    g, group = geometry_of(b, x, w, out), b.attr("group", 1)
    if group == g.channels == w.shape[0] and group > 1 and prod(g.kernel) <= _MOST_TAPS:
        (_wide_depthwise if t.wide else _depthwise)(b, g, t)
    else:
        _convolution(b, g, group, t)


def _convolution(b: Binder, g: Geometry, group: int, t: q.Terms) -> None:
    columns, depth = t.w.shape[0] // group, t.w.shape[1]
    merged = group == 1 and g.dilations[1] == 1  # a window's columns are adjacent: one tap per row
    image, high, wide = _bordered(b, g, t, 3 // t.size if depth * (g.kernel[1] if merged else 1) < 4 // t.size else 0)
    taps = tuple(
        g.channels * (y * g.dilations[0] * wide + x * g.dilations[1])
        for y in range(g.kernel[0])
        for x in range(1 if merged else g.kernel[1])
    )
    p = _Product(g.images * prod(g.out), columns, depth * (g.kernel[1] if merged else 1), taps)
    p.per_image, p.per_row = prod(g.out), g.out[1]
    p.image_step, p.row_step = g.channels * high * wide, g.channels * wide * g.strides[0]
    p.column_step = g.channels * g.strides[1]
    if g.kernel == g.strides == (1, 1) and g.out == (high, wide):  # every pixel is a row, without gaps
        p.per_image = p.per_row = p.rows
    p.groups, p.group_a, p.rows_a_scale = group, depth, prod(g.out)
    split = _cut(b, t, taps, p.depth)

    def arrange(w: Array) -> Array:  # (group, tap * depth, column)
        return w.reshape(group, columns, depth, -1).transpose(0, 3, 2, 1).reshape(group, -1, columns)

    weights = _constant_weights(b, t, f"conv {group}", split, group, arrange)
    _emit(b, p, t, image, weights, _real_bias(t, group * columns))


def _depthwise(b: Binder, g: Geometry, t: q.Terms) -> None:
    """One window per channel."""
    out, lanes, channels, block = b.outputs[0], b.lanes, g.channels, 4 * b.lanes
    assert out is not None
    taps, order = prod(g.kernel), q.block_order(channels, lanes)
    fours = -(-taps // 4)
    image, high, wide = _bordered(b, g, t, block if channels < block else 0)
    offsets = [
        channels * (y * g.dilations[0] * wide + x * g.dilations[1])
        for y in range(g.kernel[0])
        for x in range(g.kernel[1])
    ]
    offsets += offsets[:1] * (4 * fours - taps)

    def pack(w: Array) -> Array:
        whole = np.zeros((4 * fours, channels), np.int8)
        whole[:taps] = q.signed(w).reshape(channels, taps).T
        return whole.reshape(fours, 4, channels)[:, :, order].transpose(2, 0, 3, 4, 1).ravel()

    def sums(w: Array) -> Array:
        return np.asarray(q.signed(w).reshape(channels, taps).sum(1, dtype=np.int64))

    weight_sum, bias = _folded(t, b.packed(t.w, "sums depthwise", sums).value, taps)
    # Adjacent pixels with few channels are treated as one long pixel whose weights repeat.
    flat = channels < block and block % channels == 0 and g.strides[1] == 1
    line = g.out[1] * channels
    r = q.result_of(b, t, out)
    target = q.sums_of(b, r, out)
    declared = steps.X8DepthwiseShifted if t.shifted else steps.X8Depthwise
    b.emit(
        declared(
            x=image,
            w=b.packed(t.w, f"depthwise {lanes}", pack),
            taps_at=b.constant(np.array(offsets, np.int64)),
            bias=b.constant(bias[order].astype("int32")),
            scale=b.constant(q.scale_of(t)[order].astype("float32")),
            shift=b.constant(_real_bias(t, channels)[order].astype("float32")),
            weight_sum=b.constant(weight_sum[order].astype("int32")),
            weight_zero=b.constant(t.w_zero[order].astype("int32")),
            **q.moving_operands(b, t),
            ones=b.constant((np.arange(4 * fours) < taps).astype(np.uint8)),
            y=target,
            images=g.images,
            height=g.out[0],
            width=-(-line // block) if flat else g.out[1],
            channels=block if flat else channels,
            groups=fours,
            image_step=high * wide * channels,
            line_step=wide * channels * g.strides[0],
            pixel_step=block if flat else channels * g.strides[1],
            line=line,
            size=r.size,
            kind=r.kind,
            zero=r.zero,
            low=r.low,
            high=r.high,
            apart=int(t.moving > 1),
            turn=r.turn,
            wild=int(r.wild),
        )
    )
    q.settle(b, t, r, target, out)


def _wide_depthwise(b: Binder, g: Geometry, t: q.Terms) -> None:
    """One window per int16 channel."""
    out, lanes, channels = b.outputs[0], b.lanes, g.channels
    assert out is not None
    taps = prod(g.kernel)
    image, high, wide = _bordered(b, g, t, lanes)
    pixel = channels * t.size
    offsets = [
        pixel * (y * g.dilations[0] * wide + x * g.dilations[1]) for y in range(g.kernel[0]) for x in range(g.kernel[1])
    ]

    def pack(w: Array) -> Array:
        whole = np.zeros((taps, -(-channels // lanes) * lanes), np.int16)
        whole[:, :channels] = q.signed(w).reshape(channels, taps).T - t.w_zero.astype(np.int16)
        return whole

    def sums(w: Array) -> Array:
        return np.asarray(q.signed(w).reshape(channels, taps).sum(1, dtype=np.int64))

    _, bias = _folded(t, b.packed(t.w, "sums depthwise", sums).value, taps)
    r = q.result_of(b, t, out)
    scale, shift = q.factors(b, t, r.kind, _real_bias(t, channels), 1)
    b.emit(
        steps.X16Depthwise(
            x=image,
            w=b.packed(t.w, f"depthwise {_zeros(t)} {lanes}", pack),
            taps_at=b.constant(np.array(offsets, np.int64)),
            bias=b.constant(q.per_column(bias, 1, lanes, "int64")),
            scale=b.constant(scale),
            shift=b.constant(shift),
            weight_sum=None,
            weight_zero=None,
            zeros=None,
            scales=None,
            flip=None,
            ones=None,
            y=out,
            images=g.images,
            height=g.out[0],
            width=g.out[1],
            channels=channels,
            groups=taps,
            image_step=pixel * high * wide,
            line_step=pixel * wide * g.strides[0],
            pixel_step=pixel * g.strides[1],
            line=g.out[1] * channels,
            size=r.size,
            kind=r.kind,
            zero=r.zero,
            low=r.low,
            high=r.high,
            apart=0,
        )
    )


def _folded(t: q.Terms, total: Array | None, length: int) -> tuple[Array, Array]:
    """From sums of signed weights, (…, columns), over `length` products each: weight sums and integer biases."""
    assert total is not None
    weight_sum = total - length * t.w_zero
    bias = -t.known_zero * weight_sum
    if t.bias is not None and t.bias.dtype != "float32":
        if t.bias.value is None:
            raise NoKernel("a computed integer bias")
        bias = bias + t.bias.value.astype(np.int64)
    return weight_sum, bias


def _bordered(b: Binder, g: Geometry, t: q.Terms, slack: int) -> tuple[Operand, int, int]:
    """The image with the border that the windows need, followed by `slack` readable elements; its height and width. The
    image itself if no window leaves it and there is no slack."""
    high, wide = g.padded
    if g.begins == (0, 0) and high <= g.height and wide <= g.width:
        if not slack:
            return t.x, g.height, g.width
        high, wide = g.height, g.width
    padded = b.scratch(t.x.dtype, (g.images * high * wide * g.channels + slack,))
    declared = steps.X16Pad if t.wide else steps.X8Pad
    b.emit(
        declared(
            x=t.x,
            zeros=t.x_zero if isinstance(t.x_zero, Operand) else b.constant(t.known()),
            y=padded,
            images=g.images,
            height=g.height,
            width=g.width,
            depth=g.channels,
            top=g.begins[0],
            left=g.begins[1],
            high=high,
            wide=wide,
            apart=int(t.moving > 1),
        )
    )
    return padded, high, wide


# -- matrix products --------------------------------------------------------------------------------------------------


@bind("QLinearMatMul", "MatMulInteger")
def _(b: Binder) -> None:
    a, right = b.inputs[0], b.inputs[1 if b.node.op == "MatMulInteger" else 3]
    assert a is not None and right is not None
    if a.size == 0:
        raise NoKernel("an empty reduction")
    turned = bool(b.attr("transB", 0))
    left_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right_shape = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    k, n = (right_shape[-1], right_shape[-2]) if turned else (right_shape[-2], right_shape[-1])
    t = q.terms_of(b, n)
    m, batch_b = left_shape[-2], prod(right_shape[:-2])
    if batch_b == 1:
        p = _Product(prod(left_shape[:-1]), n, k)
    else:
        p = _Product(m, n, k)
        batch = np.broadcast_shapes(left_shape[:-2], right_shape[:-2])
        p.batches, p.batch_w = prod(batch), _step(right_shape[:-2], batch, 1)
        p.batch_a = _step(left_shape[:-2], batch, m * k)
    if t.moving not in (1, prod(left_shape[:-1])) or (t.moving > 1 and p.batches > 1 and p.batch_a == 0):
        raise NoKernel(f"{t.moving} scales for rows of {list(left_shape)}")
    p.rows_a_scale = 1
    split = _cut(b, t, (0,), k)
    weights = _right(b, t, split, batch_b, k, n, turned)
    if split.slack:
        copy = b.scratch(a.dtype, (a.size + 3 // t.size,))
        declared = steps.X16Pad if t.wide else steps.X8Pad
        b.emit(
            declared(
                x=a,
                zeros=b.constant(t.known()),
                y=copy,
                images=1,
                height=1,
                width=a.size,
                depth=1,
                top=0,
                left=0,
                high=1,
                wide=a.size,
                apart=0,
            )
        )
        a = copy
    _emit(b, p, t, a, weights, _real_bias(t, n))


def _step(shape: tuple[int, ...], batch: tuple[int, ...], step: int) -> int:
    """Byte distance between batches: 0 if one matrix is used for all; mixed cases are not supported."""
    if prod(shape) == prod(batch):
        return step
    if prod(shape) == 1:
        return 0
    raise NoKernel(f"batches {list(shape)} broadcast to {list(batch)}")


def _right(b: Binder, t: q.Terms, split: q.Cut, batches: int, k: int, n: int, turned: bool) -> _Weights:
    """The right operand in panels: packed now if it is constant, otherwise by a step."""
    if t.w.value is not None:

        def arrange(w: Array) -> Array:
            return w.reshape(batches, n, k).swapaxes(1, 2) if turned else w.reshape(batches, k, n)

        return _constant_weights(b, t, f"matrices {turned}", split, 1, arrange)
    if np.ptp(t.w_zero):
        raise NoKernel("zero points by column of a computed operand")
    if t.wide:
        return _right_of_shorts(b, t, split, batches, k, n, turned)
    if t.bias is not None and t.bias.dtype == "int32" and len(t.bias.shape) != 1:
        raise NoKernel(f"a bias of shape {list(t.bias.shape)}")
    lanes, shape = b.lanes, _shape(b, t)
    padded, size = -(-n // lanes) * lanes, q.panel_bytes(len(split.places), n, shape, t.shifted)
    packed = b.scratch("uint8", (batches * size,))
    bias, weight_sum = (b.scratch("int32", (batches, padded)) for _ in range(2))
    row_step, column_step = (1, k) if turned else (n, 1)
    b.emit(
        steps.X8Pack(
            b=t.w,
            bias=t.bias if t.bias is not None and t.bias.dtype == "int32" else None,
            packed=packed,
            folded=bias,
            sums=weight_sum,
            depth=k,
            columns=n,
            vectors=q.full_vectors(n, shape, t.shifted),
            ones=int(t.shifted),
            row_step=row_step,
            column_step=column_step,
            batches=batches,
            batch_b=k * n,
            batch_packed=size,
            batch_table=4 * padded,
            flip=128 if t.w.dtype == "uint8" else 0,
            zero_b=int(t.w_zero[0]),
            zero_a=t.known_zero,
            overlap=int(not split.slack),
        )
    )
    return _Weights(packed, split, bias, weight_sum)


def _right_of_shorts(b: Binder, t: q.Terms, split: q.Cut, batches: int, k: int, n: int, turned: bool) -> _Weights:
    """A computed right operand of int16, packed by a step."""
    if t.w_zero.any() or t.known_zero or t.bias is not None:
        raise NoKernel("zero points or a bias with a computed operand of int16")
    size, padded = q.panel_bytes(len(split.places), n, _shape(b, t), False), -(-n // b.lanes) * b.lanes
    packed = b.scratch("uint8", (batches * size,))
    row_step, column_step = (1, k) if turned else (n, 1)
    step = steps.X16Pack(
        b=t.w,
        packed=packed,
        depth=k,
        columns=n,
        vectors=q.full_vectors(n, _shape(b, t), False),
        row_step=row_step,
        column_step=column_step,
        batches=batches,
        batch_b=2 * k * n,
        batch_packed=size,
    )
    b.emit(step)
    bias, weight_sum = (b.constant(np.zeros((batches, padded), dtype)) for dtype in (np.int64, np.int32))
    return _Weights(packed, split, bias, weight_sum)
