"""QLinearConvTranspose: a product of bytes multiplies every pixel by its taps, a second step sums and rescales.

Native in channels-last layout, 1-D and 2-D, for 8-bit images. The weights of groups become one matrix whose other
elements are the weights' zero points, which add nothing to the sums.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lite_runtime import steps
from lite_runtime._blake import blake2b
from lite_runtime.graph import Array, Node
from lite_runtime.ops._checks import one_of
from lite_runtime.ops.convolution import flat, inference_of, transposed_sizes
from lite_runtime.ops.qlinear import INTEGERS, images_of, scaled
from lite_runtime.ops.reduce import BYTES
from lite_runtime.ops.registry import BINDS, INFERS, Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.reference.qlinear import bounds_of

__all__: list[str] = []

MOST_GROUPED = 1 << 22
"""Greatest number of elements of the matrix that the weights of groups become."""


@infer("QLinearConvTranspose")
def _infer(n: Inference) -> list[Spec]:
    x, w = one_of(n, 0, INTEGERS), one_of(n, 3, ("int8", "uint8"))
    images = [Spec("float32", s.shape) for s in (x, w)]
    (result,) = INFERS["ConvTranspose"](Inference(n.node, images, (None, None)))
    columns = w.shape[1] * n.attr("group", 1)
    return [Spec(scaled(n, images_of(x.shape), ((columns,),), columns, INTEGERS), result.shape)]


class _AsProduct:
    """The binder of the inner product: MatMulInteger on internal operands, into an internal buffer."""

    def __init__(self, b: Binder, inputs: tuple[Operand, ...], out: Operand) -> None:
        self._outer = b
        self.node = Node("MatMulInteger", ("",) * len(inputs), ("",), {}, b.node.name)
        self.inputs, self.outputs = inputs, (out,)

    def attr(self, name: str, default: Any = None) -> Any:
        return default

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)


def _known(b: Binder, i: int) -> Array | None:
    """The contents of input `i`, None if it is left out; NoKernel if it is known only at run time."""
    operand = b.inputs[i] if i < len(b.inputs) else None
    if operand is not None and operand.value is None:
        raise NoKernel(f"input {i} is computed")
    return None if operand is None else operand.value


@bind("QLinearConvTranspose")
def _bind(b: Binder) -> None:
    x, x_zero, w, out = b.inputs[0], b.inputs[2], b.inputs[3], b.outputs[0]
    assert x is not None and x_zero is not None and w is not None and out is not None
    x_scale, w_scale, w_zero, y_scale, y_zero, bias = (_known(b, i) for i in (1, 4, 5, 6, 7, 8))
    assert x_scale is not None and w_scale is not None and w_zero is not None
    if b.attr("layout", "NCHW") != "NHWC" or len(x.shape) > 4 or w.value is None or w.size == 0:
        raise NoKernel("a transposed convolution that is not channels-last, is 3-D, or has computed weights")
    if x.dtype not in BYTES or out.dtype not in (*BYTES, "float32") or x_scale.size != 1:
        raise NoKernel("wider integers, or a scale for each image")
    group: int = b.attr("group", 1)
    if group > 1 and group * w.size > MOST_GROUPED:
        raise NoKernel("groups whose weights are too large as one matrix")
    sizes, window = transposed_sizes(inference_of(b), x.shape[1:-1], w.shape[2:])
    taps, columns, pixels = prod(w.shape[2:]), w.shape[1] * group, prod(x.shape[:-1])
    each = np.broadcast_to(w_zero.reshape(-1), (columns,))

    def arrange(value: Array) -> Array:  # (channels, tap, column)
        found = value.reshape(len(value), -1, taps).swapaxes(1, 2)
        if group == 1:
            return np.ascontiguousarray(found).reshape(len(value), -1)
        whole = np.tile(each, (len(value), taps, 1))
        for rows, own in zip(np.split(np.arange(len(value)), group), np.split(np.arange(columns), group), strict=True):
            whole[rows[0] : rows[-1] + 1, :, own[0] : own[-1] + 1] = found[rows]
        return whole.reshape(len(value), -1)

    spreads = b.scratch("int32", (pixels, taps * columns))
    order = "spread" if group == 1 else f"spread {group} {blake2b(each.tobytes(), digest_size=8).hexdigest()}"
    product = (x.at(0, (pixels, x.shape[-1])), b.packed(w, order, arrange), x_zero, b.constant(np.tile(each, taps)))
    BINDS["MatMulInteger"](_AsProduct(b, product, spreads))
    scale = np.float32(x_scale.reshape(())) * np.broadcast_to(w_scale.reshape(-1), (columns,)).astype(np.float32)
    whole, real = (None, bias) if out.dtype == "float32" else (bias, None)
    zero, low, high = 0, *_real_bounds(b)
    if y_scale is not None and y_zero is not None:
        step, zero = np.float32(y_scale.reshape(())), int(y_zero.reshape(()))
        with np.errstate(all="ignore"):
            scale = scale / step
        ends = {"activation_min": low, "activation_max": high} if b.attr("activation", "") == "Clip" else {}
        least, most = bounds_of(np.dtype(out.dtype), float(step), zero, b.attr("activation", ""), **ends)
        low, high = float(least - zero), float(most - zero)
    (high_in, wide_in), kernel = flat(x.shape[1:-1], 1), flat(window.kernel, 1)
    tap_steps = (4 * columns * kernel[1], 4 * columns)
    pixel = 4 * columns * taps
    tables, strides = [], []
    for axis, (size, line) in enumerate(((high_in, pixel * wide_in), (wide_in, pixel))):
        table, stride = _sources(
            flat(sizes, 1)[axis],
            size,
            kernel[axis],
            flat(window.strides, 1)[axis],
            flat(window.dilations, 1)[axis],
            flat(window.begins, 0)[axis],
            tap_steps[axis],
            line,
        )
        tables.append(b.constant(table))
        strides.append(stride)
    y_height, y_width = flat(sizes, 1)
    b.emit(
        steps.SpreadSums(
            spreads=spreads,
            rows=tables[0],
            columns=tables[1],
            bias=b.constant(np.zeros(columns, np.int32) if whole is None else whole),
            scale=b.constant(np.ascontiguousarray(scale, np.float32)),
            shift=b.constant(np.full(columns, -0.0, np.float32) if real is None else real),
            y=out,
            images=x.shape[0],
            y_height=y_height,
            y_width=y_width,
            channels=columns,
            image_bytes=pixel * high_in * wide_in,
            down=strides[0],
            across=strides[1],
            zero=zero,
            low=low,
            high=high,
        ),
        kernel=f"qconv_transpose.{out.dtype}_gather",
    )


def _real_bounds(b: Binder) -> tuple[float, float]:
    """The activation's bounds as real numbers."""
    match b.attr("activation", ""):
        case "":
            return -np.inf, np.inf
        case "Relu":
            return 0.0, np.inf
        case "Clip":
            low, high = float(b.attr("activation_min", -np.inf)), float(b.attr("activation_max", np.inf))
            if not low <= high:
                raise NoKernel(f"a clamp to [{low}, {high}]")
            return low, high
        case name:
            raise NoKernel(f"activation {name}")


def _sources(
    count: int, size: int, kernel: int, stride: int, dilation: int, begin: int, tap: int, line: int
) -> tuple[Array, int]:
    """The contributions to each of `count` results along an axis: (byte offset of the first source, their number), and
    the byte distance between sources. `tap`, `line`: byte distances between taps and between pixels."""
    i = np.arange(kernel)
    from_start = np.arange(count)[:, None] + begin - i * dilation
    pixel = from_start // stride
    meets = (from_start % stride == 0) & (pixel >= 0) & (pixel < size)
    first = meets.argmax(1)
    offsets = pixel[np.arange(count), first] * line + first * tap
    found = meets.sum(1)
    apart = np.gcd(stride, dilation)  # contributing taps are stride / apart apart, their pixels dilation / apart
    table = np.stack([np.where(found > 0, offsets, 0), found], 1).astype(np.int64)
    return table, int(stride // apart * tap - dilation // apart * line)
