"""Pools: sliding windows over one to three spatial axes, and global pools.

Windows are resolved by the same function that the references use, so that paddings and sizes always agree.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypedDict

from lite_runtime import steps
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.ops._axes import FLOATS, attr_int, expect
from lite_runtime.ops.reduce import BYTES, operands, reduce_to, reduction, result
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.reference.windows import Window, resolve
from lite_runtime.steps.declaration import Three

__all__ = ["channels_at", "infer_plane", "infer_window", "spatial", "window_numbers"]

_SPAN, _SMALL_SPAN = 2048, 256
"""Greatest extent of a row of windows for which NCHW has a kernel; SPAN in kernels/pool.py."""
_LAYOUTS = ("NCHW", "NHWC")
_FAR = 1 << 31
"""Limit of a native window's sizes, so that no product of positions overflows."""


def channels_at(n: Inference | Binder) -> str:
    """The node's `layout`, "NCHW" by default; raises ShapeError for any but NCHW and NHWC (when inferring)."""
    layout = n.attr("layout", "NCHW")
    if layout not in _LAYOUTS and isinstance(n, Inference):
        raise n.error(f"expected layout NCHW or NHWC, got {layout!r}")
    return str(layout)


def spatial(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The sizes between batch and channels, or after them."""
    return shape[2:] if layout == "NCHW" else shape[1:-1]


def _with_space(shape: tuple[int, ...], layout: str, space: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], *space) if layout == "NCHW" else (shape[0], *space, shape[-1])


def _ints(n: Inference, name: str, length: int, least: int) -> tuple[int, ...] | None:
    """An optional attribute of `length` integers of at least `least`."""
    value = n.attr(name)
    if value is None or len(value) == 0:
        return None
    if len(value) != length or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise n.error(f"expected {name} of {length} integers, got {value!r}")
    if min(value) < least:
        raise n.error(f"expected {name} of at least {least}, got {value!r}")
    return tuple(value)


def infer_window(n: Inference, spec: Spec) -> tuple[int, ...]:
    """The result shape of a pool node for an image of type `spec`; ShapeError for windows that do not fit."""
    return _with_space(spec.shape, channels_at(n), _window(n, spec).out)


def infer_plane(n: Inference, spec: Spec) -> tuple[int, ...]:
    """The shape of `spec` with spatial axes of size 1."""
    rank = len(spec.shape) - 2
    if rank < 0:
        raise n.error(f"expected batch and channels, got shape {list(spec.shape)}")
    return _with_space(spec.shape, channels_at(n), (1,) * rank)


def _window(n: Inference, spec: Spec) -> Window:
    rank = len(spec.shape) - 2
    if rank < 1:
        raise n.error(f"expected batch, channels and at least one spatial axis, got shape {list(spec.shape)}")
    kernel = _ints(n, "kernel_shape", rank, 1)
    if kernel is None:
        raise n.error("expected attribute kernel_shape")
    space = spatial(spec.shape, channels_at(n))
    try:
        return resolve(
            space,
            kernel,
            strides=_ints(n, "strides", rank, 1),
            dilations=_ints(n, "dilations", rank, 1),
            pads=_ints(n, "pads", 2 * rank, 0),
            auto_pad=n.attr("auto_pad", "NOTSET"),
            ceil_mode=attr_int(n, "ceil_mode", 0),
        )
    except MsedgeError as error:
        raise n.error(str(error)) from None


@infer("MaxPool")
def _infer_max_pool(n: Inference) -> tuple[Spec, ...]:
    spec = expect(n, 0, FLOATS | BYTES)
    attr_int(n, "storage_order", 0, (0, 1))
    shape = infer_window(n, spec)
    return Spec(spec.dtype, shape), Spec("int64", shape)


@infer("AveragePool", "LpPool")
def _infer_float_pool(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, FLOATS)
    attr_int(n, "count_include_pad", 0)
    if attr_int(n, "p", 2) < 1:
        raise n.error(f"expected p of at least 1, got {n.attr('p')}")
    return (Spec(spec.dtype, infer_window(n, spec)),)


@infer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _infer_global(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, FLOATS | BYTES if n.node.op == "GlobalMaxPool" else FLOATS)
    if attr_int(n, "p", 2) < 1:
        raise n.error(f"expected p of at least 1, got {n.attr('p')}")
    return (Spec(spec.dtype, infer_plane(n, spec)),)


@infer("MaxUnpool")
def _infer_max_unpool(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, FLOATS)
    places = expect(n, 1, {"int64"})
    rank = len(spec.shape) - 2
    if rank < 1 or places.shape != spec.shape:
        raise n.error(f"expected indices of the input's shape {list(spec.shape)}, got {list(places.shape)}")
    if n.has(2):
        shape = n.ints(2)
        if len(shape) != rank + 2 or min(shape) < 0:
            raise n.error(f"expected output_shape of {rank + 2} sizes, got {list(shape)}")
        return (Spec(spec.dtype, shape),)
    kernel = _ints(n, "kernel_shape", rank, 1)
    if kernel is None:
        raise n.error("expected attribute kernel_shape")
    strides = _ints(n, "strides", rank, 1) or (1,) * rank
    pads = _ints(n, "pads", 2 * rank, 0) or (0,) * (2 * rank)
    zipped = zip(spec.shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    space = tuple((size - 1) * s + k - before - after for size, s, k, before, after in zipped)
    if min(space) < 0:
        raise n.error(f"expected an output of sizes above 0, got {list(space)}")
    return (Spec(spec.dtype, (*spec.shape[:2], *space)),)


if TYPE_CHECKING:

    class WindowWords(TypedDict):
        """A pool's window as steps declare it: `steps.Window`."""

        batch: int
        channels: int
        size: Three
        out: Three
        window: Three
        stride: Three
        dilation: Three
        pad: Three
        counted: Three
        counts_padding: int

else:
    WindowWords = dict


class WindowNumbers(NamedTuple):
    """A pool's window in the form that its step takes."""

    words: WindowWords
    reach: int
    """Elements from the first to the last that a row of windows covers."""
    taps: int


def window_numbers(b: Binder, x: Operand) -> WindowNumbers:
    """The window of a pool node over `x`; NoKernel for more than three spatial axes and for sizes that overflow."""
    layout = channels_at(b)
    space = spatial(x.shape, layout)
    if len(space) > 3:
        raise NoKernel("more than three spatial axes")
    window = resolve(
        space,
        b.attr("kernel_shape"),
        strides=b.attr("strides"),
        dilations=b.attr("dilations"),
        pads=b.attr("pads"),
        auto_pad=b.attr("auto_pad", "NOTSET"),
        ceil_mode=b.attr("ceil_mode", 0),
    )
    include = int(bool(b.attr("count_include_pad", 0)))
    counted = tuple(size + end for size, end in zip(space, window.end, strict=True)) if include else space
    words = WindowWords(
        batch=x.shape[0],
        channels=x.shape[1] if layout == "NCHW" else x.shape[-1],
        size=_three(space, 1),
        out=_three(window.out, 1),
        window=_three(window.kernel, 1),
        stride=_three(window.strides, 1),
        dilation=_three(window.dilations, 1),
        pad=_three(window.begin, 0),
        counted=_three(counted, 1),
        counts_padding=include,
    )
    numbers = (space, window.out, window.kernel, window.strides, window.dilations, window.begin, counted)
    sizes = zip(window.kernel, window.dilations, window.out, window.strides, strict=True)
    reach = [(k - 1) * d + (o - 1) * s + 1 for k, d, o, s in sizes]
    taps = prod(window.kernel)
    if max(1, *(n for row in numbers for n in row), *reach) >= _FAR or taps >= _FAR:
        raise NoKernel("a window too large")
    return WindowNumbers(words, reach[-1], taps)


def _three(sizes: tuple[int, ...], neutral: int) -> Three:
    """Sizes of one to three spatial axes extended to three."""
    depth, height, width = (*(neutral,) * (3 - len(sizes)), *sizes)
    return depth, height, width


_KERNELS = {"MaxPool": "f32_max", "AveragePool": "f32_mean"}


@bind(*_KERNELS)
def _bind_pool(b: Binder) -> None:
    if len(b.outputs) > 1 and b.outputs[1] is not None:
        raise NoKernel("indices of the maxima")
    layout, y = channels_at(b), result(b)
    if y.dtype in BYTES and layout == "NHWC":
        x = b.inputs[0]
        assert x is not None
        b.emit(steps.ByteMax(x=x, y=y, **window_numbers(b, x).words), kernel=f"qpool.{y.dtype}_max__nhwc")
        return
    (x,) = operands(b, 0)
    window = window_numbers(b, x)
    if layout == "NCHW" and window.reach > (_SMALL_SPAN if b.target.shape.small else _SPAN):
        raise NoKernel("rows too long for the stack")
    b.emit(steps.Pool(x=x, y=y, **window.words), kernel=f"pool.{_KERNELS[b.node.op]}__{layout.lower()}")


_GLOBAL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_NORMS = {1: "ReduceL1", 2: "ReduceL2"}


@bind("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _bind_global(b: Binder) -> None:
    name = _GLOBAL.get(b.node.op) or _NORMS.get(b.attr("p", 2))
    if name is None:
        raise NoKernel("a norm beyond L2")
    x = b.inputs[0]
    assert x is not None
    rank = len(x.shape)
    axes = range(2, rank) if channels_at(b) == "NCHW" else range(1, rank - 1)
    reduce_to(b, x, result(b), tuple(axes), reduction(name, x.dtype))
