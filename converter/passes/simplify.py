"""Remove or simplify operators without effect.

1. Reshape, Expand, Pad, Slice, Tile, Cast, Concat, Transpose, Resize, Dropout that change nothing: removed.
2. Reshape, Flatten, Squeeze, Unsqueeze of a Reshape-like operator: one Reshape.
3. Reshape to a computed shape of which at most one size is unknown: to a constant shape.
4. Softmax between the Flatten and Reshape that the upgrade of old opsets inserts: the plain Softmax, where equivalent.
5. x + 0, x - 0, x * 1, x / 1 that broadcast nothing: x.
6. Dropout in inference and Identity: their input. (onnx_ir 1.1's IdentityEliminationPass lists a graph output twice
   where an Identity copies another output, as scan bodies do; hence ours.)
7. A Transpose that moves only dimensions of size 1: a Reshape.
8. Sum of one operand: that operand; of two: Add.
9. QuantizeLinear and DequantizeLinear of values already quantised with the same parameters: removed
   (`drop_requantize`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims
from converter.passes import drop_requantize
from lite_runtime.operators import having

__all__ = ["run"]

_RESHAPES = having("view")
Rule = Callable[[ir.Node], bool]


def run(model: ir.Model) -> int:
    """Apply the cases above everywhere; the number of rewrites."""
    count = 0
    for node in build.nodes(model):
        if node.graph is not None and node.domain == "":
            count += any(rule(node) for rule in RULES.get(node.op_type, ()) if node.graph is not None)
    return count


def _bypass(node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None:
        return False
    pinned = x.producer() is None or x.is_graph_output() or x.graph is not node.graph
    if node.outputs[0].is_graph_output() and pinned:
        return False
    Edit(node).replace(x)
    return True


def _same_shape(node: ir.Node) -> bool:
    """The result is its first input: equal sizes, and the operator changes nothing else."""
    return build.same_dims(node.inputs[0], node.outputs[0]) and _bypass(node)


def _identity(node: ir.Node) -> bool:
    return _bypass(node)


def _dropout(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    mask = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    return not mask and (training is None or build.scalar(training) == 0) and _bypass(node)


def _cast(node: ir.Node) -> bool:
    x = node.inputs[0]
    return x is not None and x.dtype is not None and x.dtype.value == attr(node, "to", None) and _bypass(node)


def _concat(node: ir.Node) -> bool:
    return len(node.inputs) == 1 and _bypass(node)


def _sum(node: ir.Node) -> bool:
    if len(node.inputs) == 1:
        return _bypass(node)
    if len(node.inputs) != 2:
        return False
    edit = Edit(node)
    edit.replace(edit.op("Add", list(node.inputs), like=node.outputs[0]))
    return True


def _transpose(node: ir.Node) -> bool:
    perm, shape = attr(node, "perm", None), dims(node.inputs[0])
    if perm is None:
        return False
    if list(perm) == list(range(len(perm))):
        return _bypass(node)
    if shape is None:
        return False
    kept = [p for p in perm if shape[p] != 1]
    target = build.constant_dims([shape[p] for p in perm])
    if kept != sorted(kept) or target is None:
        return False
    edit = Edit(node)
    edit.replace(edit.op("Reshape", [node.inputs[0], edit.ints(target)], like=node.outputs[0]))
    return True


def _pad(node: ir.Node) -> bool:
    pads = build.array(node.inputs[1])
    return pads is not None and not pads.any() and _bypass(node)


def _slice(node: ir.Node) -> bool:
    steps = build.array(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    return steps is not None and bool((steps == 1).all()) and _same_shape(node)


def _expand(node: ir.Node) -> bool:
    return _same_shape(node)


def _tile(node: ir.Node) -> bool:
    repeats = build.array(node.inputs[1])
    return repeats is not None and bool((repeats == 1).all()) and _bypass(node)


def _resize(node: ir.Node) -> bool:
    scales = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
    plain = attr(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
    return plain and scales is not None and scales.size > 0 and bool((scales == 1).all()) and _same_shape(node)


def _reshape_of_reshape(node: ir.Node) -> bool:
    x = node.inputs[0]
    inner = x.producer() if x is not None else None
    target = build.constant_dims(dims(node.outputs[0]))
    if inner is None or not build.is_op(inner, *_RESHAPES) or target is None:
        return False
    source = inner.inputs[0]
    if source is None:
        return False
    edit = Edit(node)
    edit.replace(edit.op("Reshape", [source, edit.ints(target)], like=node.outputs[0]))
    _drop_if_dead(inner)
    return True


def _drop_if_dead(node: ir.Node) -> None:
    if node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
        node.graph.remove(node, safe=True)


def _reshape_to_constant(node: ir.Node) -> bool:
    target = build.constant_dims(dims(node.outputs[0]))
    if target is None or build.array(node.inputs[1]) is not None:
        return False
    node.replace_input_with(1, Edit(node).ints(target))
    build.set_attrs(node, allowzero=None)
    return True


def _reshape_noop(node: ir.Node) -> bool:
    return _same_shape(node)


def _flat_softmax(node: ir.Node) -> bool:
    """Reshape(Softmax(Flatten(x, axis), -1), shape of x)."""
    soft = _producer(node.inputs[0])
    if not build.is_op(soft, "Softmax", "LogSoftmax", "Hardmax"):
        return False
    assert soft is not None
    flat = _producer(soft.inputs[0])
    if not build.is_op(flat, "Flatten") or attr(soft, "axis", -1) not in (-1, 1):
        return False
    assert flat is not None
    x = flat.inputs[0]
    shape = dims(x)
    if shape is None or not build.same_dims(x, node.outputs[0]):
        return False
    axis = attr(flat, "axis", 1) % len(shape)
    if any(d != 1 for d in shape[axis + 1 :]) or not build.sole_reader(soft.outputs[0]):
        return False
    edit = Edit(node)
    edit.replace(edit.op(soft.op_type, [x], {"axis": axis}, like=node.outputs[0]))
    _drop_if_dead(soft)
    _drop_if_dead(flat)
    return True


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _neutral(number: float, sides: tuple[int, ...]) -> Rule:
    def rule(node: ir.Node) -> bool:
        for side in sides:
            x = node.inputs[1 - side]
            found = build.array(node.inputs[side])
            if found is not None and found.size and (found == number).all() and build.same_dims(x, node.outputs[0]):
                if side == 0:
                    node.replace_input_with(0, x)
                return _bypass(node)
        return False

    return rule


def _empty_split(node: ir.Node) -> bool:
    return len(node.outputs) == 1 and _same_shape(node)


RULES: Mapping[str, tuple[Rule, ...]] = {
    "Identity": (_identity,),
    "Dropout": (_dropout,),
    "Cast": (_cast,),
    "Concat": (_concat,),
    "Split": (_empty_split,),
    "Sum": (_sum,),
    "Transpose": (_transpose,),
    "Pad": (_pad,),
    "Slice": (_slice,),
    "Expand": (_expand,),
    "Tile": (_tile,),
    "Resize": (_resize,),
    "Reshape": (_flat_softmax, _reshape_of_reshape, _reshape_noop, _reshape_to_constant),
    "Flatten": (_same_shape, _reshape_of_reshape),
    "Squeeze": (_same_shape, _reshape_of_reshape),
    "Unsqueeze": (_reshape_of_reshape,),
    "DequantizeLinear": (drop_requantize.rule,),
    "Add": (_neutral(0, (0, 1)),),  # x + 0 -> x
    "Sub": (_neutral(0, (1,)),),  # x - 0 -> x
    "Mul": (_neutral(1, (0, 1)),),  # x * 1 -> x
    "Div": (_neutral(1, (1,)),),  # x / 1 -> x
}
