"""Integer operators of source models become standard ONNX in QDQ form.

1. QLinearConv, QLinearMatMul and onnxruntime's QLinear* and QGemm: the float operator between DequantizeLinear and
   QuantizeLinear.
2. ConvInteger and MatMulInteger whose sums, perhaps with an integer bias, are only cast to float and multiplied by both
   operands' scales; and onnxruntime's MatMulIntegerToFloat and DynamicQuantizeMatMul: the float operator on
   DequantizeLinears. Any other ConvInteger and MatMulInteger stays. If each image or row has its own range, which
   ONNX's DequantizeLinear cannot express: our QLinearConv and QLinearMatMul with a float result.
3. onnxruntime's QuantizeLinear and DequantizeLinear, which are older than ONNX's 16 and 4 bits: ONNX's.

`ENTRIES` is the table. Operators and meaning: ONNX's operator documentation and onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.channels_last import to_first, to_last
from converter.passes.rewrite import Entry, MissingOperand, by_operator, leading

__all__ = ["CONTRIB", "ENTRIES", "dequantized", "run"]

CONTRIB = "com.microsoft"
"""onnxruntime's domain."""


def run(model: ir.Model) -> int:
    """The number of operators rewritten. Shape inference must run afterwards for the new values."""
    return by_operator(model, ENTRIES)


Value = ir.Value | None


def _flat(edit: Edit, value: Value) -> Value:
    """A constant of one element as a scalar, the form of parameters for a whole tensor."""
    found = build.array(value)
    return edit.const(found.reshape(())) if found is not None and found.size == 1 and found.ndim else value


def dequantized(edit: Edit, q: Value, scale: Value, zero: Value, axis: int = 1) -> ir.Value:
    """The numbers that integers represent; `axis` is used if the scale is a vector."""
    if q is None or scale is None:
        raise MissingOperand
    vector = build.rank(scale) not in (0, None) and (build.static_dims(scale) or (2,)) != (1,)
    if vector and zero is not None and build.rank(zero) == 0:
        spread = build.array(zero)
        size = build.static_dims(scale)
        if spread is not None and size is not None:
            zero = edit.const(np.full(size, spread))
    result = edit.op("DequantizeLinear", [q, _flat(edit, scale), _flat(edit, zero)], {"axis": axis} if vector else {})
    result.type = ir.TensorType(scale.dtype or ir.DataType.FLOAT)
    if q.shape is not None:
        result.shape = ir.Shape(build.dims(q) or ())
    return result


def _integers(edit: Edit, x: ir.Value, scale: Value, zero: Value, like: ir.Value) -> ir.Value:
    return edit.op("QuantizeLinear", [x, _flat(edit, scale), _flat(edit, zero)], like=like)


def _product(edit: Edit, a: Value, b: Value) -> ir.Value:
    """The scale of a product of integers."""
    left, right = build.array(a), build.array(b)
    assert a is not None and b is not None
    if left is not None and right is not None:
        made = (left.reshape(-1) if left.size > 1 else left.reshape(())) * (
            right if right.size > 1 else right.reshape(())
        )
        return edit.const(made.astype(left.dtype))
    return edit.op("Mul", [a, b], like=b)


