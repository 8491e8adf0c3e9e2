"""Reshape targets computed from symbolic sizes, solved: [batch, -1, 3, 16] from [batch, 5, 48] is [batch, 5, 3, 16].

1. The target's elements are followed through Shape, Gather, Slice, Concat, Squeeze, Unsqueeze, Cast and Mul of
   constants.
2. A -1 (and a 0) becomes the size it represents, if the known sizes and symbols of both sides determine it.
3. A target with at most one symbol left becomes a constant; the result's shape is filled in, and shapes after it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from converter.ir import build, shapes
from converter.ir.build import Edit, attr, dims

__all__ = ["elements", "run"]

Element = int | str | None
"""A known size, a symbol, or None if unknown."""
_ROUNDS = 6


def run(model: ir.Model) -> int:
    """Solve and infer until nothing new is known; the number of Reshapes solved."""
    total = 0
    for _ in range(_ROUNDS):
        solved = sum(_solve(node) for node in build.nodes(model) if build.is_op(node, "Reshape"))
        total += solved
        if not (solved + _follow(model)):
            break
        shapes.infer(model)
    return total


def _follow(model: ir.Model) -> int:
    """Expand and ConstantOfShape: their results' shapes."""
    gained = 0
    for node in build.nodes(model):
        if not build.is_op(node, "ConstantOfShape", "Expand"):
            continue
        target = elements(node.inputs[0 if node.op_type == "ConstantOfShape" else 1])
        result = node.outputs[0]
        known = dims(result)
        if target is None or (node.op_type == "Expand" and len(target) < (build.rank(node.inputs[0]) or 0)):
            continue
        if node.op_type == "Expand":
            target = _expanded(dims(node.inputs[0]), target)
        if known is None or _count(target) > _count(known):
            result.shape = ir.Shape(target)
            gained += 1
    return gained


def _expanded(shape: Sequence[Element] | None, target: Sequence[Element]) -> list[Element]:
    if shape is None:
        return [None] * len(target)
    given = (*[1] * (len(target) - len(shape)), *shape)
    return [t if d == 1 else d if t == 1 or t == d else None for d, t in zip(given, target, strict=True)]


def _count(shape: Sequence[Element]) -> int:
    return sum(d is not None for d in shape)


def _solve(node: ir.Node) -> bool:
    source, target = dims(node.inputs[0]), elements(node.inputs[1])
    if source is None or target is None or attr(node, "allowzero", 0):
        return False
    if any(d == 0 for d in source):
        return False
    solution = _solution(source, target)
    if solution is None:
        return False
    constant, result = build.constant_dims(solution), node.outputs[0]
    current = build.array(node.inputs[1])
    changed = False
    if constant is not None and (current is None or current.tolist() != constant):
        node.replace_input_with(1, Edit(node).ints(constant))
        changed = True
    if dims(result) is None or _count(solution) > _count(dims(result) or ()) or _sharper(dims(result), solution):
        result.shape = ir.Shape(solution)
        changed = True
    return changed


def _sharper(known: Sequence[Element] | None, solution: Sequence[Element]) -> bool:
    """A size in place of a symbol, or the source's own symbol in place of one that inference generated."""
    pairs = [(k, s) for k, s in zip(known or (), solution, strict=False) if not isinstance(k, int) and k != s]
    return any(isinstance(s, int) or (s is not None and shapes.made_up(k)) for k, s in pairs)


def _solution(source: Sequence[Element], target: Sequence[Element]) -> list[Element] | None:
    """`target` with 0 copied and -1 solved; None when it stays ambiguous."""
    sizes: list[Element] = []
    for i, t in enumerate(target):
        if t == 0:
            if i >= len(source):
                return None
            t = source[i]
        sizes.append(t)
    if -1 not in sizes:
        return sizes
    if None in sizes or None in source:
        return None
    left, right = list(source), [t for t in sizes if t != -1]
    for symbol in [t for t in right if isinstance(t, str)]:
        if symbol not in left:
            return None
        left.remove(symbol)
        right.remove(symbol)
    symbols = [d for d in left if isinstance(d, str)]
    numerator = prod(d for d in left if isinstance(d, int))
    denominator = prod(d for d in right if isinstance(d, int))
    if denominator == 0 or len(symbols) > 1 or numerator % denominator:
        return None
    quotient: Element = numerator // denominator
    if symbols:
        if quotient != 1:
            return None
        quotient = symbols[0]
    return [quotient if t == -1 else t for t in sizes]


def elements(value: ir.Value | None, depth: int = 12) -> list[Element] | None:
    """The known elements of a small integer vector or scalar; None if nothing is known."""
    constant = build.array(value)
    if constant is not None:
        return [int(n) for n in constant.reshape(-1)] if constant.dtype.kind in "iu" and constant.size <= 64 else None
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth == 0:
        return None
    rule = _FOLLOW.get(node.op_type)
    return rule(node, depth - 1) if rule is not None else None


def _shape(node: ir.Node, depth: int) -> list[Element] | None:
    shape = dims(node.inputs[0])
    return None if shape is None else list(shape)[attr(node, "start", 0) : attr(node, "end", None)]


def _gather(node: ir.Node, depth: int) -> list[Element] | None:
    found, index = elements(node.inputs[0], depth), build.array(node.inputs[1])
    if found is None or index is None or any(not -len(found) <= int(i) < len(found) for i in index.reshape(-1)):
        return None
    return [found[int(i)] for i in index.reshape(-1)]


def _slice(node: ir.Node, depth: int) -> list[Element] | None:
    found = elements(node.inputs[0], depth)
    bounds = [build.array(v) for v in node.inputs[1:3]]
    step = build.array(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else np.ones(1, np.int64)
    if found is None or step is None or any(b is None or b.size != 1 for b in bounds):
        return None
    start, end = (int(b.reshape(-1)[0]) for b in bounds if b is not None)
    return found[start : end : int(step.reshape(-1)[0])]


def _concat(node: ir.Node, depth: int) -> list[Element] | None:
    joined: list[Element] = []
    for value in node.inputs:
        found = elements(value, depth)
        rank = build.rank(value)
        if found is None:
            shape = build.static_dims(value)
            if shape is None or len(shape) != 1:
                return None
            found = [None] * shape[0]
        if rank not in (None, 1):
            return None
        joined += found
    return joined


def _first(node: ir.Node, depth: int) -> list[Element] | None:
    return elements(node.inputs[0], depth)


def _product(node: ir.Node, depth: int) -> list[Element] | None:
    a, b = elements(node.inputs[0], depth), elements(node.inputs[1], depth)
    if a is None or b is None or len(a) != len(b):
        return None
    return [x * y if isinstance(x, int) and isinstance(y, int) else None for x, y in zip(a, b, strict=True)]


_FOLLOW: Mapping[str, Callable[[ir.Node, int], list[Element] | None]] = {
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Mul": _product,
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Cast", "Identity", "Reshape"), _first),
}
