"""Convolutions and their transposes: each is the other's gradient."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import DOMAIN
from converter.ir.grad.rules import At, Gradients, refuse, rule
from converter.ir.grad.tape import Term
from lite_runtime.reference.windows import resolve

__all__ = ["padded_by_size", "sizes_known", "window_attrs"]

_NEEDED = "give input_shapes"


def sizes_known(node: ir.Node, value: int = 0) -> bool:
    """Whether the spatial sizes of an operand are numbers."""
    shape = build.dims(node.inputs[value])
    return shape is not None and all(isinstance(d, int) for d in shape[2:])


def padded_by_size(node: ir.Node) -> bool:
    """Whether paddings follow from the image's sizes."""
    return build.attr(node, "auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def window_attrs(n: At, kernel: tuple[int, ...]) -> dict[str, Any]:
    """The node's window as attributes, its paddings as numbers."""
    rank = len(kernel)
    strides, dilations = (list(n.attr(name, None) or (1,) * rank) for name in ("strides", "dilations"))
    pads = list(n.attr("pads", None) or (0,) * (2 * rank))
    if padded_by_size(n.node):
        space = [n.x.size(i) for i in range(2, n.x.rank)]
        window = resolve(space, kernel, strides=strides, dilations=dilations, auto_pad=n.attr("auto_pad", ""))
        pads = [*window.begin, *window.end]
    elif n.attr("auto_pad", "NOTSET") == "VALID":
        pads = [0] * (2 * rank)
    return {"kernel_shape": list(kernel), "strides": strides, "dilations": dilations, "pads": pads}


def _kernel(w: Term) -> tuple[int, ...]:
    return tuple(w.size(i) for i in range(2, w.rank))


def _bias(n: At) -> Term | None:
    """The sum over images and positions."""
    return n.g.sum([0, *range(2, n.g.rank)]) if n.wants(2) else None


# -- Conv -------------------------------------------------------------------------------------------------------------


@refuse("Conv")
def _conv_refusal(node: ir.Node) -> str:
    if not sizes_known(node, 1) or (x := build.dims(node.inputs[0])) is None:
        return f"the shapes of image and weights are not known: {_NEEDED}"
    strided = any(s != 1 for s in build.get_attr(node, "strides") or ())
    if (strided or padded_by_size(node)) and not sizes_known(node):
        return f"its image is {list(x)}, and its gradient needs the sizes: {_NEEDED}"
    return "a residual operand" if len(node.inputs) > 3 else ""


@rule("Conv")
def _conv(n: At) -> Gradients:
    x, w = n.input(0), n.input(1)
    attrs = {**window_attrs(n, _kernel(w)), "group": n.attr("group", 1)}
    dw = x.op("ConvWeightGrad", n.g, domain=DOMAIN, **attrs) if n.wants(1) else None
    return [_spread(n.g, w, x, attrs) if n.wants(0) else None, dw, _bias(n)]


def _spread(g: Term, w: Term, like: Term, attrs: dict[str, Any]) -> Term:
    """The gradient of a Conv's image `like`; columns at its end that no window covered count as padding of the
    result."""
    unmet = [0] * (like.rank - 2)
    for i, (k, s, d) in enumerate(zip(attrs["kernel_shape"], attrs["strides"], attrs["dilations"], strict=True)):
        if s != 1:
            before, behind = attrs["pads"][i], attrs["pads"][i + len(unmet)]
            unmet[i] = (like.size(i + 2) + before + behind - ((k - 1) * d + 1)) % s
    return g.tape.op("ConvTranspose", g, w, **attrs, output_padding=unmet, shape=like.shape)


@rule("ConvWeightGrad")
def _conv_weight_grad(n: At) -> Gradients:
    """It is linear in the image, as ConvTranspose is in its operand, and in the result's gradient, as Conv is."""
    x, dy, g = n.input(0), n.input(1), n.g
    attrs = {**window_attrs(n, tuple(n.attr("kernel_shape", ()))), "group": n.attr("group", 1)}
    return [_spread(dy, g, x, attrs) if n.wants(0) else None, x.op("Conv", g, **attrs) if n.wants(1) else None]


# -- ConvTranspose ----------------------------------------------------------------------------------------------------


def _cut_to_size(node: ir.Node) -> bool:
    """Whether the cropping of the full result depends on the result's sizes."""
    return padded_by_size(node) or bool(build.get_attr(node, "output_shape"))


@refuse("ConvTranspose")
def _conv_transpose_refusal(node: ir.Node) -> str:
    if not sizes_known(node, 1) or (x := build.dims(node.inputs[0])) is None:
        return f"the shapes of image and weights are not known: {_NEEDED}"
    if _cut_to_size(node) and not sizes_known(node):
        return f"its image is {list(x)}, and its gradient needs the sizes: {_NEEDED}"
    return ""


@rule("ConvTranspose")
def _conv_transpose(n: At) -> Gradients:
    """The gradient by the image is a Conv with the same weights; the gradient by the weights is that of a convolution
    with image and gradient exchanged."""
    x, w, kernel = n.input(0), n.input(1), _kernel(n.input(1))
    strides, dilations = (list(n.attr(name, None) or [1] * len(kernel)) for name in ("strides", "dilations"))
    window = {"kernel_shape": list(kernel), "strides": strides, "dilations": dilations}
    attrs = {**window, "pads": _cut(n, kernel, strides, dilations), "group": n.attr("group", 1)}
    dx = n.tape.op("Conv", n.g, w, **attrs, shape=x.shape) if n.wants(0) else None
    dw = n.g.op("ConvWeightGrad", x, domain=DOMAIN, **attrs) if n.wants(1) else None
    return [dx, dw, _bias(n)]


def _cut(n: At, kernel: tuple[int, ...], strides: list[int], dilations: list[int]) -> list[int]:
    """The elements cropped from the full result before and after, as pads of a Conv over the rest. No window of that
    Conv covers the columns added at the end (output_padding)."""
    rank = len(kernel)
    extra = n.attr("output_padding", None) or [0] * rank
    pads = list(n.attr("pads", None) or [0] * (2 * rank))
    if n.attr("auto_pad", "NOTSET") == "VALID":
        pads = [0] * (2 * rank)
    if not _cut_to_size(n.node):
        return [*pads[:rank], *(max(0, e - more) for e, more in zip(pads[rank:], extra, strict=True))]
    begin, end = [], []
    for i in range(rank):
        size, out = n.x.size(i + 2), n.y.size(i + 2)
        reach = (size - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
        total = max(0, reach + extra[i] - out)
        upper = n.attr("auto_pad", "NOTSET") == "SAME_UPPER"  # otherwise the odd one goes to the front
        begin.append(total // 2 if upper else total - total // 2)
        end.append(max(0, reach - begin[-1] - out))
    return [*begin, *end]
