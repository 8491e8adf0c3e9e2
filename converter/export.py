"""Export: a prepared model, quantised or not, as standard ONNX that any runtime reads.

Operators that our passes extended are rewritten as ONNX's own operators; `STANDARD` has the rule for each operator.
`OLDER` does the same for fused operators that are newer than the opset that most runtimes read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build, spec
from converter.ir.build import Edit, attr
from converter.passes import cleanup
from converter.passes.undo_dynamic import contraction
from lite_runtime.operators import OPERATORS, attributes, require
from lite_runtime.reference.quantize import LEAST_SPAN

__all__ = ["OLDER", "STANDARD", "onnx_bytes", "standardize"]

_HALVE_FROM = 64
"""The fewest elements for which storing a constant in half precision is worth its Cast."""


def onnx_bytes(model: ir.Model, *, halve: bool = False) -> bytes:
    """The model as a serialised `onnx.ModelProto`; `halve` stores large float32 constants as float16. Edits `model`.

    Raises ConvertError naming every operator that ONNX cannot express.
    """
    standardize(model)
    _unfold(model)
    cleanup.unused(model)
    if halve:
        _halve(model)
    spec.check(model, "for export")
    _declare_oldest(model)
    return bytes(ir.serde.serialize_model(model).SerializeToString(deterministic=True))


_OLDEST = 20
"""The opset that runtimes of 2023 read. Also: from 21 on onnxruntime 1.31 inserts QuantizeLinear with `output_dtype`
beside zero points that it then turns to uint8, and refuses its own graph."""
_IR_VERSION = 9
"""ONNX's IR version of that time; version 4 is the first that lists weights separately from inputs."""
_CHANGED = frozenset({"GroupNormalization"})
"""Operators whose meaning, not only types and attributes, changed after opset `_OLDEST`."""


def _declare_oldest(model: ir.Model) -> None:
    """Import opset `_OLDEST` if every node is valid in it with the same meaning."""
    model.ir_version = max(model.ir_version, 10)
    if any(node.domain == "" and node.op_type in _CHANGED for node in build.nodes(model)):
        return
    pinned = model.graph.opset_imports[""]
    model.graph.opset_imports[""] = _OLDEST
    if any(True for _ in spec.violations(model, upgraded=False)) or not _known(model):
        model.graph.opset_imports[""] = pinned
    else:
        model.ir_version = _IR_VERSION


def _known(model: ir.Model) -> bool:
    return all(node.domain != "" or spec.schema("", node.op_type, _OLDEST) is not None for node in build.nodes(model))


def _unfold(model: ir.Model) -> None:
    """Rewrite operators newer than opset `_OLDEST` with older ones where possible."""
    for node in build.nodes(model):
        rule = OLDER.get(node.op_type) if node.domain == "" else None
        if rule is not None:
            edit = Edit(node)
            result = rule(edit, node)
            if result is not None:
                edit.replace(result)


def standardize(model: ir.Model) -> int:
    """Rewrite operators of our domain in place; how many there were. Raises ConvertError for those it cannot."""
    count, foreign = 0, []
    for node in build.nodes(model):
        if node.domain != build.DOMAIN:
            continue
        rule = STANDARD.get(node.op_type)
        if rule is None:
            foreign.append(f"{node.op_type} {node.name!r}")
            continue
        edit = Edit(node)
        edit.replace(*rule(edit, node))
        count += 1
    if foreign:
        raise ConvertError(
            f"standard ONNX has no operator for {', '.join(foreign)}; convert to a bundle instead (--to mslite)"
        )
    model.graph.opset_imports.pop(build.DOMAIN, None)
    return count


Rule = Callable[[Edit, ir.Node], "tuple[ir.Value, ...]"]


def _silu(edit: Edit, node: ir.Node) -> tuple[ir.Value]:
    """x * sigmoid(x)"""
    gate = edit.op("Sigmoid", [node.inputs[0]], like=node.outputs[0])
    return (edit.op("Mul", [node.inputs[0], gate], like=node.outputs[0]),)


def _dynamic_quantize(edit: Edit, node: ir.Node) -> tuple[ir.Value, ...]:
    """One range for each index of the first `kept` axes, widened to hold 0."""
    x, (y, scale, zero) = node.inputs[0], node.outputs
    rank, kept = build.rank(x), attr(node, "kept", 0)
    assert x is not None
    if rank is None:
        raise ConvertError(f"DynamicQuantizeLinear {node.name!r}: the rank of its input is unknown")
    none = edit.scalar_like(0, x)
    axes = edit.ints(range(kept, rank)) if kept < rank else None
    ends = []
    for op, bound in (("ReduceMin", "Min"), ("ReduceMax", "Max")):
        end = edit.op(op, [x, axes], {"keepdims": 1}, like=scale) if axes is not None else x
        ends.append(edit.op(bound, [end, none], like=scale))
    signed = attr(node, "dtype", "uint8") == "int8"
    steps, step, base = (_signed_steps if signed else _unsigned_steps)(edit, x, scale, *ends)
    least, most = (edit.scalar_like(end, x) for end in ((-128, 127) if signed else (0, 255)))
    stored = edit.op("Clip", [edit.op("Add", [edit.op("Round", [steps], like=x), base], like=x), least, most], like=x)
    return (
        edit.op("Cast", [stored], {"to": y.dtype.value if y.dtype else 0}, like=y),
        step,
        edit.op("Cast", [base], {"to": zero.dtype.value if zero.dtype else 0}, like=zero),
    )


