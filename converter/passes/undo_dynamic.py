"""Contractions whose activations are quantised at run time become float ones over dequantised weights.

    QLinearConv(DynamicQuantizeLinear(x), w) -> act(Conv(x, DequantizeLinear(w)) + b)      and QLinearMatMul likewise

A static quantiser starts from this form: it measures ranges itself, and the weights keep their integers' values.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes.channels_last import to_first, to_last, transposed

__all__ = ["contraction", "run"]

_FLOAT_FORM = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}


def run(model: ir.Model) -> int:
    """The number of contractions changed."""
    count = 0
    for node in build.nodes(model):
        if node.domain != build.DOMAIN or node.op_type not in _FLOAT_FORM or _integer(node):
            continue
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        if maker is None or not build.is_op(maker, "DynamicQuantizeLinear", domain=build.DOMAIN):
            continue
        edit = Edit(node)
        edit.replace(contraction(edit, node, maker.inputs[0]))
        if maker.graph is not None and not any(v.uses() for v in maker.outputs):
            maker.graph.remove(maker, safe=True)
        count += 1
    return count


def _integer(node: ir.Node) -> bool:
    return len(node.inputs) > 6 and node.inputs[6] is not None


def contraction(edit: Edit, node: ir.Node, x: ir.Value | None) -> ir.Value:
    """The float form, in ONNX's own operators, of an integer contraction with a float result, over real `x`."""
    op, like = _FLOAT_FORM[node.op_type], node.outputs[0]
    weights, scale, zero = node.inputs[3], node.inputs[4], node.inputs[5]
    bias = node.inputs[8] if len(node.inputs) > 8 else None
    spread = {"axis": 0 if op == "Conv" else -1} if build.rank(scale) else {}
    real = edit.op("DequantizeLinear", [weights, scale, zero], spread, shape=build.dims(weights))
    real.dtype = ir.DataType.FLOAT
    attrs = {k: v for k, v in node.attributes.items() if k not in _OWN}
    if op == "Conv":
        last, rank = attr(node, "layout", "NCHW") == "NHWC", build.rank(x) or 0
        image = transposed(edit, x, to_first(rank)) if last else x
        result = edit.op(op, [image, real, bias] if bias is not None else [image, real], attrs)
        result.type, result.shape = like.type, _moved(like, to_first(rank)) if last else like.shape
        result = transposed(edit, result, to_last(rank)) if last else result
    else:
        if attr(node, "transB", 0):
            real = edit.op("Transpose", [real], {"perm": (1, 0)}, like=real, shape=(build.dims(real) or ())[::-1])
        result = edit.op(op, [x, real], {}, like=like)
        if bias is not None:
            result = edit.op("Add", [result, bias], like=like)
    return _active(edit, node, result)


def _moved(value: ir.Value, perm: tuple[int, ...]) -> ir.Shape | None:
    shape = build.dims(value)
    return None if shape is None else ir.Shape([shape[i] for i in perm])


_OWN = ("layout", "transB", "activation", "activation_min", "activation_max")


def _active(edit: Edit, node: ir.Node, result: ir.Value) -> ir.Value:
    kind = attr(node, "activation", "")
    if kind == "Relu":
        return edit.op("Relu", [result], like=result)
    if kind == "Clip":
        bounds = [edit.scalar_like(attr(node, f"activation_{end}", 0.0), result) for end in ("min", "max")]
        return edit.op("Clip", [result, *bounds], like=result)
    return result
