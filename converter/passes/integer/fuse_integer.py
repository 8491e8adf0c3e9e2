"""A float operator between DequantizeLinears and a QuantizeLinear becomes the operator on integers.

1. Q(Conv | ConvTranspose | MatMul | Gemm(DQ(x), DQ(w), bias)), with or without Relu or Clip: QLinearConv,
   QLinearConvTranspose, QLinearMatMul. The bias is int32 (int64 with int16 operands) in units of both scales' product:
   DQ(bias) with exactly these scales is used directly, any other bias is rounded to them.
2. The same if a Q is not the only reader of the result: the operator's float32 result, its bias in float32. Also if
   the bias could make a sum overflow int32, and if the left operand's range is known only at run time
   (DynamicQuantizeLinear).
3. Q(AveragePool | GlobalAveragePool | ReduceMean | Softmax(DQ(x))): the operator with the prefix QLinear.
4. Q(Resize(DQ(x))), linear, with the same parameters on both sides: QLinearResize.
5. Q(Add | Sub | Mul(DQ(a), DQ(b))) of bytes of one type, with or without Relu or Clip: the prefix QLinear; a Sum of
   two as an Add. Longer chains of elementwise operators stay unchanged.

`RULES` is the table: an operator's rule replaces it, or says why not (`refusal`). An operator without a rule stays
float between DequantizeLinear and QuantizeLinear, which the runtime computes in one pass over integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.ir.quantization import ARITHMETIC
from converter.passes import quantized
from converter.passes.fuse_activation import ACTIVATIONS
from converter.passes.quantized import BYTES, Parameters, Quantized
from lite_runtime.reference.qelementwise import multipliers

__all__ = ["RULES", "refusal", "run"]

_INT16 = ir.DataType.INT16
_ACTIVATIONS = BYTES | {_INT16}
_FOUR_BITS = {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}
_INT32 = (1 << 31) - 1
_INT62 = float(1 << 62)
_CLOSE = 1e-6
"""The largest relative difference at which an exporter's product of two scales counts as equal to ours."""


class _Kept(Exception):
    """Why an operator stays float."""


Rule = Callable[[ir.Node], Callable[[], None]]
"""A function that replaces the node by its integer operator; raises `_Kept` without changing anything."""


def run(model: ir.Model) -> int:
    """The number of integer operators created."""
    count = 0
    for node in build.nodes(model):
        rule = RULES.get(node.op_type) if node.domain in ("", build.DOMAIN) else None
        if rule is None or node.graph is None:
            continue
        try:
            rule(node)()
        except _Kept:
            continue
        count += 1
    return count


def refusal(node: ir.Node) -> str | None:
    """Why `run` leaves an operator of `RULES` in float; None for one that it would convert or has no rule for."""
    rule = RULES.get(node.op_type) if node.domain in ("", build.DOMAIN) else None
    if rule is None:
        return None
    try:
        rule(node)
    except _Kept as reason:
        return str(reason)
    return None


def _require(condition: object, why: str) -> None:
    if not condition:
        raise _Kept(why)


# results


def _quantizer_of(node: ir.Node) -> ir.Node | None:
    """The QuantizeLinear with one constant scale that is the only reader of the result."""
    last = build.sole_use(node.outputs[0])
    given = quantized.quantizer(last)
    plain = given is not None and given.plain and given.dtype in _ACTIVATIONS
    return last if plain and given is not None and given.scales is not None and given.zeros is not None else None


def _result(node: ir.Node) -> tuple[ir.Node, Parameters]:
    last = _quantizer_of(node)
    given = quantized.quantizer(last)
    if last is None or given is None:
        raise _Kept("its result is not quantised to 8 or 16 bits with one scale, or is also read as float")
    return last, given


def _one_activation(node: ir.Node, dtypes: frozenset[ir.DataType] = _ACTIVATIONS) -> Quantized:
    found = quantized.dequantized(node.inputs[0])
    if found is None:
        raise _Kept("its input is not quantised")
    _require(found.parameters.plain, "its input has a scale for every channel")
    _require(found.parameters.dtype in dtypes, f"its input is {found.parameters.dtype.name.lower()}")
    return found


def _operands(edit: Edit, parameters: Parameters) -> tuple[ir.Value, ir.Value]:
    """Scale and zero point as scalars."""
    scale, zero = parameters.scales, parameters.zeros
    return (
        parameters.scale if scale is None else edit.const(scale, hint=parameters.scale.name or ""),
        _zero(edit, parameters, zero),
    )


def _zero(edit: Edit, parameters: Parameters, zero: np.ndarray | None) -> ir.Value:
    if zero is None:
        assert parameters.zero_point is not None
        return parameters.zero_point
    title = parameters.zero_point.name if parameters.zero_point is not None else None
    return edit.const(zero.astype(parameters.dtype.numpy()), hint=title or "")


