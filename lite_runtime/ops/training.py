"""Kernels for gradients. Result types are inferred in `gradients`."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lite_runtime import steps
from lite_runtime.ops import chain as _binds_what_is_elementwise  # noqa: F401
from lite_runtime.ops._geometry import Geometry, flat
from lite_runtime.ops._outer import emit_outer, emit_transposed_product
from lite_runtime.ops.convolution import inference_of, window_of, with_border
from lite_runtime.ops.pool import channels_at, window_numbers
from lite_runtime.ops.reduce import emit_sum, operands, result
from lite_runtime.ops.registry import BINDS, Binder, NoKernel, Operand, bind

__all__: list[str] = []

FEW = 8
"""Number of channels below which whole lines of a window are multiplied at once: register tiles of 3 rows would leave
most of what they load unused (3 to 16 channels, 32 x 32, 32 images: 570 us by single taps, 250 by lines)."""
CHUNK = 4096
"""Elements of the rows that are summed at a time: they are read twice, the second time from the first-level cache."""


@bind("ConvWeightGrad")
def _bind_conv_weight(b: Binder) -> None:
    x, dy = operands(b, 0, 1)
    dw, group = result(b), b.attr("group", 1)
    if b.attr("layout", "NCHW") != "NHWC" or len(x.shape) > 4:
        raise NoKernel("a convolution that is not channels-last or is 3-D")
    if x.size == 0 or dy.size == 0:
        raise NoKernel("an empty sum")
    rows, columns = dw.shape[1], dw.shape[0] // group
    window = window_of(inference_of(b), x.shape[1:-1], tuple(b.attr("kernel_shape")))
    g = Geometry(
        images=x.shape[0],
        height=flat(x.shape[1:-1], 1)[0],
        width=flat(x.shape[1:-1], 1)[1],
        channels=x.shape[-1],
        out=flat(dy.shape[1:-1], 1),
        kernel=flat(window.kernel, 1),
        strides=flat(window.strides, 1),
        dilations=flat(window.dilations, 1),
        begins=flat(window.begins, 0),
    )
    taps = prod(g.kernel)
    if taps == group == 1 and g.strides == (1, 1) and g.begins == (0, 0) and g.out == (g.height, g.width):
        emit_transposed_product(b, dy, x, dw, (prod(x.shape[:-1]), columns, rows), (1, 1, 1))
        return
    sums = b.scratch("float32", (group, taps, rows, columns))
    if group == 1 and rows < FEW and g.kernel[1] > 1 and g.dilations[1] == 1:
        _lines_of_taps(b, g, x, dy, sums, rows, columns)
    else:
        emit_outer(b, g, x, dy, sums, group, (rows, columns))
    if rows == columns == 1:
        b.emit(steps.Unpack(x=sums, y=dw, groups=1, taps=taps, rows=1, columns=group))
    else:
        b.emit(steps.Unpack(x=sums, y=dw, groups=group, taps=taps, rows=rows, columns=columns))


def _lines_of_taps(b: Binder, g: Geometry, x: Operand, dy: Operand, sums: Operand, rows: int, columns: int) -> None:
    """A line of a window's taps is contiguous in an image with a border: one tap with that many more channels."""
    image, high, wide = with_border(b, x, g)
    tall = replace(g, height=high, width=wide, kernel=(g.kernel[0], 1), begins=(0, 0))
    emit_outer(b, tall, image, dy, sums, 1, (g.kernel[1] * rows, columns))


_POOLS = {"MaxPoolGrad": "f32_max", "AveragePoolGrad": "f32_mean"}


@bind(*_POOLS)
def _bind_pool(b: Binder) -> None:
    x, dy = operands(b, 0, 1)
    if channels_at(b) != "NHWC":
        raise NoKernel("a pool that is not channels-last")
    step = steps.PoolGrad(x=x, dy=dy, dx=result(b), **window_numbers(b, x).words)
    b.emit(step, kernel=f"poolgrad.{_POOLS[b.node.op]}__nhwc")


