"""Pools over windows and whole planes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from converter.ir.build import DOMAIN
from converter.ir.grad.convolution import padded_by_size, sizes_known, window_attrs
from converter.ir.grad.rules import At, Gradients, refuse, rule
from converter.ir.grad.tape import Term

__all__: list[str] = []

_KEPT = ("ceil_mode", "count_include_pad")


@refuse("MaxPool", "AveragePool")
def _windowed(node: ir.Node) -> str:
    known = sizes_known(node) or not padded_by_size(node)
    return "" if known else "its padding depends on sizes known only at run time: give input_shapes"


@rule("MaxPool", "AveragePool")
def _pool(n: At) -> Gradients:
    attrs = window_attrs(n, tuple(n.attr("kernel_shape", ())))
    kept = {name: n.attr(name, 0) for name in _KEPT if n.attr(name, 0)}
    return [n.x.op(f"{n.node.op_type}Grad", n.g, domain=DOMAIN, **attrs, **kept)]


def _attrs(n: At) -> dict[str, Any]:
    """The window attributes of a gradient operator, with explicit paddings."""
    names = ("kernel_shape", "strides", "dilations", "pads", *_KEPT)
    return {name: n.attr(name, None) for name in names if n.attr(name, None) is not None}


@rule("AveragePoolGrad")
def _average_grad(n: At) -> Gradients:
    """It is linear in the result's gradient, as the pool is in its image."""
    return [None, n.g.op("AveragePool", **_attrs(n))]


@rule("MaxPoolGrad")
def _max_grad(n: At) -> Gradients:
    """The image decides which positions are selected; they are the same for any gradient."""
    _, places = n.tape.ops("MaxPool", [n.x], 2, **_attrs(n))
    picked = n.g.op("Reshape", n.tape.ints([-1])).op("Gather", places, axis=0)
    return [None, picked]


def _plane(x: Term) -> list[int]:
    return list(range(2, x.rank))


@rule("GlobalAveragePool")
def _global_average(n: At) -> Gradients:
    return [(n.g / n.x.count(_plane(n.x))).expand_like(n.x)]


@rule("GlobalMaxPool")
def _global_max(n: At) -> Gradients:
    """Positions with equal maxima share the gradient."""
    winners = n.x.equals(n.y)
    share = n.g / winners.cast(n.g.dtype).sum(_plane(n.x), keepdims=True)
    return [n.tape.where(winners, share, 0.0)]
