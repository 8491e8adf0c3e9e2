"""Windows that slide over images: sizes, strides and padding from the options convolutions and pools share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from converter.frontends.tflite import schema
from converter.frontends.tflite.op import Op
from converter.ir import build

__all__ = ["Window", "image_sizes", "images", "padding", "positive", "same", "window"]


class Window(NamedTuple):
    """Sizes along the image axes, outermost first."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def positive(op: Op, name: str, default: int = 1) -> int:
    """An option that must be at least 1."""
    value = int(op.option(name, default))
    if value < 1:
        op.fail(f"expected {name} of at least 1, got {value}")
    return value


def window(op: Op, kernel: Sequence[int]) -> Window:
    """The window of `kernel` sizes with the operator's strides and dilations."""
    axes = "dhw"[-len(kernel) :]
    if min(kernel) < 1:
        op.fail(f"expected a window of at least 1 in every direction, got {list(kernel)}")
    return Window(
        tuple(kernel),
        tuple(positive(op, f"stride_{a}") for a in axes),
        tuple(positive(op, f"dilation_{a}_factor") for a in axes),
    )


def same(op: Op) -> bool:
    """Whether padding is SAME; fails for anything but SAME and VALID."""
    number = op.option("padding", 0)
    if not 0 <= number < len(schema.PADDINGS):
        op.fail(f"expected padding SAME (0) or VALID (1), got {number}")
    return bool(schema.PADDINGS[number] == "SAME")


def images(op: Op, x: ir.Value, rank: int = 4) -> ir.Value:
    """`x`, which must be a batch of images, channels last."""
    found = build.rank(x)
    if found != rank:
        got = "a tensor of unknown rank" if found is None else f"shape {list(build.dims(x) or ())}"
        op.fail(f"expected images of {rank} dimensions, got {got}")
    return x


def image_sizes(x: ir.Value) -> tuple[int, ...] | None:
    """The sizes along the image axes (between batch and channels), when all are known."""
    found = (build.dims(x) or (None,) * 3)[1:-1]
    return tuple(d for d in found if isinstance(d, int)) if all(isinstance(d, int) for d in found) else None


def padding(op: Op, sizes: Sequence[int] | None, win: Window) -> dict[str, Any]:
    """Attributes for the operator's padding: SAME is ceil(size / stride) windows, the odd border element at the end.

    Explicit pads where the image's `sizes` are known, otherwise ONNX's auto_pad, which computes the same.
    """
    if not same(op):
        return {}
    if sizes is None:
        return {"auto_pad": "SAME_UPPER"}
    totals = [
        max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        for size, kernel, stride, dilation in zip(sizes, *win, strict=True)
    ]
    pads = [total // 2 for total in totals] + [total - total // 2 for total in totals]
    return {"pads": pads} if any(pads) else {}
