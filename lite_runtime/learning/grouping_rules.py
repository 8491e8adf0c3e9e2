"""Rewrite rules for operators with an operand that differs from row to row: see `lite_runtime.learning.grouping`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from lite_runtime.graph import Node
from lite_runtime.learning.grouping_walk import Rule, Walk
from lite_runtime.operators import epilogues, having, require

__all__ = ["RULES"]


def _operand(node: Node, i: int) -> str:
    return node.inputs[i] if i < len(node.inputs) else ""


def _epilogue(node: Node) -> dict[str, Any]:
    return {name: value for name, value in node.attrs.items() if name.startswith("activation")}


def _activate(g: Walk, node: Node, x: str) -> None:
    """Emit the node's activation as a separate node, which gives the node's result."""
    (output,) = node.outputs
    name = node.attrs.get("activation", "")
    if not name:
        g.emit("Identity", [x], output, last=True)
    elif name == "Clip":
        ends = [f"{output}/personal/{end}" for end in ("min", "max")]
        for end, key, default in zip(ends, ("activation_min", "activation_max"), (-np.inf, np.inf), strict=True):
            g.constants[end] = np.array(node.attrs.get(key, default), np.float32)
        g.emit("Clip", [x, *ends], output, last=True)
    else:
        row = epilogues()[str(name)]
        given = {to: node.attrs[of] for of, to, _ in row.parameters if of in node.attrs}
        g.emit(row.op, [x], output, {**given, **dict(row.form)}, last=True)


def _behind(g: Walk, node: Node, product: str, factor: str, bias: str, residual: str, axis: int) -> None:
    """product * factor + bias + residual, each of which is optional, then the node's activation."""
    (output,) = node.outputs
    y = product
    for op, term in (("Mul", factor), ("Add", bias)):
        if term in g.own:
            y = g.emit(op, [y, g.each(term, output, axis)], output)
        elif term and term not in g.known:
            raise g.refusal(node, f"{term!r} is computed at every run")
        elif term:
            flat, rank = g.known[term].reshape(-1), len(g.specs[output].shape)
            name = f"{output}/personal/{op}"
            g.constants[name] = flat.reshape(*flat.shape, *[1] * (rank - 1 - axis % rank)) if flat.size > 1 else flat
            y = g.emit(op, [y, name], output)
    if residual:
        y = g.emit("Add", [y, residual], output)
    _activate(g, node, y)


def _product(g: Walk, node: Node) -> None:
    x, matrix, bias, residual = (_operand(node, i) for i in range(4))
    if x not in g.lines or matrix in g.lines or bias in g.lines or residual in g.own:
        raise g.refusal(node, "an operand is in a position where rows of a batch are not supported")
    if node.attrs.get("transA", 0) or any(node.attrs.get(key, 1.0) != 1.0 for key in ("alpha", "beta")):
        raise g.refusal(node, "its left operand is transposed, or the product scaled")
    shape, bare = g.specs[matrix].shape, len(g.specs[x].shape) < 2
    if len(shape) != 2 or bare or (residual and g.specs[residual].shape != g.specs[node.outputs[0]].shape):
        raise g.refusal(node, f"it multiplies {list(g.specs[x].shape)} by {list(shape)}")
    columns = g.specs[node.outputs[0]].shape[-1]
    wide = g.specs[bias].shape if bias else ()
    if prod(wide) != 1 and (prod(wide), wide[-1]) != (columns, columns):
        raise g.refusal(node, f"its bias is {list(wide)}")
    if matrix in g.own:
        form = "turned" if node.attrs.get("transB", 0) else ""
        g.grouped(node, x, (matrix, form), bias, residual, _epilogue(node))
        return
    attrs = {"transB": 1} if node.attrs.get("transB", 0) else {}
    _behind(g, node, g.emit("MatMul", [x, matrix], node.outputs[0], attrs), "", bias, residual, -1)


def _convolution(g: Walk, node: Node) -> None:
    x, filters, bias, residual = (_operand(node, i) for i in range(4))
    if g.lines.get(x) is None or filters in g.lines or bias in g.lines or residual in g.own:
        raise g.refusal(node, "an operand is in a position where rows of a batch are not supported")
    last = node.attrs.get("layout", "NCHW") == "NHWC"
    if filters in g.own and last and _pointwise(g, node):
        g.grouped(node, x, (filters, "filters"), bias, residual, _epilogue(node))
        return
    factor = ""
    if filters in g.own:
        filters, factor = _scaled(g, node, filters)
    attrs = {name: value for name, value in node.attrs.items() if not name.startswith("activation")}
    product = g.emit("Conv", [x, filters], node.outputs[0], attrs)
    _behind(g, node, product, factor, bias, residual, -1 if last else 1)


def _pointwise(g: Walk, node: Node) -> bool:
    """Whether a convolution is a matrix product over pixels."""
    strides, pads = (np.asarray(node.attrs.get(key, 0)) for key in ("strides", "pads"))
    still = bool((strides <= 1).all() and not pads.any())
    return still and node.attrs.get("group", 1) == 1 and prod(g.specs[node.inputs[1]].shape[2:]) == 1


def _scaled(g: Walk, node: Node, filters: str) -> tuple[str, str]:
    """Splits owned filters into constant filters and a factor for each."""
    maker = g.makers.get(filters)
    if maker is not None and maker.op == "Mul":
        for one, other in (maker.inputs, maker.inputs[::-1]):
            shape, wanted = g.specs[other].shape, g.specs[filters].shape
            alone = len(shape) == len(wanted) and prod(shape) == shape[0] and shape[0] in (1, wanted[0])
            if one in g.known and g.specs[one].shape == wanted and (alone or not shape):
                return one, other
    raise g.refusal(node, f"its filters are {list(g.specs[filters].shape)}, neither 1x1 in NHWC nor constant")


def _elementwise(g: Walk, node: Node) -> None:
    (output,) = node.outputs
    shape = g.specs[output].shape
    for name in node.inputs:
        there = g.specs[name].shape if name in g.lines else None
        if there is not None and (len(there) != len(shape) or there[0] != shape[0]):
            raise g.refusal(node, f"{list(there)} is broadcast to {list(shape)}")
    operands = [g.each(name, output) if name in g.own else name for name in node.inputs]
    g.emit(node.op, operands, output, node.attrs, last=True)


def _normalization(g: Walk, node: Node) -> None:
    x, scale, bias = (_operand(node, i) for i in range(3))
    shape, (output, *others) = g.specs[x].shape, node.outputs
    if x not in g.lines or any(others) or node.attrs.get("axis", -1) not in (-1, len(shape) - 1):
        raise g.refusal(node, "it normalises more than its last axis, or gives more than one result")
    ones = f"{output}/personal/ones"
    g.constants[ones] = np.ones(shape[-1:], np.float32)
    normal = g.emit(node.op, [x, ones], output, node.attrs)
    _behind(g, node, normal, scale, bias, "", -1)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMul", "Gemm"), _product),
    "Conv": _convolution,
    **dict.fromkeys((*sorted(having("broadcasts")), "PRelu"), _elementwise),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalization),
}
"""By operator. A rule appends nodes to the walk, the last of which gives the node's result, or raises Ungrouped."""
require(RULES, "rules for operands of each row's own")
