"""A channels-last operator alone between two Transposes becomes channels-first again, without them.

Not for convolutions: their channels-last kernels save more time than both Transposes cost.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit
from converter.passes.channels_last import DATA, to_first, to_last
from converter.passes.sink_transposes import before, perm_of

__all__ = ["run"]

_CHEAP = frozenset(op for op, images in DATA.items() if "Conv" not in op and len(images) == 1)
"""Operators on one image that are as fast in channels-first layout."""


def run(model: ir.Model) -> int:
    """The number of operators changed back."""
    return sum(
        _turn_back(node) for node in build.nodes(model) if node.graph is not None and node.domain == build.DOMAIN
    )


def _turn_back(node: ir.Node) -> bool:
    x, y = node.inputs[0], node.outputs[0]
    rank = build.rank(x)
    if node.op_type not in _CHEAP or x is None or rank is None or perm_of(x) != to_last(rank):
        return False
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return False
    last = build.sole_use(y)
    if last is None or perm_of(last.outputs[0]) != to_first(rank) or build.sole_use(x) is not node:
        return False
    attrs = {name: value for name, value in node.attributes.items() if name != "layout"}
    edit = Edit(last)
    edit.replace(edit.op(node.op_type, [before(x), *node.inputs[1:]], attrs, like=last.outputs[0]))
    return True