# means, softmax, resize


def _mean(*attrs: str) -> Rule:
    """An operator with one image, the other operands kept."""

    def rule(node: ir.Node) -> Callable[[], None]:
        x = _one_activation(node)
        last, y = _result(node)
        _require(x.parameters.scales is not None, "its input's scale is known only at run time")

        def build_it() -> None:
            edit = Edit(last)
            inputs = [x.q, *_operands(edit, x.parameters), *_operands(edit, y), *node.inputs[1:]]
            kept = {name: a for name, a in node.attributes.items() if name in attrs}
            _finish(edit, node, f"QLinear{node.op_type}", inputs, kept)

        return build_it

    return rule


def _softmax(node: ir.Node) -> Callable[[], None]:
    _one_activation(node, BYTES)
    y = _result(node)[1]
    _require(y.dtype in BYTES, f"its result is {y.dtype.name.lower()}, not int8 or uint8")
    return _mean("axis")(node)


def _resize(node: ir.Node) -> Callable[[], None]:
    x = _one_activation(node, BYTES)
    _require(attr(node, "mode", "nearest") == "linear", f"it resizes by mode {attr(node, 'mode', 'nearest')}")
    outside = attr(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    _require(not outside and not attr(node, "antialias", 0), "it crops or smooths while it resizes")
    last, y = _result(node)
    _require(quantized.same(x.parameters, y), "its result is quantised differently from its input")

    def build_it() -> None:
        _finish(Edit(last), node, "QLinearResize", [x.q, *node.inputs[1:]], dict(node.attributes))

    return build_it


# sums and products of two tensors


def _pair(node: ir.Node, op: str = "") -> Callable[[], None]:
    """`op`: the operator's own name by default."""
    op = op or node.op_type
    a, b = (_byte_operand(value) for value in node.inputs)
    middle = build.sole_use(node.outputs[0])
    bounded = (
        ACTIVATIONS[middle.op_type](middle) if middle is not None and build.is_op(middle, "Relu", "Clip") else None
    )
    end = middle if bounded is not None and middle is not None else node
    last, y = _result(end)
    _require(a.parameters.dtype == b.parameters.dtype == y.dtype, "its operands and result are of different types")
    scales = [p.scales for p in (a.parameters, b.parameters, y)]
    _require(all(s is not None for s in scales), "its scales are known only at run time")
    _require(op == "Mul" or multipliers(*(float(s) for s in scales if s is not None)), "its scales are too far apart")

    def build_it() -> None:
        edit = Edit(last)
        inputs: list[ir.Value | None] = [
            a.q,
            *_operands(edit, a.parameters),
            b.q,
            *_operands(edit, b.parameters),
            *_operands(edit, y),
        ]
        end.metadata_props.update(node.metadata_props)
        _finish(edit, end, f"QLinear{op}", inputs, bounded or {})
        if end is not node and node.graph is not None:
            node.graph.remove(node, safe=True)

    return build_it


def _sum(node: ir.Node) -> Callable[[], None]:
    _require(len(node.inputs) == 2, "a sum of more or fewer than two operands")
    return _pair(node, "Add")


def _byte_operand(value: ir.Value | None) -> Quantized:
    found = quantized.dequantized(value)
    if found is None:
        raise _Kept("elementwise on float operands: runs in one pass with its neighbours")
    _require(found.parameters.plain and found.parameters.dtype in BYTES, "its operands are not bytes with one scale")
    return found


def _finish(edit: Edit, node: ir.Node, op: str, inputs: list[ir.Value | None], attrs: Mapping[str, Any]) -> None:
    """Replace the QuantizeLinear after the operator by the operator on integers."""
    last = edit.node
    title = edit.op(op, inputs, attrs, domain=build.DOMAIN, like=last.outputs[0])
    made = title.producer()
    assert made is not None and node.graph is not None
    made.metadata_props.update(node.metadata_props)
    edit.replace(title)
    if node is not last:
        node.graph.remove(node, safe=True)


# contractions


@dataclass(frozen=True)
class _Form:
    """A contraction's layout: the axis of its weights' output channels, and the name of its integer operator."""

    op: str
    channels: int
    """The axis of the weights in memory that corresponds to result channels."""
    attrs: Mapping[str, ir.Attr | int | None]


def _conv_form(node: ir.Node) -> _Form:
    return _Form("QLinearConv", 0, dict(node.attributes))


def _conv_transpose_form(node: ir.Node) -> _Form:
    """Axis 1 has the channels of a group; of a depthwise operator axis 0 has all of them."""
    found = quantized.dequantized(node.inputs[1])
    own = quantized.depthwise_transposed(node) and found is not None and found.parameters.axis == 0
    along = 0 if own else 1
    return _Form("QLinearConvTranspose", along, dict(node.attributes))


def _matmul_form(node: ir.Node) -> _Form:
    """MatMul, ours with its flags, or Gemm without factors."""
    turned = attr(node, "transB", 0)
    rank = build.rank(node.inputs[1])
    if node.op_type == "Gemm":
        _require(attr(node, "alpha", 1.0) == 1.0 and attr(node, "beta", 1.0) == 1.0, "Gemm has factors")
    if rank is None or rank < 2 or (build.rank(node.inputs[0]) or 0) < 2:
        raise _Kept("one of its operands is a vector, or of unknown rank")
    attrs = {k: a for k, a in node.attributes.items() if k == "transB" or k.startswith("activation")}
    return _Form("QLinearMatMul", rank - 2 if turned else rank - 1, attrs)


_FORMS: Mapping[str, Callable[[ir.Node], _Form]] = {
    "Conv": _conv_form,
    "ConvTranspose": _conv_transpose_form,
    "MatMul": _matmul_form,
    "Gemm": _matmul_form,
}


def _contraction(node: ir.Node) -> Callable[[], None]:
    form = _FORMS[node.op_type](node)
    x, w = _left(node), _right(node, form)
    narrow = x.parameters.dtype != _INT16
    _require(narrow or w.parameters.dtype in (ir.DataType.INT8, ir.DataType.INT4), "16-bit inputs need int8 weights")
    _require(len(node.inputs) < 4 or node.inputs[3] is None, "it adds another tensor")
    _require(attr(node, "activation", "") in ("", "Relu", "Clip"), "its activation has no integer form")
    reach = _reach(node, x, w, form)
    _require(not narrow or reach is None or (reach <= _INT32).all(), "its sums could leave 32 bits")
    bias = _bias(node)
    last = _quantizer_of(node) if x.parameters.scales is not None else None
    whole = _whole_bias(bias, x, w, form, node, reach) if last is not None else None
    integer = last is not None and (bias is None or whole is not None)

    def build_it() -> None:
        edit = Edit(last if integer and last is not None else node)
        result: list[ir.Value | None] = [None, None]
        if integer:
            given = quantized.quantizer(last)
            assert given is not None
            result = [*_operands(edit, given)]
        added = whole if integer else bias
        left = _turned(edit, x.q) if attr(node, "transA", 0) else x.q
        inputs = [left, *_operands(edit, x.parameters), *_weights(edit, w, form, attr(node, "group", 1)), *result]
        if added is not None:
            title = node.inputs[2].name if node.inputs[2] is not None else None
            inputs.append(added if isinstance(added, ir.Value) else edit.const(added, hint=title or ""))
        while inputs[-1] is None:
            inputs.pop()
        _finish(edit, node, form.op, inputs, form.attrs)

    return build_it


def _as_litert(node: ir.Node) -> bool:
    return node.graph is not None and node.graph.meta.get(ARITHMETIC) == "litert"


def _turned(edit: Edit, q: ir.Value) -> ir.Value:
    """With its last two axes swapped."""
    shape, axes = build.dims(q), list(range(build.rank(q) or 0))
    perm = [*axes[:-2], axes[-1], axes[-2]]
    return edit.op("Transpose", [q], {"perm": perm}, like=q, shape=None if shape is None else [shape[p] for p in perm])


def _left(node: ir.Node) -> Quantized:
    found = quantized.dequantized(node.inputs[0])
    if found is None:
        raise _Kept("its input is not quantised")
    _require(found.parameters.plain, "its input has a scale for every channel")
    dtype = found.parameters.dtype
    _require(dtype in _ACTIVATIONS, f"its input is {dtype.name.lower()}, not int8, uint8 or int16")
    return found


def _right(node: ir.Node, form: _Form) -> Quantized:
    found = quantized.dequantized(node.inputs[1])
    if found is None:
        raise _Kept("its weights are not quantised")
    p, constant = found.parameters, build.array(found.q) is not None
    _require(not p.block, "its weights have a scale for every block")
    _require(p.dtype in BYTES or (constant and p.dtype in _FOUR_BITS), f"its weights are {p.dtype.name.lower()}")
    _require(constant or form.op == "QLinearMatMul", "its weights are computed")
    _require(p.axis in (None, form.channels), "its weights have scales along another axis than the result's channels")
    _require(p.scales is not None and p.zeros is not None, "its weights' scale is known only at run time")
    return found


def _per_channel(numbers: np.ndarray, form: _Form, group: int) -> np.ndarray:
    """One number per result channel, from one per channel of the weights' own axis."""
    grouped = form.op == "QLinearConvTranspose" and form.channels == 1
    return np.tile(numbers, group) if numbers.ndim and grouped else numbers


def _weights(edit: Edit, w: Quantized, form: _Form, group: int) -> list[ir.Value | None]:
    p, q = w.parameters, build.array(w.q)
    scale, zero = p.scales, p.zeros
    assert scale is not None and zero is not None
    stored = _FOUR_BITS.get(p.dtype)
    if stored is not None and q is not None:  # 4-bit weights stay 4-bit: `lowering.pack_narrow` packs two per byte
        zero = zero.astype(stored)
    title = w.q.name or ""
    return [
        w.q,
        edit.const(_per_channel(scale, form, group), hint=f"{title}.scale"),
        edit.const(_per_channel(zero, form, group), hint=f"{title}.zero"),
    ]


def _furthest(p: Parameters) -> int:
    """The largest difference of an integer from its zero point."""
    low, high = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127)}.get(p.dtype, (-(1 << 15), (1 << 15) - 1))
    zero = p.zeros
    return high - low if zero is None else max(high - int(zero.min()), int(zero.max()) - low)


