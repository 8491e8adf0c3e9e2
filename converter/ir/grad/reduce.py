"""Reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, refuse, rule
from converter.ir.grad.tape import Term

__all__ = ["REDUCTIONS"]

REDUCTIONS: Mapping[str, Callable[[Term, Term, Term, list[int]], Term]] = {
    "ReduceSum": lambda g, x, y, axes: g.expand_like(x),
    "ReduceMean": lambda g, x, y, axes: (g / x.count(axes)).expand_like(x),
    "ReduceMax": lambda g, x, y, axes: _shared(g, x, y, axes),
    "ReduceMin": lambda g, x, y, axes: _shared(g, x, y, axes),
    "ReduceL1": lambda g, x, y, axes: g * x.op("Sign"),
    "ReduceL2": lambda g, x, y, axes: g * (x / x.tape.where(y > 0, y, 1.0)),
    "ReduceSumSquare": lambda g, x, y, axes: g * (x * 2.0),
    "ReduceLogSum": lambda g, x, y, axes: (g / y.op("Exp")).expand_like(x),
    "ReduceLogSumExp": lambda g, x, y, axes: g * (x - y).op("Exp"),
    "ReduceProd": lambda g, x, y, axes: g * _others(x, axes),
}
"""Gradients of x from g and y, in which the reduced axes are kept with size 1."""


def _shared(g: Term, x: Term, y: Term, axes: list[int]) -> Term:
    """Elements that are equally extreme share the gradient."""
    winners = x.equals(y)
    return x.tape.where(winners, g / winners.cast(g.dtype).sum(axes, keepdims=True), 0.0)


def _others(x: Term, axes: list[int]) -> Term:
    """For each element, the product of all others it is reduced with; zeros are allowed."""
    perm = [*(i for i in range(x.rank) if i not in axes), *axes]
    moved = x.transpose(perm)
    kept = [0] * (x.rank - len(axes))
    rows = moved.op("Reshape", x.tape.ints([*kept, -1]))
    last = x.tape.ints(rows.rank - 1)
    before, after = (rows.op("CumProd", last, exclusive=1, reverse=r) for r in (0, 1))
    return (before * after).reshape_like(moved).transpose([int(i) for i in np.argsort(perm)])


def _axes(n: At) -> list[int]:
    """The axes a node reduces, counted from the front, in order."""
    given = n.constant(1, "axes").ravel().tolist() if n.has(1) else []
    if not given:
        return [] if n.attr("noop_with_empty_axes", 0) else list(range(n.x.rank))
    return sorted(int(a) % n.x.rank for a in given)


@refuse(*REDUCTIONS)
def _axes_known(node: ir.Node) -> str:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    return "" if axes is None or build.array(axes) is not None else "its axes are not constant"


@rule(*REDUCTIONS)
def _reduction(n: At) -> Gradients:
    axes, g, y = _axes(n), n.g, n.y
    if not n.attr("keepdims", 1):
        g, y = g.unsqueeze(*axes), y.unsqueeze(*axes)
    if n.node.op_type in ("ReduceSum", "ReduceMean") and not axes:
        return [g]
    return [REDUCTIONS[n.node.op_type](g, n.x, y, axes)]


@rule("CumSum")
def _cumulative(n: At) -> Gradients:
    """The running sum in the opposite direction."""
    turned = {"exclusive": n.attr("exclusive", 0), "reverse": 1 - n.attr("reverse", 0)}
    return [n.g.op("CumSum", n.input(1), **turned), None]
