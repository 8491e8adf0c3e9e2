"""A Pad with zeros over spatial axes is folded into the pads of its only reader.

1. Conv, QLinearConv.
2. AveragePool that counts padding, or that has no padding yet and then counts it.

Between the two there may be Transposes, a DequantizeLinear (the Pad then has its zero point as value) and a
DynamicQuantizeLinear (whose range always contains zero).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import attr, dims, set_attrs
from converter.passes import quantized

__all__ = ["run"]

_READERS = ("Conv", "QLinearConv", "AveragePool")


def run(model: ir.Model) -> int:
    """The number of Pads folded."""
    found = (n for n in build.nodes(model) if n.domain in ("", build.DOMAIN) and n.op_type in _READERS)
    return sum(_fold(node) for node in found)


@dataclass
class _Path:
    """The path from an operator back to the Pad that its input comes from."""

    axes: list[int]
    """For each axis of the operator's input, the axis of the value reached so far."""
    zero: float = 0.0
    """The number that represents zero in the value reached so far."""
    between: list[ir.Node] = field(default_factory=list)


def _fold(node: ir.Node) -> bool:
    rank = build.rank(node.inputs[0])
    if rank is None or rank < 3 or attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    path = _Path(list(range(rank)))
    pad = _walk(node, path)
    pads = _pads(pad, path.zero) if pad is not None else None
    if pad is None or pads is None:
        return False
    begin, end = ([half[axis] for axis in path.axes] for half in pads)
    first = 1 if attr(node, "layout", "NCHW") == "NHWC" else 2
    if any((*begin[:first], *end[:first], *begin[first + rank - 2 :], *end[first + rank - 2 :])):
        return False
    old = attr(node, "pads", [0] * (2 * (rank - 2)))
    if node.op_type == "AveragePool":
        if attr(node, "ceil_mode", 0) or (any(old) and not attr(node, "count_include_pad", 0)):
            return False
        set_attrs(node, count_include_pad=1)
    spatial = slice(first, first + rank - 2)
    set_attrs(node, pads=[int(a + b) for a, b in zip(old, begin[spatial] + end[spatial], strict=True)])
    _remove(pad, [*reversed(path.between), node])
    return True


def _walk(node: ir.Node, path: _Path) -> ir.Node | None:
    """The Pad, if every value on the way has one reader."""
    value, reader = node.inputs[0], node
    while value is not None and build.sole_use(value) is reader:
        maker = value.producer()
        if maker is None or build.is_op(maker, "Pad"):
            return maker
        if not _passes(maker, value, path):
            return None
        path.between.append(maker)
        value, reader = maker.inputs[0], maker
    return None


def _passes(maker: ir.Node, value: ir.Value, path: _Path) -> bool:
    if build.is_op(maker, "Transpose"):
        perm = attr(maker, "perm", None) or tuple(reversed(range(len(path.axes))))
        path.axes = [perm[axis] for axis in path.axes]
        return True
    if maker.op_type == "DynamicQuantizeLinear":
        return value is maker.outputs[0]
    found = quantized.dequantized(value)
    if found is None or not found.parameters.plain:
        return False
    zeros, given = found.parameters.zeros, found.parameters.zero_point
    if zeros is not None:
        path.zero = float(zeros)
        return True
    dynamic = given.producer() if given is not None else None
    return dynamic is not None and dynamic.op_type == "DynamicQuantizeLinear"


def _pads(pad: ir.Node, zero: float) -> tuple[list[int], list[int]] | None:
    """Elements added before and after each axis; None for a Pad with another number, or one that crops."""
    rank, pads = build.rank(pad.inputs[0]), build.array(pad.inputs[1])
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    given = pad.inputs[3] if len(pad.inputs) > 3 else None
    number = 0.0 if value is None else build.scalar(value)
    if (
        rank is None
        or pads is None
        or (pads < 0).any()
        or number != zero
        or attr(pad, "mode", "constant") != "constant"
    ):
        return None
    axes = list(range(rank))
    if given is not None:
        chosen = build.array(given)
        if chosen is None:
            return None
        axes = [int(a) % rank for a in chosen.reshape(-1)]
    halves = [0] * rank, [0] * rank
    for half, numbers in zip(halves, pads.reshape(2, -1).tolist(), strict=True):
        for axis, n in zip(axes, numbers, strict=True):
            half[axis] = n
    return halves


def _remove(pad: ir.Node, readers: list[ir.Node]) -> None:
    """Remove the Pad, and correct the shapes on the way to the last reader."""
    source = pad.inputs[0]
    readers[0].replace_input_with(0, source)
    shape = dims(source)
    for node in readers[:-1]:
        if build.is_op(node, "Transpose") and shape is not None:
            perm = attr(node, "perm", None) or tuple(reversed(range(len(shape))))
            shape = tuple(shape[p] for p in perm)
        node.outputs[0].shape = None if shape is None else ir.Shape(shape)
    assert pad.graph is not None
    pad.graph.remove(pad, safe=True)
