"""A Pad with zeros over spatial axes becomes part of the pads of the operator that alone reads it.

1. Conv.
2. AveragePool that counts padding, or has none of its own and then counts it.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import attr, set_attrs

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of Pads taken in."""
    return sum(_fold(node) for node in build.nodes(model) if build.is_op(node, "Conv", "AveragePool"))


def _fold(node: ir.Node) -> bool:
    x = node.inputs[0]
    pad = x.producer() if x is not None else None
    if x is None or not build.is_op(pad, "Pad") or build.sole_use(x) is not node:
        return False
    assert pad is not None
    rank, pads = build.rank(pad.inputs[0]), build.array(pad.inputs[1])
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    plain = attr(pad, "mode", "constant") == "constant" and (value is None or build.scalar(value) == 0)
    if not plain or rank is None or pads is None or (pads < 0).any() or attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        return False
    begin, end = pads[:rank].tolist(), pads[rank:].tolist()
    if any(begin[:2]) or any(end[:2]):
        return False
    old = attr(node, "pads", [0] * (2 * (rank - 2)))
    if node.op_type == "AveragePool":
        if attr(node, "ceil_mode", 0) or (any(old) and not attr(node, "count_include_pad", 0)):
            return False
        set_attrs(node, count_include_pad=1)
    set_attrs(node, pads=[int(a + b) for a, b in zip(old, begin[2:] + end[2:], strict=True)])
    node.replace_input_with(0, pad.inputs[0])
    assert pad.graph is not None
    pad.graph.remove(pad, safe=True)
    return True
