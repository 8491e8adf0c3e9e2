"""Convolutions: Conv with residual and activation, ConvTranspose. Native in channels-last layout, 1-D and 2-D."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.ops._geometry import Geometry, flat
from lite_runtime.ops._packing import (
    Filters,
    dense_filters,
    depthwise_filters,
    pack_filters,
    reversed_filters,
    spread_filters,
)
from lite_runtime.ops._panels import column_bias, finish_of, float32_only, packed_size, tile_vectors
from lite_runtime.ops.linear import Product, emit_product
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.ops.winograd import bind_winograd

__all__ = ["Geometry", "Window", "flat", "geometry_of", "inference_of", "transposed_sizes", "window_of", "with_border"]

_LIMIT = 1 << 31
_DIRECT = {
    (size, size, stride, stride, 1, 1): f"depthwise.f32_depthwise__{size}x{size}s{stride}"
    for size in (3, 5)
    for stride in (1, 2)
}
"""Depthwise kernels with unrolled taps, by window, strides and dilations; they support a bias but no residual."""


@dataclass(frozen=True)
class Window:
    """How a window moves over an image: per spatial axis its size, stride, dilation and the border before and after."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    def extent(self, axis: int) -> int:
        """Elements from a window's first tap to its last, inclusive."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def _ints(n: Inference, name: str, count: int, default: int, least: int) -> tuple[int, ...]:
    values = tuple(n.attr(name, ()) or (default,) * count)
    if len(values) != count or any(not isinstance(v, int) or v < least or v >= _LIMIT for v in values):
        raise n.error(f"{name}: expected {count} integers of at least {least}, got {list(values)}")
    return values


def window_of(n: Inference, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window of a Conv node over an image of these spatial sizes, with its padding resolved."""
    count = len(spatial)
    strides, dilations = _ints(n, "strides", count, 1, 1), _ints(n, "dilations", count, 1, 1)
    mode, pads = n.attr("auto_pad", "NOTSET"), _ints(n, "pads", 2 * count, 0, 0)
    if mode in ("NOTSET", ""):
        return Window(kernel, strides, dilations, pads[:count], pads[count:])
    if mode == "VALID":
        return Window(kernel, strides, dilations, (0,) * count, (0,) * count)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise n.error(f"auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode!r}")
    begins, ends = [], []
    for size, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        whole = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        less, more = whole // 2, whole - whole // 2
        begins.append(less if mode == "SAME_UPPER" else more)
        ends.append(more if mode == "SAME_UPPER" else less)
    return Window(kernel, strides, dilations, tuple(begins), tuple(ends))


def _layout(n: Inference) -> bool:
    """Whether the node is channels-last."""
    layout = n.attr("layout", "NCHW")
    if layout not in ("NCHW", "NHWC"):
        raise n.error(f"layout: expected NCHW or NHWC, got {layout!r}")
    return bool(layout == "NHWC")


def _image(shape: tuple[int, ...], last: bool) -> tuple[int, int, tuple[int, ...]]:
    """Number of images, channels, spatial sizes."""
    return (shape[0], shape[-1], shape[1:-1]) if last else (shape[0], shape[1], shape[2:])


def _shaped(images: int, channels: int, spatial: tuple[int, ...], last: bool) -> tuple[int, ...]:
    return (images, *spatial, channels) if last else (images, channels, *spatial)


def _operands(n: Inference) -> tuple[Spec, Spec, bool]:
    x, w, last = n.spec(0), n.spec(1), _layout(n)
    if len(x.shape) < 3 or len(w.shape) != len(x.shape):
        raise n.error(f"expected an image and weights of one rank, at least 3, got {list(x.shape)} and {list(w.shape)}")
    if x.dtype != w.dtype:
        raise n.error(f"expected one dtype, got {x.dtype} and {w.dtype}")
    declared = tuple(n.attr("kernel_shape", ()) or w.shape[2:])
    if declared != w.shape[2:] or 0 in declared:
        raise n.error(f"kernel_shape {list(declared)} does not match weights {list(w.shape)}")
    return x, w, last


def _per_channel(n: Inference, i: int, channels: int, dtype: str) -> None:
    if n.has(i) and n.spec(i) != Spec(dtype, (channels,)):
        raise n.error(f"bias: expected {dtype}[{channels}], got {n.spec(i).dtype}{list(n.spec(i).shape)}")


