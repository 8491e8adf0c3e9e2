"""Operators that move or select numbers work on integers: op(dequantised q) -> dequantised op(q).

1. Movement: Reshape, Transpose, Slice, Split, Gather, Expand, Tile, DepthToSpace, nearest-neighbour Resize and similar.
   Scales along an axis follow Reshape and Transpose; everything else needs one scale for the whole tensor.
2. Several operands with the same parameters: Concat, Max, Min, and the two branches of Where.
3. Pad with a number that is exactly one of the integers.
4. Selection by order, which a positive scale preserves: MaxPool, ReduceMax, ReduceMin, TopK; GlobalMaxPool as
   ReduceMax.
   ArgMax and ArgMin give positions, so nothing is left to dequantise.

`RULES` says which operands are data and what else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build, spec
from converter.ir.build import Edit, attr
from converter.passes import quantized
from converter.passes.drop_requantize import representable
from converter.passes.quantized import Parameters, Quantized
from lite_runtime.operators import having, require

__all__ = ["RULES", "run"]

_SWEEPS = 8
_WHOLE = tuple(getattr(ir.DataType, name) for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32"))
"""Element types that operators on the device read: at least one byte."""


class Plan(NamedTuple):
    """The operator on integers: its name, operands and attributes, and the axis of its result's scales."""

    op: str
    inputs: list[ir.Value | None]
    attrs: Mapping[str, ir.Attr | int | None]
    domain: str
    axis: int | None = None


Rule = Callable[[ir.Node, Edit], "tuple[Plan, Parameters] | None"]


def run(model: ir.Model) -> int:
    """The number of operators that now work on integers."""
    total = 0
    for _ in range(_SWEEPS):
        moved = sum(_visit(node) for node in build.nodes(model) if node.graph is not None)
        total += moved
        if not moved:
            break
    return total


def _visit(node: ir.Node) -> bool:
    rule = RULES.get(node.op_type) if node.domain in ("", build.DOMAIN) else None
    if rule is None:
        return False
    edit = Edit(node)
    found = rule(node, edit)
    if found is None or found[1].dtype not in _WHOLE or not spec.takes(found[0].op, _data_index(node), found[1].dtype):
        return False
    plan, parameters = found
    results = edit.ops(plan.op, plan.inputs, plan.attrs, domain=plan.domain, outputs=len(node.outputs))
    for old, new in zip(node.outputs, results, strict=True):
        new.type = old.type
        new.shape = None if old.shape is None else ir.Shape(build.dims(old) or ())
    edit.replace(
        *(_back(edit, old, new, parameters, plan.axis) for old, new in zip(node.outputs, results, strict=True))
    )
    return True


def _data_index(node: ir.Node) -> int:
    return 1 if node.op_type == "Where" else 0


def _back(edit: Edit, old: ir.Value, new: ir.Value, parameters: Parameters, axis: int | None) -> ir.Value:
    """The float result; positions (of ArgMax, of TopK) are unchanged."""
    if old.dtype != ir.DataType.FLOAT:
        return new
    new.type = ir.TensorType(parameters.dtype)
    return quantized.dequantize(edit, new, parameters, old, axis)


def _positive(parameters: Parameters) -> bool:
    scales = parameters.scales
    if scales is not None:
        return bool((scales > 0).all())
    maker = parameters.scale.producer()
    return maker is not None and maker.op_type == "DynamicQuantizeLinear"


def _plan(node: ir.Node, found: Mapping[int, Quantized], axis: int | None = None) -> Plan:
    inputs = [found[i].q if i in found else v for i, v in enumerate(node.inputs)]
    return Plan(node.op_type, inputs, dict(node.attributes), node.domain, axis)


def _first(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
    x = quantized.dequantized(node.inputs[0])
    return None if x is None or not x.parameters.plain else (_plan(node, {0: x}), x.parameters)


def _any_axis(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
    """Reshape, Transpose and similar operators: find the axis of the scales in the result."""
    x = quantized.dequantized(node.inputs[0])
    if x is None or x.parameters.block:
        return None
    axis = x.parameters.axis
    if axis is not None:
        axis = _axis_after(node, axis)
        if axis is None:
            return None
    return _plan(node, {0: x}, axis), x.parameters


def _axis_after(node: ir.Node, axis: int) -> int | None:
    if node.op_type == "Transpose":
        perm = attr(node, "perm", None) or tuple(reversed(range(build.rank(node.inputs[0]) or 0)))
        return list(perm).index(axis)
    old, new = (build.static_dims(v) for v in (node.inputs[0], node.outputs[0]))
    return None if old is None or new is None else quantized.axis_after_reshape(old, new, axis)


def _together(*indices: int) -> Rule:
    """Operands with the same parameters; without indices: all operands."""

    def rule(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
        found = {i: quantized.dequantized(node.inputs[i]) for i in indices or range(len(node.inputs))}
        given = {i: x for i, x in found.items() if x is not None and x.parameters.plain}
        if not given or len(given) < len(found):
            return None
        first = next(iter(given.values())).parameters
        if not all(quantized.same(x.parameters, first) for x in given.values()):
            return None
        return _plan(node, given), first

    return rule


def _ordered(rule: Rule) -> Rule:
    def checked(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
        found = rule(node, edit)
        return found if found is not None and _positive(found[1]) else None

    return checked


def _max_pool(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
    return None if len(node.outputs) > 1 else _first(node, edit)


def _global_max_pool(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
    """ReduceMax over the spatial axes: ONNX's GlobalMaxPool accepts only floats."""
    found, rank = _first(node, edit), build.rank(node.inputs[0])
    if found is None or rank is None:
        return None
    first = 1 if attr(node, "layout", "NCHW") == "NHWC" else 2
    axes = edit.ints(range(first, first + rank - 2))
    return Plan("ReduceMax", [found[0].inputs[0], axes], {"keepdims": 1}, ""), found[1]


def _resize(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
    outside = attr(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return _first(node, edit) if attr(node, "mode", "nearest") == "nearest" and not outside else None


def _pad(node: ir.Node, edit: Edit) -> tuple[Plan, Parameters] | None:
    found = _first(node, edit)
    if found is None:
        return None
    plan, parameters = found
    if attr(node, "mode", "constant") != "constant":
        return found
    value = node.inputs[2] if len(node.inputs) > 2 else None
    number = 0.0 if value is None else build.scalar(value)
    whole = None if number is None else representable(number, parameters)
    if whole is None:
        return None
    inputs: list[ir.Value | None] = [*plan.inputs, None][: max(3, len(plan.inputs))]
    inputs[2] = edit.const(np.asarray(whole, parameters.dtype.numpy()))
    return plan._replace(inputs=inputs), parameters


_ROWS: Sequence[tuple[str, Rule]] = (
    ("Concat", _together()),
    ("Max Min", _ordered(_together())),
    ("Where", _together(1, 2)),
    ("Resize", _resize),
    ("Pad", _pad),
    ("MaxPool", _ordered(_max_pool)),
    ("GlobalMaxPool", _ordered(_global_max_pool)),
    ("ReduceMax ReduceMin ArgMax ArgMin TopK", _ordered(_first)),
)
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(having("movement"), _first),
    **dict.fromkeys((*having("view"), "Transpose", "Identity"), _any_axis),
    **{op: rule for ops, rule in _ROWS for op in ops.split()},
}
require(RULES, "rules for DequantizeLinear")