def _window(node: ir.Node) -> dict[str, object]:
    return {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset", "activation")}


def _qlinear_conv(node: ir.Node) -> bool:
    last, rank = attr(node, "channels_last", 0), build.rank(node.inputs[3])
    if last and rank is None:
        return False
    edit = Edit(node)
    x, xs, xz, w, ws, wz, ys, yz = leading(node, 8)
    real = dequantized(edit, x, xs, xz)
    if last:
        real = edit.op("Transpose", [real], {"perm": to_first(rank or 0)})
    operands = [real, dequantized(edit, w, ws, wz, axis=0)]
    bias = operand(node, 8)
    if bias is not None:
        operands.append(dequantized(edit, bias, _product(edit, xs, ws), None, axis=0))
    made = edit.op("Conv", operands, _window(node))
    if last:
        made = edit.op("Transpose", [made], {"perm": to_last(rank or 0)})
    edit.replace(_integers(edit, made, ys, yz, node.outputs[0]))
    return True


def _qlinear_matmul(node: ir.Node) -> bool:
    edit = Edit(node)
    a, a_scale, a_zero, b, b_scale, b_zero, ys, yz = leading(node, 8)
    left, right = dequantized(edit, a, a_scale, a_zero, axis=-2), dequantized(edit, b, b_scale, b_zero, axis=-1)
    edit.replace(_integers(edit, edit.op("MatMul", [left, right]), ys, yz, node.outputs[0]))
    return True


def _q_gemm(node: ir.Node) -> bool:
    edit = Edit(node)
    a, a_scale, a_zero, b, b_scale, b_zero = leading(node, 6)
    turned, alpha = attr(node, "transB", 0), attr(node, "alpha", 1.0)
    operands = [dequantized(edit, a, a_scale, a_zero), dequantized(edit, b, b_scale, b_zero, axis=0 if turned else 1)]
    bias, ys, yz = (operand(node, i) for i in (6, 7, 8))
    if bias is not None:
        step = _product(edit, a_scale, b_scale)
        if alpha != 1.0:
            step = edit.op("Mul", [step, edit.const(np.float32(alpha))], like=step)
        operands.append(dequantized(edit, bias, step, None, axis=(build.rank(bias) or 1) - 1))
    attrs = {"alpha": alpha, "transA": attr(node, "transA", 0), "transB": turned}
    made = edit.op("Gemm", operands, attrs)
    edit.replace(made if ys is None else _integers(edit, made, ys, yz, node.outputs[0]))
    return True


def _binary(op: str) -> Entry:
    """A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero"""

    def entry(node: ir.Node) -> bool:
        edit, v = Edit(node), node.inputs
        made = edit.op(op, [dequantized(edit, v[0], v[1], v[2]), dequantized(edit, v[3], v[4], v[5])])
        edit.replace(_integers(edit, made, v[6], operand(node, 7), node.outputs[0]))
        return True

    return entry


def _unary(op: str, *kept: str) -> Entry:
    """X, X_scale, X_zero, Y_scale, Y_zero; `kept`: its attributes"""

    def entry(node: ir.Node) -> bool:
        edit = Edit(node)
        x = dequantized(edit, node.inputs[0], node.inputs[1], node.inputs[2])
        made = edit.op(op, [x], {name: a for name, a in node.attributes.items() if name in kept})
        edit.replace(_integers(edit, made, node.inputs[3], operand(node, 4), node.outputs[0]))
        return True

    return entry


_AVERAGE = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _pool(op: str, *kept: str) -> Entry:
    def entry(node: ir.Node) -> bool:
        last, rank = attr(node, "channels_last", 0), build.rank(node.inputs[0])
        if last and rank is None:
            return False
        edit = Edit(node)
        x = dequantized(edit, node.inputs[0], node.inputs[1], node.inputs[2])
        if last:
            x = edit.op("Transpose", [x], {"perm": to_first(rank or 0)})
        made = edit.op(op, [x], {name: a for name, a in node.attributes.items() if name in kept})
        if last:
            made = edit.op("Transpose", [made], {"perm": to_last(rank or 0)})
        edit.replace(_integers(edit, made, node.inputs[3], operand(node, 4), node.outputs[0]))
        return True

    return entry


_PER_AXIS = 13
"""The opset from which Softmax is over one axis; before, over all axes from `axis` on."""


def _softmax(node: ir.Node) -> bool:
    edit = Edit(node)
    x = dequantized(edit, node.inputs[0], node.inputs[1], node.inputs[2])
    if attr(node, "opset", _PER_AXIS) >= _PER_AXIS:
        made = edit.op("Softmax", [x], {"axis": attr(node, "axis", -1)})
    else:
        flat = edit.op("Flatten", [x], {"axis": attr(node, "axis", 1)})
        made = edit.op("Reshape", [edit.op("Softmax", [flat], {"axis": -1}), edit.op("Shape", [x])])
    edit.replace(_integers(edit, made, node.inputs[3], operand(node, 4), node.outputs[0]))
    return True


def _reduce_mean(node: ir.Node) -> bool:
    edit = Edit(node)
    x, axes = dequantized(edit, node.inputs[0], node.inputs[1], node.inputs[2]), attr(node, "axes", None)
    operands = [x] if axes is None else [x, edit.ints(axes)]
    made = edit.op("ReduceMean", operands, {"keepdims": attr(node, "keepdims", 1)})
    edit.replace(_integers(edit, made, node.inputs[3], operand(node, 4), node.outputs[0]))
    return True


def _concat(node: ir.Node) -> bool:
    """Y_scale, Y_zero, then x, scale, zero of each operand"""
    edit, rest = Edit(node), node.inputs[2:]
    parts = [dequantized(edit, rest[i], rest[i + 1], rest[i + 2]) for i in range(0, len(rest), 3)]
    made = edit.op("Concat", parts, {"axis": attr(node, "axis", 0)})
    edit.replace(_integers(edit, made, node.inputs[0], node.inputs[1], node.outputs[0]))
    return True


def _where(node: ir.Node) -> bool:
    edit, v = Edit(node), node.inputs
    made = edit.op("Where", [v[0], dequantized(edit, v[1], v[2], v[3]), dequantized(edit, v[4], v[5], v[6])])
    edit.replace(_integers(edit, made, v[7], operand(node, 8), node.outputs[0]))
    return True


def _quantizer(node: ir.Node) -> bool:
    edit = Edit(node)
    scale = node.inputs[1]
    vector = scale is not None and build.rank(scale) not in (0, None) and (build.static_dims(scale) or (2,)) != (1,)
    attrs = {"axis": attr(node, "axis", 1), "block_size": attr(node, "block_size", None)} if vector else {}
    operands = [node.inputs[0], *(_flat(edit, v) for v in node.inputs[1:])]
    edit.replace(edit.op(node.op_type, operands, attrs, like=node.outputs[0]))
    return True


def _with_bias(edit: Edit, product: ir.Value, bias: Value) -> ir.Value:
    return product if bias is None else edit.op("Add", [product, bias])


def _dynamic_matmul(node: ir.Node) -> bool:
    edit = Edit(node)
    a, b, b_scale, b_zero, bias = (operand(node, i) for i in range(5))
    q, scale, zero = edit.ops("DynamicQuantizeLinear", [a], outputs=3)
    assert a is not None
    for value, dtype, shape in (
        (q, ir.DataType.UINT8, build.dims(a)),
        (scale, ir.DataType.FLOAT, ()),
        (zero, ir.DataType.UINT8, ()),
    ):
        value.type = ir.TensorType(dtype)
        value.shape = None if shape is None else ir.Shape(shape)
    made = edit.op("MatMul", [dequantized(edit, q, scale, zero), dequantized(edit, b, b_scale, b_zero, axis=-1)])
    edit.replace(_with_bias(edit, made, bias))
    return True


def _matmul_to_float(node: ir.Node) -> bool:
    edit = Edit(node)
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (operand(node, i) for i in range(7))
    operands = [dequantized(edit, a, a_scale, a_zero, axis=-2), dequantized(edit, b, b_scale, b_zero, axis=-1)]
    made = edit.op("MatMul", operands)
    edit.replace(_with_bias(edit, made, bias))
    return True


def _integer_sums(op: str) -> Entry:
    """Cast(ConvInteger(x, w, x_zero, w_zero) + bias) * x_scale * w_scale"""

    def entry(node: ir.Node) -> bool:
        cast, bias = build.sole_use(node.outputs[0]), None
        if cast is not None and build.is_op(cast, "Add"):
            bias = next(v for v in (*cast.inputs, None) if v is not node.outputs[0])
            cast = build.sole_use(cast.outputs[0])
        if cast is None or not build.is_op(cast, "Cast") or attr(cast, "to", 0) != ir.DataType.FLOAT.value:
            return False
        found = _scales(cast, _scale_beside(node.inputs[0]))
        if found is None:
            return False
        last, left, right = found
        edit = Edit(last)
        x_zero, w_zero = operand(node, 2), operand(node, 3)
        conv = op == "Conv"
        step = _vector(edit, right, node.inputs[1], conv)
        if step is None:
            return False
        if build.rank(left):
            operands = [node.inputs[0], left, x_zero or _zero_like(edit, node.inputs[0]), node.inputs[1], step]
            operands.append(w_zero or _zero_like(edit, node.inputs[1]))
            made = edit.op(f"QLinear{op}", operands, dict(node.attributes), domain=build.DOMAIN, like=last.outputs[0])
        else:
            real = dequantized(edit, node.inputs[0], left, x_zero)
            operands = [real, dequantized(edit, node.inputs[1], step, w_zero, 0 if conv else -1)]
            made = edit.op(op, operands, dict(node.attributes), like=last.outputs[0])
        if bias is not None:
            units = edit.op("Mul", [left, right])
            shift = edit.op("Mul", [edit.op("Cast", [bias], {"to": int(ir.DataType.FLOAT)}), units])
            made = edit.op("Add", [made, shift], like=last.outputs[0])
        edit.replace(made)
        return True

    return entry


def _zero_like(edit: Edit, q: Value) -> ir.Value:
    assert q is not None and q.dtype is not None
    return edit.const(np.zeros((), q.dtype.numpy()))


def _scale_beside(q: Value) -> Value:
    """The scale that DynamicQuantizeLinear gives beside these integers."""
    maker = q.producer() if q is not None else None
    made = maker is not None and maker.op_type == "DynamicQuantizeLinear" and maker.domain in ("", build.DOMAIN)
    return maker.outputs[1] if made and maker is not None and len(maker.outputs) > 1 else None


def _scales(cast: ir.Node, left: Value) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """The last of the multiplications by both scales, the left operand's and the constant one of the right operand."""
    factors: list[ir.Value] = []
    value = cast.outputs[0]
    while len(factors) < 2:
        node = build.sole_use(value)
        if node is None or not build.is_op(node, "Mul"):
            return None
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        maker = other.producer() if other is not None else None
        pair = [v for v in maker.inputs if v is not None] if maker is not None and build.is_op(maker, "Mul") else []
        factors += pair if left is not None and any(v is left for v in pair) else [v for v in (other,) if v is not None]
        value = node.outputs[0]
    if left is None or len(factors) != 2 or not any(v is left for v in factors):
        return None
    right = factors[1] if factors[0] is left else factors[0]
    last = value.producer()
    return None if last is None or build.array(right) is None else (last, left, right)


def _vector(edit: Edit, scale: ir.Value, weight: Value, conv: bool) -> Value:
    """A constant scale in the form that DequantizeLinear of the weights needs: a scalar, or one number per channel."""
    found, shape = build.array(scale), build.static_dims(weight)
    if found is None or shape is None:
        return None
    if found.size == 1:
        return edit.const(found.reshape(()))
    size = shape[0 if conv else -1]
    where = found.ndim - (len(shape) - 1 if conv else 1)
    along = 0 <= where < found.ndim and found.shape[where] == size == found.size
    return edit.const(found.reshape(-1)) if along else None


def _table(domain: str, rows: Mapping[str, Entry]) -> dict[tuple[str, str], Entry]:
    return {(domain, op): entry for op, entry in rows.items()}


ENTRIES: Mapping[tuple[str, str], Entry] = {
    **_table(
        "",
        {
            "QLinearConv": _qlinear_conv,
            "QLinearMatMul": _qlinear_matmul,
            "ConvInteger": _integer_sums("Conv"),
            "MatMulInteger": _integer_sums("MatMul"),
        },
    ),
    **_table(
        CONTRIB,
        {
            "QLinearConv": _qlinear_conv,
            "QGemm": _q_gemm,
            "QLinearAdd": _binary("Add"),
            "QLinearMul": _binary("Mul"),
            "QLinearSigmoid": _unary("Sigmoid"),
            "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
            "QLinearAveragePool": _pool("AveragePool", *_AVERAGE),
            "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
            "QLinearReduceMean": _reduce_mean,
            "QLinearSoftmax": _softmax,
            "QLinearConcat": _concat,
            "QLinearWhere": _where,
            "QuantizeLinear": _quantizer,
            "DequantizeLinear": _quantizer,
            "DynamicQuantizeMatMul": _dynamic_matmul,
            "MatMulIntegerToFloat": _matmul_to_float,
        },
    ),
}