def _unsigned_steps(edit: Edit, x: ir.Value, like: ir.Value, low: ir.Value, high: ir.Value) -> tuple[ir.Value, ...]:
    """(x / scale, scale, zero point) as ONNX's operator computes them."""
    none, most = edit.scalar_like(0, x), edit.scalar_like(255, x)
    span = edit.op("Div", [edit.op("Sub", [high, low], like=like), most], like=like)
    empty = edit.op("Equal", [span, none], shape=build.dims(like))
    empty.dtype = ir.DataType.BOOL
    step = edit.op("Where", [empty, edit.scalar_like(1, x), span], like=like)
    offset = edit.op("Round", [edit.op("Div", [edit.op("Neg", [low], like=like), step], like=like)], like=like)
    return edit.op("Div", [x, step], like=x), step, edit.op("Clip", [offset, none, most], like=like)


def _signed_steps(edit: Edit, x: ir.Value, like: ir.Value, low: ir.Value, high: ir.Value) -> tuple[ir.Value, ...]:
    """(x * inverse, scale, zero point) as DynamicQuantizeLinear of int8 computes them."""
    one, least, most = (edit.scalar_like(number, x) for number in (1, -128, 127))
    span = edit.op("Sub", [high, low], like=like)
    empty = edit.op("Less", [span, edit.scalar_like(float(LEAST_SPAN), x)], shape=build.dims(like))
    empty.dtype = ir.DataType.BOOL
    inverse = edit.op("Div", [edit.scalar_like(255, x), span], like=like)
    inverse = edit.op("Where", [empty, one, inverse], like=like)
    begin, end = (edit.op("Mul", [bound, inverse], like=like) for bound in (low, high))
    errors = [edit.op("Add", pair, like=like) for pair in ((least, begin), (most, end))]
    nearer = edit.op("Greater", [edit.op("Add", errors, like=like), edit.scalar_like(0, x)], shape=build.dims(like))
    nearer.dtype = ir.DataType.BOOL
    zeros = [edit.op("Sub", pair, like=like) for pair in ((least, begin), (most, end))]
    zero = edit.op("Clip", [edit.op("Where", [nearer, *zeros], like=like), least, most], like=like)
    step = edit.op("Div", [one, inverse], like=like)
    return edit.op("Mul", [x, inverse], like=x), step, edit.op("Round", [zero], like=like)


def _contraction(edit: Edit, node: ir.Node) -> tuple[ir.Value]:
    """act(op((x - zero) * scale, DequantizeLinear(w)) + b)"""
    x, scale, zero = node.inputs[:3]
    if len(node.inputs) > 6 and node.inputs[6] is not None:
        raise ConvertError(f"{node.op_type} {node.name!r}: export the model before the integer passes")
    shape, parts = build.dims(x), []
    for value in (x, zero):
        assert value is not None
        parts.append(edit.op("Cast", [value], {"to": ir.DataType.FLOAT.value}, like=scale, shape=build.dims(value)))
    centred = edit.op("Sub", parts, like=parts[0])
    return (contraction(edit, node, edit.op("Mul", [centred, scale], like=parts[0], shape=shape)),)


def _as_another(name: str) -> Rule:
    """The operator that the record says computes this one, with this one's defaults."""
    record = OPERATORS[name]

    def rule(edit: Edit, node: ir.Node) -> tuple[ir.Value]:
        attrs = {key: attr(node, key, attribute.default) for key, attribute in attributes(name).items()}
        return (edit.op(record.runs_as, list(node.inputs), attrs, like=node.outputs[0]),)

    return rule