def _reach(node: ir.Node, x: Quantized, w: Quantized, form: _Form) -> np.ndarray | None:
    """The largest possible sum of products of each result channel; None if the weights' sizes are unknown."""
    q, zero = build.array(w.q), w.parameters.zeros
    furthest = _furthest(x.parameters)
    if q is None:
        depth = (build.dims(w.q) or (None, None))[-1 if attr(node, "transB", 0) else -2]
        return np.asarray(depth * furthest * _furthest(w.parameters)) if isinstance(depth, int) else None
    assert zero is not None
    along = [-1 if i == form.channels else 1 for i in range(q.ndim)]
    centred = np.abs(q.astype(np.int64) - zero.astype(np.int64).reshape(along if zero.ndim else ()))
    summed = tuple(i for i in range(q.ndim) if i != form.channels)
    if form.op == "QLinearMatMul":
        summed, batch = summed[-1:], tuple(range(q.ndim - 2))
        return np.asarray(centred.sum(summed, keepdims=True).max(batch, initial=0).reshape(-1) * furthest)
    return np.asarray(_per_channel(centred.sum(summed) * furthest, form, attr(node, "group", 1)))


Bias = ir.Value | np.ndarray


def _bias(node: ir.Node) -> Bias | None:
    """In float32: an array where constant, else the value; None when there is none."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    steps, plain = quantized.stored(value), build.array(value)
    found = steps.values() if steps is not None else plain
    first = "Conv" in node.op_type and attr(node, "layout", "NCHW") == "NCHW"
    size = (build.dims(node.outputs[0]) or (None, None))[1 if first else -1]
    if found is None:
        _require(build.rank(value) == 1, "its bias is computed and not a vector")
        return value
    flat = found.reshape(-1).astype(np.float32)
    _require(found.ndim < 2 or found.shape[-1] == found.size, "its bias is not a vector over the result's channels")
    _require(flat.size == 1 or size is None or size == flat.size, "its bias is not a vector over the result's channels")
    return np.broadcast_to(flat, (size,)).copy() if flat.size == 1 and isinstance(size, int) else flat


def _whole_bias(
    bias: Bias | None, x: Quantized, w: Quantized, form: _Form, node: ir.Node, reach: np.ndarray | None
) -> np.ndarray | None:
    """The bias in units of x_scale * w_scale; None if it is computed, or could make a sum overflow 32 bits. LiteRT adds
    the 32 bits that a file has, whatever the sum: its converter saturates biases of channels whose weights are tiny."""
    if bias is None or isinstance(bias, ir.Value):
        return None
    x_scale, w_scale = x.parameters.scales, w.parameters.scales
    assert x_scale is not None and w_scale is not None
    units = (x_scale * _per_channel(w_scale, form, attr(node, "group", 1))).astype(np.float32)
    given = quantized.stored(node.inputs[2])
    centred = given is not None and (given.zero is None or not given.zero.any())
    if given is not None and centred and np.allclose(given.scale, units, rtol=_CLOSE, atol=0):
        whole = np.broadcast_to(given.q.reshape(-1), bias.shape).astype(np.float64)
        if _as_litert(node) and given.q.dtype == np.int32:
            return whole.astype(np.int64 if x.parameters.dtype == _INT16 else np.int32)
    else:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            whole = np.rint(bias.astype(np.float64) / units)
    if x.parameters.dtype == _INT16:
        return whole.astype(np.int64) if (np.abs(whole) < _INT62).all() else None
    fits = (np.abs(whole) + (0 if reach is None else reach) <= _INT32).all()
    return whole.astype(np.int32) if fits else None


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_FORMS, _contraction),
    "AveragePool": _mean(
        "auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "layout", "pads", "strides"
    ),
    "GlobalAveragePool": _mean("layout"),
    "ReduceMean": _mean("keepdims", "noop_with_empty_axes"),
    "Softmax": _softmax,
    "Resize": _resize,
    **dict.fromkeys(("Add", "Sub", "Mul"), _pair),
    "Sum": _sum,
}
