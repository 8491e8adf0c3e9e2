"""QuantizeLinear moves up through operators that only move numbers, to the operator that computes them.

1. Q(op(x)) -> op(Q(x)) for Reshape, Transpose, Slice, Tile, nearest-neighbour Resize and similar, if nothing else reads
   x or op(x); and for MaxPool, since a larger number never has the smaller integer.
2. Q(Pad(x, number)) -> Pad(Q(x), Q(number)).
3. Q(Concat(a, b)) -> Concat(Q(a), Q(b)): each operand is quantised with the result's parameters, whatever its own were.

One scale and zero point for the whole tensor.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.ir import build, spec
from converter.ir.build import Edit, attr
from converter.passes import quantized
from lite_runtime.operators import having

__all__ = ["run"]

_PICKS = frozenset(("Gather", "GatherElements", "GatherND"))
"""Movement that stays before its quantiser: what is picked may be far less than what it is picked from."""
_MOVES = (having("movement") - _PICKS) | {"Resize", "MaxPool", "Pad", "Concat"}
_SWEEPS = 8


def run(model: ir.Model) -> int:
    """The number of operators passed."""
    total = 0
    for _ in range(_SWEEPS):
        moved = sum(_visit(node) for node in reversed(list(build.nodes(model))) if node.graph is not None)
        total += moved
        if not moved:
            break
    return total


def _moves(node: ir.Node) -> bool:
    if node.op_type not in _MOVES or node.domain not in ("", build.DOMAIN) or len(node.outputs) > 1:
        return False
    if node.op_type == "Resize":
        outside = attr(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        return not outside and bool(attr(node, "mode", "nearest") == "nearest")
    return True


def _visit(node: ir.Node) -> bool:
    parameters = quantized.quantizer(node)
    move = node.inputs[0].producer() if parameters is not None and node.inputs[0] is not None else None
    if parameters is None or not parameters.plain or move is None or not _moves(move):
        return False
    if build.sole_use(move.outputs[0]) is not node or not spec.takes(move.op_type, 0, parameters.dtype):
        return False
    count = len(move.inputs) if move.op_type == "Concat" else 1
    sources = list(move.inputs[:count])
    if any(v is None or v.dtype != ir.DataType.FLOAT for v in sources):
        return False
    if count == 1 and sources[0] is not None and build.sole_use(sources[0]) is not move:
        return False
    edit, attrs = Edit(node), dict(node.attributes)

    def quantize(value: ir.Value | None) -> ir.Value:
        made = edit.op("QuantizeLinear", [value, *node.inputs[1:]], attrs, like=value)
        made.type = ir.TensorType(parameters.dtype)
        return made

    inputs = [*map(quantize, sources), *move.inputs[count:]]
    if move.op_type == "Pad" and attr(move, "mode", "constant") == "constant":
        inputs += [None] * (3 - len(inputs))
        inputs[2] = quantize(inputs[2] or edit.const(np.float32(0)))
    kept = dict(move.attributes)
    edit.replace(edit.op(move.op_type, inputs, kept, domain=move.domain, like=node.outputs[0]))
    assert move.graph is not None
    move.graph.remove(move, safe=True)
    return True