def _padded_boxes(edit: Edit, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The rows and zeros behind them, cut to the greatest possible number; and the number of rows."""
    rows, total = node.outputs[0], (build.dims(node.outputs[0]) or (None,))[0]
    if not isinstance(total, int):
        raise ConvertError(f"NonMaxSuppressionPadded {node.name!r}: how many boxes there are is unknown")
    kept = edit.op("NonMaxSuppression", list(node.inputs), dict(node.attributes), like=rows, shape=[None, 3])
    count = edit.op("Shape", [kept], {"end": 1}, like=node.outputs[1])
    padded = edit.op("Pad", [kept, edit.ints([0, 0, total, 0])], like=rows, shape=[None, 3])
    return edit.op("Slice", [padded, edit.ints([0]), edit.ints([total])], like=rows), count


STANDARD: Mapping[str, Rule] = {
    "NonMaxSuppressionPadded": _padded_boxes,
    **{name: _as_another(name) for name, record in OPERATORS.items() if record.runs_as},
    "Silu": _silu,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearConv": _contraction,
    "QLinearMatMul": _contraction,
}
require(STANDARD, "rules for ONNX's words")


def _attention(edit: Edit, node: ir.Node) -> ir.Value | None:
    """softmax(q kT * scale + mask) v; only with a separate axis of heads, as many key as query heads, and no cache."""
    q, k, v = (build.dims(value) for value in node.inputs[:3])
    plain = len(node.outputs) == 1 and all(value is None for value in node.inputs[4:])
    if not plain or q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or q[1] != k[1]:
        return None
    if set(node.attributes) - {"scale"} or not isinstance(q[3], int) or not isinstance(k[1], int):
        return None
    x, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    if x is None or (mask is not None and (mask.dtype != x.dtype or (build.dims(mask) or (None,))[-1] != k[2])):
        return None
    turned = edit.op("Transpose", [node.inputs[1]], {"perm": (0, 1, 3, 2)}, like=x, shape=(*k[:2], k[3], k[2]))
    scores = edit.op("MatMul", [x, turned], like=x, shape=(*q[:3], k[2]))
    factor = edit.scalar_like(attr(node, "scale", q[3] ** -0.5), x)
    scores = edit.op("Mul", [scores, factor], like=scores)
    if mask is not None:
        scores = edit.op("Add", [scores, mask], like=scores)
    weights = edit.op("Softmax", [scores], {"axis": -1}, like=scores)
    return edit.op("MatMul", [weights, node.inputs[2]], like=node.outputs[0])


def _rms_norm(edit: Edit, node: ir.Node) -> ir.Value | None:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axes."""
    x, rank = node.inputs[0], build.rank(node.inputs[0])
    if x is None or rank is None or x.dtype != ir.DataType.FLOAT or attr(node, "stash_type", 1) != 1:
        return None
    axes = edit.ints(range(attr(node, "axis", -1) % rank, rank))
    square = edit.op("ReduceMean", [edit.op("Mul", [x, x], like=x), axes], {"keepdims": 1})
    square.dtype = x.dtype
    root = edit.op("Sqrt", [edit.op("Add", [square, edit.scalar_like(attr(node, "epsilon", 1e-5), x)], like=square)])
    root.dtype = x.dtype
    return edit.op("Mul", [edit.op("Div", [x, root], like=x), node.inputs[1]], like=node.outputs[0])


def _swish(edit: Edit, node: ir.Node) -> ir.Value:
    """x * sigmoid(alpha * x)"""
    return _gated(edit, node, node.outputs[0])


def _swiglu(edit: Edit, node: ir.Node) -> ir.Value:
    """gate * sigmoid(alpha * gate) * value"""
    return edit.op("Mul", [_gated(edit, node, node.outputs[0]), node.inputs[1]], like=node.outputs[0])


def _gated(edit: Edit, node: ir.Node, like: ir.Value) -> ir.Value:
    x, alpha = node.inputs[0], attr(node, "alpha", 1.0)
    assert x is not None
    scaled = x if alpha == 1 else edit.op("Mul", [x, edit.scalar_like(alpha, x)], like=like)
    return edit.op("Mul", [x, edit.op("Sigmoid", [scaled], like=like)], like=like)


OLDER: Mapping[str, Callable[[Edit, ir.Node], ir.Value | None]] = {
    "Attention": _attention,
    "RMSNormalization": _rms_norm,
    "SwiGLU": _swiglu,
    "Swish": _swish,
}
"""Operators that opset `_OLDEST` lacks; a rule gives None for forms that it has no operators for."""
require(OLDER, "rules for older operators")


def _halve(model: ir.Model) -> None:
    for graph in build.graphs(model):
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < _HALVE_FROM:
                continue
            full = tensor.numpy()
            with np.errstate(over="ignore"):
                half = full.astype(np.float16)
            readers = list(value.uses())
            if not readers or value.is_graph_output() or (np.isfinite(half) != np.isfinite(full)).any():
                continue
            edit = Edit(graph[0])
            wide = edit.op(
                "Cast", [edit.const(half, hint=f"{value.name}.float16")], {"to": ir.DataType.FLOAT.value}, like=value
            )
            for use in readers:
                use.node.replace_input_with(use.idx, wide)
            graph.initializers.pop(value.name or "", None)
