"""Look-ups: the gradient of each element is added at the position it was read from."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, refuse, rule
from converter.ir.grad.tape import Term

__all__: list[str] = []

_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


@rule("Gather")
def _gather(n: At) -> Gradients:
    """With the gathered axis in front, rows are added at their indices."""
    x, indices, axis = n.input(0), n.input(1).cast(_INT64), n.axis(0)
    depth = indices.rank
    perm = [axis, *(i for i in range(x.rank) if i != axis)]
    front = [*range(axis, axis + depth), *(i for i in range(n.g.rank) if not axis <= i < axis + depth)]
    zeros = n.tape.zeros_like(x).transpose(perm)
    added = zeros.op("ScatterND", indices.unsqueeze(depth), n.g.transpose(front), reduction="add")
    return [added.transpose([int(i) for i in np.argsort(perm)]), None]


@rule("GatherElements")
def _gather_elements(n: At) -> Gradients:
    axis = n.axis(0)
    if _one_each(n.x, n.input(1), axis):
        return [_placed(n.x, n.input(1), n.g, axis), None]
    return [_scattered(n, n.input(1), n.g, axis), None]


_EXACT = 1 << 24
"""Whole numbers up to this are exact in float32."""


def _one_each(x: Term, indices: Term, axis: int) -> bool:
    """Whether one element of each row along the axis is read, of rows of known length."""
    size, rest = x.shape[axis], [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    return isinstance(size, int) and size < _EXACT and None not in rest and list(indices.shape) == rest


def _placed(x: Term, indices: Term, g: Term, axis: int) -> Term:
    """g at the indices, 0 elsewhere: by comparison, which is part of a chain of elementwise operators."""
    size, numbers = x.size(axis), indices.cast(_FLOAT)
    places = np.arange(size, dtype=np.float32).reshape([size, *[1] * (x.rank - axis - 1)])
    from_front = x.tape.where(numbers < 0.0, numbers + float(size), numbers)
    return x.tape.where(from_front.equals(x.tape.const(places)), g, 0.0)


def _scattered(n: At, indices: Term, g: Term, axis: int) -> Term:
    """Zeros like the first operand, g added at the indices along the axis."""
    return n.tape.zeros_like(n.x).op("ScatterElements", indices, g, axis=axis, reduction="add")


@rule("TopK")
def _top(n: At) -> Gradients:
    return [_scattered(n, n.output(1, _INT64, n.y.shape), n.g, n.attr("axis", -1)), None]


@refuse("GatherND")
def _batched(node: ir.Node) -> str:
    return "batch_dims" if build.attr(node, "batch_dims", 0) else ""


@rule("GatherND")
def _gather_nd(n: At) -> Gradients:
    return [n.tape.zeros_like(n.x).op("ScatterND", n.input(1), n.g, reduction="add"), None]


@refuse("ScatterElements", "ScatterND")
def _reducing(node: ir.Node) -> str:
    reduction = build.attr(node, "reduction", "none")
    return "" if reduction in ("none", "add") else f"reduction {reduction}"


@rule("ScatterElements")
def _scatter_elements(n: At) -> Gradients:
    """Overwritten elements have no gradient; written elements have the gradient at their position."""
    indices, updates, axis = n.input(1), n.input(2), n.attr("axis", 0)
    kept = n.g
    if n.attr("reduction", "none") == "none":
        kept = n.g.op("ScatterElements", indices, n.tape.zeros_like(updates), axis=axis)
    return [kept, None, n.g.op("GatherElements", indices, axis=axis)]


@rule("ScatterND")
def _scatter_nd(n: At) -> Gradients:
    indices, updates, kept = n.input(1), n.input(2), n.g
    if n.attr("reduction", "none") == "none":
        kept = n.g.op("ScatterND", indices, n.tape.zeros_like(updates))
    return [kept, None, n.g.op("GatherND", indices)]