@infer("Conv")
def _(n: Inference) -> list[Spec]:
    x, w, last = _operands(n)
    images, channels, spatial = _image(x.shape, last)
    group = n.attr("group", 1)
    if group < 1 or w.shape[0] % group or w.shape[1] * group != channels:
        raise n.error(f"group {group}: {channels} channels do not fit weights {list(w.shape)}")
    _per_channel(n, 2, w.shape[0], x.dtype)
    window = window_of(n, spatial, w.shape[2:])
    sizes = []
    for i, size in enumerate(spatial):
        room = size + window.begins[i] + window.ends[i] - window.extent(i)
        if room < 0:
            raise n.error(f"window {list(window.kernel)} is larger than the padded image {list(spatial)}")
        sizes.append(room // window.strides[i] + 1)
    result = Spec(x.dtype, _shaped(images, w.shape[0], tuple(sizes), last))
    if n.has(3) and n.spec(3) != result:
        raise n.error(f"residual: expected {list(result.shape)}, got {list(n.spec(3).shape)}")
    return [result]


@infer("ConvTranspose")
def _(n: Inference) -> list[Spec]:
    x, w, last = _operands(n)
    images, channels, spatial = _image(x.shape, last)
    group = n.attr("group", 1)
    if group < 1 or w.shape[0] != channels or channels % group:
        raise n.error(f"group {group}: {channels} channels do not fit weights {list(w.shape)}")
    out = w.shape[1] * group
    _per_channel(n, 2, out, x.dtype)
    sizes, _ = transposed_sizes(n, spatial, w.shape[2:])
    if any(size <= 0 for size in sizes):
        raise n.error(f"the result would have sizes {list(sizes)}")
    return [Spec(x.dtype, _shaped(images, out, sizes, last))]


def transposed_sizes(n: Inference, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[tuple[int, ...], Window]:
    """A ConvTranspose's spatial result sizes and its window with padding resolved (ONNX operators,
    ConvTranspose-22)."""
    count = len(spatial)
    strides, dilations = _ints(n, "strides", count, 1, 1), _ints(n, "dilations", count, 1, 1)
    extra = _ints(n, "output_padding", count, 0, 0)
    mode, wanted = n.attr("auto_pad", "NOTSET"), tuple(n.attr("output_shape", ()) or ())
    full = [
        s * (size - 1) + (k - 1) * d + 1 + e
        for size, k, s, d, e in zip(spatial, kernel, strides, dilations, extra, strict=True)
    ]
    if mode in ("NOTSET", "") and not wanted:
        pads = _ints(n, "pads", 2 * count, 0, 0)
        begins, ends = pads[:count], pads[count:]
    elif mode == "VALID" and not wanted:
        begins = ends = (0,) * count
    elif mode in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        if not wanted:
            wanted = tuple(size * s for size, s in zip(spatial, strides, strict=True))
        if len(wanted) != count or any(not 0 < v < _LIMIT for v in wanted):
            raise n.error(f"output_shape: expected {count} positive sizes, got {list(wanted)}")
        whole = [f - v for f, v in zip(full, wanted, strict=True)]
        upper = mode == "SAME_UPPER"
        begins = tuple(w // 2 if upper else w - w // 2 for w in whole)
        ends = tuple(w - b for w, b in zip(whole, begins, strict=True))
    else:
        raise n.error(f"auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode!r}")
    sizes = tuple(f - b - e for f, b, e in zip(full, begins, ends, strict=True))
    return sizes, Window(kernel, strides, dilations, begins, ends)


def inference_of(b: Binder) -> Inference:
    """The node being bound, as infer rules see it, without values."""
    specs = [None if o is None else o.spec for o in b.inputs]
    return Inference(b.node, specs, [None] * len(specs))


def geometry_of(b: Binder, x: Operand, w: Operand, out: Operand) -> Geometry:
    """The geometry of a channels-last convolution with one or two spatial axes; w is OIHW."""
    window = window_of(inference_of(b), x.shape[1:-1], w.shape[2:])
    height, width = flat(x.shape[1:-1], 1)
    return Geometry(
        images=x.shape[0],
        height=height,
        width=width,
        channels=x.shape[-1],
        out=flat(out.shape[1:-1], 1),
        kernel=flat(window.kernel, 1),
        strides=flat(window.strides, 1),
        dilations=flat(window.dilations, 1),
        begins=flat(window.begins, 0),
    )


def with_border(b: Binder, x: Operand, g: Geometry) -> tuple[Operand, int, int]:
    """The image with the border that the windows need, and its height and width; the image itself if no window leaves
    it."""
    high, wide = g.padded
    if g.begins == (0, 0) and high <= g.height and wide <= g.width:
        return x, g.height, g.width
    padded = b.scratch("float32", (g.images, high, wide, g.channels))
    top, left = g.begins
    b.emit(
        steps.F32Pad(
            x=x,
            y=padded,
            images=g.images,
            height=g.height,
            width=g.width,
            depth=g.channels,
            top=top,
            left=left,
            high=high,
            wide=wide,
        )
    )
    return padded, high, wide


@bind("Conv")
def _(b: Binder) -> None:
    x, w, out = b.inputs[0], b.inputs[1], b.outputs[0]
    assert x is not None and w is not None and out is not None
    bias = b.inputs[2] if len(b.inputs) > 2 else None
    residual = b.inputs[3] if len(b.inputs) > 3 else None
    float32_only(x, w, bias, residual)
    if b.attr("layout", "NCHW") != "NHWC" or len(x.shape) > 4 or w.size == 0:
        raise NoKernel("a convolution that is not channels-last or is 3-D")
    g = geometry_of(b, x, w, out)
    group = b.attr("group", 1)
    if group == g.channels == w.shape[0] and group > 1:
        _depthwise(b, g, x, w, depthwise_filters(group, g.kernel), bias, residual, out)
    else:
        _dense(b, g, x, w, dense_filters(w.shape, group), column_bias(b, bias, w.shape[0]), residual, out)


def _tap_offsets(g: Geometry, wide: int) -> list[int]:
    """Byte offset of every tap from the first element of a window."""
    return [
        4 * g.channels * (y * g.dilations[0] * wide + x * g.dilations[1])
        for y in range(g.kernel[0])
        for x in range(g.kernel[1])
    ]


def _depthwise(
    b: Binder,
    g: Geometry,
    x: Operand,
    w: Operand,
    filters: Filters,
    bias: Operand | None,
    residual: Operand | None,
    out: Operand,
) -> None:
    channels = g.channels
    finish = finish_of(b)
    taps = b.constant(np.array(_tap_offsets(g, g.width), np.int64).reshape(g.kernel).T.ravel())
    packed = pack_filters(b, w, filters, -(-channels // b.lanes))
    kernel = "depthwise.f32_depthwise"
    if residual is None and not b.target.shape.small:
        kernel = _DIRECT.get((*g.kernel, *g.strides, *g.dilations), kernel)
        bias = bias or b.constant(np.zeros(channels, np.float32))
    b.emit(
        steps.F32Depthwise(
            x=x,
            w=packed,
            taps_at=taps,
            bias=bias,
            residual=residual,
            y=out,
            images=g.images,
            height=g.out[0],
            width=g.out[1],
            channels=channels,
            kernel_h=g.kernel[0],
            kernel_w=g.kernel[1],
            x_height=g.height,
            x_width=g.width,
            stride_h=g.strides[0],
            stride_w=g.strides[1],
            dilation_h=g.dilations[0],
            dilation_w=g.dilations[1],
            top=g.begins[0],
            left=g.begins[1],
            **finish,
        ),
        kernel=kernel,
    )


def _dense(
    b: Binder,
    g: Geometry,
    x: Operand,
    w: Operand,
    filters: Filters,
    bias: Operand | None,
    residual: Operand | None,
    out: Operand,
) -> None:
    """A convolution as matrix products; rows of `filters` are (tap, channel)."""
    if filters.groups == 1 and not b.target.shape.small and bind_winograd(b, g, x, w, filters, bias, residual, out):
        return
    image, high, wide = with_border(b, x, g)
    group, columns, depth = filters.groups, filters.columns, filters.inner
    offsets = _tap_offsets(g, wide)
    pixel = 4 * g.channels
    p = Product(g.images * prod(g.out), columns, depth)
    p.taps = tuple(offsets)
    if group == 1 and g.dilations[1] == 1:  # a window's columns are adjacent: one tap per row
        p.taps, p.depth = tuple(offsets[:: g.kernel[1]]), depth * g.kernel[1]
    p.out_row = columns * group
    p.per_image, p.per_row = prod(g.out), g.out[1]
    p.image_step, p.row_step, p.column_step = pixel * high * wide, pixel * wide * g.strides[0], pixel * g.strides[1]
    p.groups, p.group_a = group, 4 * depth
    p.group_w = 4 * packed_size(depth * prod(g.kernel), columns, b.lanes)
    p.choose_width(b)
    emit_product(b, p, image, pack_filters(b, w, filters, p.vectors), bias, residual, out)


@bind("ConvTranspose")
def _(b: Binder) -> None:
    x, w, out = b.inputs[0], b.inputs[1], b.outputs[0]
    assert x is not None and w is not None and out is not None
    bias = b.inputs[2] if len(b.inputs) > 2 else None
    float32_only(x, w, bias)
    if b.attr("layout", "NCHW") != "NHWC" or len(x.shape) > 4 or w.size == 0:
        raise NoKernel("a transposed convolution that is not channels-last or is 3-D")
    group = b.attr("group", 1)
    bias = column_bias(b, bias, w.shape[1] * group)
    t = _transposed_geometry(b, x, w, out)
    if t.strides == (1, 1) and min(t.reversed.begins) >= 0:
        _backwards(b, t.reversed, x, w, group, bias, out)
    elif group == w.shape[0] and w.shape[1] == 1 and group > 1:
        _spread_depthwise(b, t, x, w, bias, out)
    else:
        _spread(b, t, x, w, group, bias, out)


@dataclass(frozen=True)
class _Transposed:
    """A transposed convolution's window. If its stride is 1, also the plain convolution of stride 1 that computes it:
    over the image with a border, with its taps reversed."""

    strides: tuple[int, int]
    dilations: tuple[int, int]
    begins: tuple[int, int]
    reversed: Geometry


def _transposed_geometry(b: Binder, x: Operand, w: Operand, out: Operand) -> _Transposed:
    _, window = transposed_sizes(inference_of(b), x.shape[1:-1], w.shape[2:])
    kernel, dilations, begins = flat(window.kernel, 1), flat(window.dilations, 1), flat(window.begins, 0)
    before = [(k - 1) * d - start for k, d, start in zip(kernel, dilations, begins, strict=True)]
    plain = Geometry(
        images=x.shape[0],
        height=flat(x.shape[1:-1], 1)[0],
        width=flat(x.shape[1:-1], 1)[1],
        channels=x.shape[-1],
        out=flat(out.shape[1:-1], 1),
        kernel=kernel,
        strides=(1, 1),
        dilations=dilations,
        begins=(before[0], before[1]),
    )
    return _Transposed(flat(window.strides, 1), dilations, begins, plain)


def _backwards(b: Binder, g: Geometry, x: Operand, w: Operand, group: int, bias: Operand | None, out: Operand) -> None:
    if group == g.channels and w.shape[1] == 1 and group > 1:
        _depthwise(b, g, x, w, depthwise_filters(group, g.kernel, reverse=True), bias, None, out)
    else:
        _dense(b, g, x, w, reversed_filters(w.shape, group), bias, None, out)


def _emit_sums(
    b: Binder,
    t: _Transposed,
    kernel: str,
    x: Operand,
    w: Operand | None,
    bias: Operand | None,
    y: Operand,
    groups: int,
) -> None:
    """Append the step that adds overlapping contributions to a result. x: the image, or its spread products."""
    g = t.reversed
    b.emit(
        steps.TransposedSums(
            x=x,
            w=w,
            bias=bias,
            y=y,
            images=g.images,
            height=g.height,
            width=g.width,
            channels=y.shape[-1],
            y_height=g.out[0],
            y_width=g.out[1],
            kernel_h=g.kernel[0],
            kernel_w=g.kernel[1],
            stride_h=t.strides[0],
            stride_w=t.strides[1],
            dilation_h=t.dilations[0],
            dilation_w=t.dilations[1],
            top=t.begins[0],
            left=t.begins[1],
            groups=groups,
            **finish_of(b),
        ),
        kernel=kernel,
    )


def _spread(b: Binder, t: _Transposed, x: Operand, w: Operand, group: int, bias: Operand | None, out: Operand) -> None:
    """Multiply every pixel by every tap, then sum the contributions to each result."""
    filters = spread_filters(w.shape, group)
    p = Product(prod(x.shape[:-1]), filters.columns, filters.inner)
    p.out_row, p.column_step = group * filters.columns, 4 * x.shape[-1]
    p.groups, p.group_a, p.group_w = group, 4 * p.depth, 4 * packed_size(p.depth, p.columns, b.lanes)
    spreads = b.scratch("float32", (p.rows, p.out_row))
    packed = pack_filters(b, w, filters, tile_vectors(p.columns, b.target.shape))
    emit_product(b, p, x, packed, None, None, spreads, activate=False)
    _emit_sums(b, t, "transposed.f32_gather", spreads, None, bias, out, group)


def _spread_depthwise(b: Binder, t: _Transposed, x: Operand, w: Operand, bias: Operand | None, out: Operand) -> None:
    """Compute every result as the sum of the pixels that contribute to it, each times its tap."""
    channels = w.shape[0]
    packed = pack_filters(b, w, depthwise_filters(channels, t.reversed.kernel), -(-channels // b.lanes))
    _emit_sums(b, t, "transposed.f32_depthwise", x, packed, bias, out, 1)