def _rows(b: Binder, x: Operand) -> tuple[int, int, int]:
    """Rows, channels and rows per chunk of a channels-last tensor."""
    if channels_at(b) != "NHWC" and len(x.shape) != 2:
        raise NoKernel("a normalisation that is not channels-last")
    if x.size == 0:
        raise NoKernel("moments of an empty tensor")
    return x.size // x.shape[-1], x.shape[-1], max(1, CHUNK // x.shape[-1])


def _bind_batch_norm(b: Binder) -> None:
    if not b.attr("training_mode", 0):
        _elementwise(b)
        return
    x, scale, bias, mean, variance = operands(b, 0, 1, 2, 3, 4)
    rows, channels, chunk = _rows(b, x)
    parts = b.scratch("float32", (-(-rows // chunk), 2, channels))
    results = [*b.outputs, *[None] * 5][1:5]
    saved, rstd = (o or b.scratch("float32", (channels,)) for o in results[2:])
    factor = b.scratch("float32", (channels,))
    b.emit(steps.Moments(x=x, parts=parts, rows=rows, channels=channels, chunk=chunk))
    b.emit(
        steps.Settle(
            parts=parts,
            scale=scale,
            old_mean=mean,
            old_variance=variance,
            new_mean=results[0],
            new_variance=results[1],
            mean=saved,
            rstd=rstd,
            factor=factor,
            rows=rows,
            channels=channels,
            chunk=chunk,
            epsilon=float(b.attr("epsilon", 1e-5)),
            momentum=float(b.attr("momentum", 0.9)),
        )
    )
    if b.outputs[0] is not None:
        b.emit(steps.Apply(x=x, mean=saved, factor=factor, bias=bias, y=b.outputs[0], rows=rows, channels=channels))


_elementwise = BINDS["BatchNormalization"]
BINDS["BatchNormalization"] = _bind_batch_norm  # in inference form it remains a member of chains


@bind("BatchNormalizationGrad")
def _bind_batch_norm_grad(b: Binder) -> None:
    dy, x, scale, mean, rstd = operands(b, 0, 1, 2, 3, 4)
    rows, channels, chunk = _rows(b, x)
    chunks = -(-rows // chunk)
    parts = b.scratch("float32", (chunks, 2, channels))
    dscale, db = (o or b.scratch("float32", (channels,)) for o in [*b.outputs, None, None][1:3])
    factors = b.scratch("float32", (3, channels))
    b.emit(steps.GradSums(dy=dy, x=x, mean=mean, parts=parts, rows=rows, channels=channels, chunk=chunk))
    b.emit(
        steps.GradSettle(
            parts=parts,
            scale=scale,
            rstd=rstd,
            dscale=dscale,
            db=db,
            factors=factors,
            rows=rows,
            channels=channels,
            chunks=chunks,
        )
    )
    if b.outputs[0] is not None:
        dx = b.outputs[0]
        b.emit(steps.GradApply(dy=dy, x=x, mean=mean, factors=factors, dx=dx, rows=rows, channels=channels))
        b.reuse(0, dy)


@bind("LayerNormalizationGrad")
def _bind_layer_norm_grad(b: Binder) -> None:
    dy, x, scale, mean, inverse = operands(b, 0, 1, 2, 3, 4)
    n = scale.size
    if x.size == 0:
        raise NoKernel("moments of an empty tensor")
    rows, chunk = x.size // n, max(1, CHUNK // n)
    chunks = -(-rows // chunk)
    parts = b.scratch("float32", (2, chunks, n))
    dx = b.outputs[0] or b.scratch("float32", x.shape)
    b.emit(
        steps.LayerNormGrad(
            dy=dy, x=x, scale=scale, mean=mean, inverse=inverse, dx=dx, parts=parts, rows=rows, n=n, chunk=chunk
        )
    )
    for i, sums in enumerate([*b.outputs, None, None][1:3]):
        if sums is not None:
            emit_sum(b, parts.at(4 * i * chunks * n, (chunks, n)), sums, chunks, n)
