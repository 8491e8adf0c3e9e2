"""What a value of an exported graph is: a product, a norm in its operators, an activation, a sum; and how errors name
it. Casts between floating-point types are looked through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.decoders import Dense, Matrix
from converter.frontends.exported.matrices import constant_of
from converter.ir.build import attr, scalar, title

__all__ = [
    "PRODUCTS",
    "SKIP",
    "activation",
    "alike",
    "before",
    "decomposed",
    "is_input",
    "is_product",
    "made",
    "plain",
    "same",
    "stream",
    "unlike",
]

SKIP = "SkipSimplifiedLayerNormalization"
PRODUCTS = ("MatMul", "Gemm", "MatMulNBits")


def plain(value: ir.Value | None) -> ir.Value | None:
    """The value before casts."""
    while value is not None and (node := value.producer()) is not None and node.op_type in ("Cast", "Identity"):
        value = node.inputs[0]
    return value


def made(value: ir.Value | None) -> ir.Node | None:
    """The node that computes a value, before casts."""
    value = plain(value)
    return None if value is None else value.producer()


def alike(a: ir.Value, b: ir.Value) -> bool:
    """Whether both are one value, before casts."""
    return plain(a) is plain(b)


def stream(value: ir.Value | None) -> ir.Value | ir.Node:
    """A sum as the node that adds; anything else as it is."""
    if value is None:
        raise ConvertError("expected an operand of a sum, got none; the file is damaged")
    node = value.producer()
    if node is not None and (node.op_type == "Add" or (node.op_type == SKIP and value is not node.outputs[0])):
        return node
    return value


def is_product(value: ir.Value | None) -> bool:
    """Whether it is a product, perhaps with a bias."""
    node = made(value)
    if node is not None and node.op_type == "Add":
        sides = node.inputs[:2]
        if all(constant_of(side) is None for side in sides):
            return False
        node = next((made(side) for side in sides if constant_of(side) is None), None)
    return node is not None and node.op_type in PRODUCTS


def is_input(value: ir.Value | None) -> bool:
    """Whether it is an input of the graph."""
    found = plain(value)
    return found is not None and found.is_graph_input()


def activation(value: ir.Value | None) -> tuple[str, ir.Value] | None:
    """(operator, what it is of), if the value is an activation that gates have."""
    node = made(value)
    if node is None or node.inputs[0] is None:
        return None
    x = node.inputs[0]
    if node.op_type == "Mul":
        for a, b in (node.inputs[:2], node.inputs[1::-1]):
            inner = made(b)
            if (
                a is not None
                and inner is not None
                and inner.op_type == "Sigmoid"
                and plain(inner.inputs[0]) is plain(a)
            ):
                return "Silu", a
    if node.op_type == "QuickGelu" and attr(node, "alpha", 1.702) == 1.0:
        return "Silu", x
    if node.op_type == "Gelu" and attr(node, "approximate", "none") == "tanh":
        return "Gelu", x
    if node.op_type == "FastGelu" and len([v for v in node.inputs if v is not None]) == 1:
        return "Gelu", x
    return None


def decomposed(node: ir.Node) -> tuple[ir.Value | None, ir.Value, float] | None:
    """(weights, x, epsilon), if the node is weights * x / sqrt(mean(x * x) + epsilon)."""
    if node.op_type != "Mul":
        return None
    for weights, scaled in (node.inputs[:2], node.inputs[1::-1]):
        inner = made(scaled)
        if constant_of(weights) is None or inner is None or inner.op_type not in ("Mul", "Div"):
            continue
        sides = [inner.inputs[:2]] + ([inner.inputs[1::-1]] if inner.op_type == "Mul" else [])
        for x, factor in sides:
            root = _root(factor, inner.op_type == "Mul")
            found = None if root is None else _mean_square(root)
            if x is not None and found is not None and plain(found[0]) is plain(x):
                return weights, x, found[1]
    return None


def _root(value: ir.Value | None, reciprocal: bool) -> ir.Node | None:
    """The Sqrt that a factor is, or is the reciprocal of."""
    node = made(value)
    if node is not None and reciprocal:
        if node.op_type == "Reciprocal":
            node = made(node.inputs[0])
        elif node.op_type == "Div" and scalar(plain(node.inputs[0])) == 1:
            node = made(node.inputs[1])
        else:
            return None
    return node if node is not None and node.op_type == "Sqrt" else None


def _mean_square(root: ir.Node) -> tuple[ir.Value, float] | None:
    """(x, epsilon) of sqrt(mean(x * x) + epsilon)."""
    added = made(root.inputs[0])
    if added is None or added.op_type != "Add":
        return None
    for mean, number in (added.inputs[:2], added.inputs[1::-1]):
        epsilon, reduce = scalar(plain(number)), made(mean)
        if epsilon is None or reduce is None or reduce.op_type != "ReduceMean":
            continue
        square = made(reduce.inputs[0])
        if square is None or square.inputs[0] is None or not _over_last(reduce):
            continue
        by_power = square.op_type == "Pow" and scalar(plain(square.inputs[1])) == 2
        by_product = square.op_type == "Mul" and square.inputs[0] is square.inputs[1]
        if by_power or by_product:
            return square.inputs[0], float(epsilon)
    return None


def _over_last(reduce: ir.Node) -> bool:
    held = constant_of(reduce.inputs[1]) if len(reduce.inputs) > 1 else None
    axes = attr(reduce, "axes", None) if held is None else held.array().tolist()
    return axes is not None and list(axes) in ([-1], [2]) and bool(attr(reduce, "keepdims", 1))


def before(value: ir.Value) -> Iterator[ir.Value]:
    """The value and all that it is computed from."""
    seen, left = set[ir.Value](), [value]
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        node = value.producer()
        left += [] if node is None else [v for v in node.inputs if v is not None]


def same(a: Matrix, b: Matrix) -> bool:
    """Whether two matrices have the same contents."""
    if a.shape != b.shape or type(a) is not type(b):
        return False
    if isinstance(a, Dense) and isinstance(b, Dense):
        return all(np.array_equal(a.rows(begin, end), b.rows(begin, end)) for begin, end in _steps(a.shape[0]))
    assert not isinstance(a, Dense) and not isinstance(b, Dense)
    if (a.bits, a.block, a.zero_point, a.half) != (b.bits, b.block, b.zero_point, b.half):
        return False
    tables = [(a.scales, b.scales)] + ([(a.offsets, b.offsets)] if a.offsets and b.offsets else [])
    if bool(a.offsets) != bool(b.offsets) or not all(np.array_equal(x(), y()) for x, y in tables):
        return False
    return all(np.array_equal(a.q(begin, end), b.q(begin, end)) for begin, end in _steps(a.shape[0]))


def _steps(rows: int, step: int = 4096) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + step, rows)) for begin in range(0, rows, step))


def unlike(value: ir.Value | None, expected: str) -> ConvertError:
    """What was expected where, and what is there."""
    value = plain(value)
    node = None if value is None else value.producer()
    if value is None:
        got = "nothing"
    elif node is not None:
        got = f"{node.op_type} ({title(node)})"
    else:
        got = f"{'a constant' if value.const_value is not None else 'an input'} {value.name!r}"
    return ConvertError(
        f"expected {expected}, got {got}; of folders, decoders are read with GroupQueryAttention or in plain operators,"
        " as onnxruntime-genai's builder, optimum and torch.onnx export them: convert the original, or model.onnx"
        " itself as an ordinary graph"
    )
