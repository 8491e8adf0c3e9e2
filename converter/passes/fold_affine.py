"""Fold per-channel scale and shift into the weights of the operator before.

1. BatchNormalization (inference) after Conv, ConvTranspose, Gemm, MatMul with constant weights.
2. Mul, Div, Add, Sub with a constant that varies along the channel axis only, after the same or a BatchNormalization.
3. BatchNormalization, and Mul or Add as above, before MatMuls with constant weights, if nothing else reads its result.

Quantised weights keep their integers: a positive factor is folded into the scales, the shift into a float bias.
Exact up to rounding: new weights are computed in float64 and rounded once. The operator before must have no other
reader, no residual operand and no activation yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import quantized
from converter.passes.quantized import Stored

__all__ = ["run", "run_standard"]


class Affine(NamedTuple):
    """y = x * scale + shift; each is a scalar array or has one number per channel."""

    x: ir.Value
    scale: np.ndarray
    shift: np.ndarray


_ONE, _ZERO = np.ones(()), np.zeros(())
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def run(model: ir.Model) -> int:
    """Fold until nothing more can be folded; the number of operators removed."""
    count = 0
    for node in build.nodes(model):
        if node.graph is not None:
            count += _fold(node) or _fold_ahead(node)
    return count


def run_standard(model: ir.Model) -> int:
    """Like `run`, but only into Conv, ConvTranspose and Gemm, so that every operator stays ONNX's own."""
    return sum(_fold(node) for node in build.nodes(model) if node.graph is not None and not _after_matmul(node))


def _after_matmul(node: ir.Node) -> bool:
    """Whether a MatMul produces one of the node's operands: folding into it may need our operator with a bias."""
    return any(v is not None and build.is_op(v.producer(), "MatMul") for v in node.inputs)


def _fold(node: ir.Node) -> bool:
    for side in range(min(2, len(node.inputs))):
        x = node.inputs[side]
        producer = x.producer() if x is not None else None
        if x is None or producer is None or build.sole_use(x) is not node or x.dtype not in _FLOATS:
            continue
        fold = _FOLDS.get(producer.op_type)
        if fold is None or producer.domain not in ("", build.DOMAIN) or attr(producer, "activation", ""):
            continue
        residual = producer.op_type != "BatchNormalization" and len(producer.inputs) > 3
        if residual and producer.inputs[3] is not None:
            continue
        axis = 1 if "Conv" in producer.op_type or _is_planar(producer) else -1
        affine = _affine(node, side, x, axis)
        weight = quantized.stored(producer.inputs[1])
        if affine is None:
            continue
        if _into_steps(producer, weight, affine, node) if weight is not None else fold(producer, affine, node):
            return True
    return False


def _affine(node: ir.Node, side: int, x: ir.Value, axis: int) -> Affine | None:
    if build.is_op(node, "BatchNormalization"):
        return _batch_norm(node, x, axis) if side == 0 else None
    if not build.is_op(node, "Mul", "Add", "Sub", "Div") or not build.same_dims(x, node.outputs[0]):
        return None
    vector = _channel_vector(node.inputs[1 - side], x, axis)
    if vector is None:
        return None
    return _ALGEBRA[node.op_type, side](x, vector)


_ALGEBRA: Mapping[tuple[str, int], Callable[[ir.Value, np.ndarray], Affine | None]] = {
    ("Mul", 0): lambda x, c: Affine(x, c, _ZERO),
    ("Mul", 1): lambda x, c: Affine(x, c, _ZERO),
    ("Add", 0): lambda x, c: Affine(x, _ONE, c),
    ("Add", 1): lambda x, c: Affine(x, _ONE, c),
    ("Sub", 0): lambda x, c: Affine(x, _ONE, -c),  # x - c
    ("Sub", 1): lambda x, c: Affine(x, -_ONE, c),  # c - x
    ("Div", 0): lambda x, c: Affine(x, 1 / c, _ZERO) if (c != 0).all() else None,  # x / c
    ("Div", 1): lambda x, c: None,
}


def _batch_norm(node: ir.Node, x: ir.Value, axis: int, last: bool = False) -> Affine | None:
    rank = build.rank(x)
    if attr(node, "training_mode", 0) or rank is None or (not last and (axis % rank) != 1):
        return None
    found = [build.array(v) for v in node.inputs[1:5]]
    if any(a is None for a in found):
        return None
    scale, bias, mean, var = (np.asarray(a, np.float64) for a in found)
    factor = scale / np.sqrt(var + attr(node, "epsilon", 1e-5))
    return Affine(x, factor, bias - mean * factor)


def _channel_vector(value: ir.Value | None, x: ir.Value, axis: int) -> np.ndarray | None:
    """A constant as one number or one per channel; None if it varies along another axis."""
    constant, rank = build.array(value), build.rank(x)
    if constant is None or rank is None or constant.ndim > rank:
        return None
    constant = constant.astype(np.float64).reshape((1,) * (rank - constant.ndim) + constant.shape)
    others = [n for i, n in enumerate(constant.shape) if i != axis % rank]
    if any(n != 1 for n in others):
        return None
    return constant.reshape(()) if constant.size == 1 else constant.reshape(-1)


def _replace_weights(producer: ir.Node, node: ir.Node, weight: np.ndarray, bias: np.ndarray | None) -> bool:
    edit = Edit(producer)
    old = producer.inputs[1]
    assert old is not None and old.dtype is not None
    dtype = old.dtype.numpy()
    producer.replace_input_with(1, edit.const(weight.astype(dtype), hint=old.name or ""))
    if bias is not None:
        if len(producer.inputs) < 3:
            producer.resize_inputs(3)
        producer.replace_input_with(2, edit.const(bias.astype(dtype), hint=f"{old.name}.bias"))
    Edit(node).replace(producer.outputs[0])
    return True


def _new_bias(producer: ir.Node, affine: Affine, size: int) -> tuple[bool, np.ndarray | None]:
    """(whether the present bias is constant or absent, the bias afterwards)."""
    old = producer.inputs[2] if len(producer.inputs) > 2 else None
    steps = quantized.stored(old)
    present = build.array(old) if steps is None else steps.values()
    if old is not None and (present is None or present.size not in (1, size)):
        return False, None
    if present is None and not affine.shift.any():
        return True, None
    start = np.zeros(size) if present is None else present.astype(np.float64).reshape(-1)
    return True, np.broadcast_to(start * affine.scale + affine.shift, (size,))


def _into_steps(producer: ir.Node, weight: Stored, affine: Affine, node: ir.Node) -> bool:
    """Quantised weights, one scale for all or one for each result's channel."""
    axis = {"Conv": 0, "ConvTranspose": 1}.get(producer.op_type, 0 if attr(producer, "transB", 0) else 1)
    plain = all(attr(producer, name, 1) == 1 for name in ("alpha", "beta"))
    grouped = producer.op_type == "ConvTranspose" and attr(producer, "group", 1) != 1
    if not plain or grouped or weight.block or weight.q.ndim < 2 or weight.axis not in (None, axis):
        return False
    size = weight.q.shape[axis]
    fits = all(a.size in (1, size) for a in (affine.scale, affine.shift))
    if not fits or (affine.scale <= 0).any() or ("MatMul" in producer.op_type and weight.q.ndim != 2):
        return False
    constant, bias = _new_bias(producer, affine, size)
    if not constant:
        return False
    scale = np.broadcast_to(weight.scale.astype(np.float64) * affine.scale, (size,)).astype(np.float32)
    zero = None if weight.zero is None else np.broadcast_to(weight.zero, (size,))
    if bias is not None:
        producer = _with_bias_operand(producer)
    edit = Edit(producer)
    producer.replace_input_with(1, replace(weight, scale=scale, zero=zero, axis=axis).emit(edit))
    if bias is not None:
        producer.resize_inputs(max(3, len(producer.inputs)))
        producer.replace_input_with(2, edit.const(bias.astype(np.float32), hint=f"{weight.name}.bias"))
    Edit(node).replace(producer.outputs[0])
    return True


def _with_bias_operand(producer: ir.Node) -> ir.Node:
    """The node, or our MatMul in place of ONNX's, which has no bias."""
    if not build.is_op(producer, "MatMul"):
        return producer
    edit = Edit(producer)
    wider = edit.op("MatMul", list(producer.inputs), domain=build.DOMAIN, like=producer.outputs[0])
    edit.replace(wider)
    made = wider.producer()
    assert made is not None
    return made


def _conv(producer: ir.Node, affine: Affine, node: ir.Node) -> bool:
    weight = build.array(producer.inputs[1])
    if weight is None or affine.scale.size not in (1, weight.shape[0]) or affine.shift.size not in (1, weight.shape[0]):
        return False
    constant, bias = _new_bias(producer, affine, weight.shape[0])
    if not constant:
        return False
    scale = affine.scale if affine.scale.ndim == 0 else affine.scale.reshape(-1, *[1] * (weight.ndim - 1))
    return _replace_weights(producer, node, weight * scale, bias)


def _conv_transpose(producer: ir.Node, affine: Affine, node: ir.Node) -> bool:
    weight = build.array(producer.inputs[1])
    if weight is None:
        return False
    group = attr(producer, "group", 1)
    channels = weight.shape[1] * group
    if affine.scale.size not in (1, channels) or affine.shift.size not in (1, channels):
        return False
    constant, bias = _new_bias(producer, affine, channels)
    if not constant:
        return False
    scale = affine.scale
    if scale.ndim:
        scale = np.repeat(scale.reshape(group, weight.shape[1]), weight.shape[0] // group, axis=0)
        scale = scale.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    return _replace_weights(producer, node, weight * scale, bias)


def _gemm(producer: ir.Node, affine: Affine, node: ir.Node) -> bool:
    if attr(producer, "alpha", 1.0) != 1.0 or attr(producer, "beta", 1.0) != 1.0:
        return False
    made = _product(producer, affine)
    return made is not None and _replace_weights(producer, node, *made)


def _matmul(producer: ir.Node, affine: Affine, node: ir.Node) -> bool:
    """Also turns a plain MatMul with a shift into ours with a bias."""
    rank = build.rank(producer.inputs[0])
    made = _product(producer, affine) if rank is not None and rank >= 2 else None
    if made is None:
        return False
    if made[1] is not None:
        producer = _with_bias_operand(producer)
    return _replace_weights(producer, node, *made)


def _product(producer: ir.Node, affine: Affine) -> tuple[np.ndarray, np.ndarray | None] | None:
    """A matrix product's constant weights and bias after folding the map; None if it cannot be folded."""
    weight = build.array(producer.inputs[1])
    if weight is None or weight.ndim != 2:
        return None
    across = bool(attr(producer, "transB", 0))
    size = weight.shape[0 if across else 1]
    if affine.scale.size not in (1, size) or affine.shift.size not in (1, size):
        return None
    constant, bias = _new_bias(producer, affine, size)
    if not constant:
        return None
    return weight * (affine.scale.reshape(-1, 1) if across and affine.scale.ndim else affine.scale), bias


def _fold_ahead(node: ir.Node) -> bool:
    """(x * scale + shift) @ w = x @ (scale * w) + shift @ w"""
    result = node.outputs[0]
    readers = [use.node for use in result.uses()]
    if (
        not readers
        or result.is_graph_output()
        or node.op_type not in ("BatchNormalization", "Mul", "Add", "Sub", "Div")
    ):
        return False
    if not all(_takes_affine(reader, result) for reader in readers):
        return False
    affine = _affine_anywhere(node)
    if affine is None:
        return False
    for reader in readers:
        _absorb(reader, affine)
    node.graph.remove(node, safe=True)  # type: ignore[union-attr]
    return True


def _affine_anywhere(node: ir.Node) -> Affine | None:
    """The node as a map over the last axis."""
    for side in range(2 if node.domain == "" else 1):
        x = node.inputs[side]
        if x is None or x.dtype not in _FLOATS or build.array(x) is not None:
            continue
        if node.op_type == "BatchNormalization":
            last = attr(node, "layout", "NCHW") == "NHWC" or build.rank(x) == 2
            return _batch_norm(node, x, 1 if build.rank(x) == 2 else -1, last) if side == 0 and last else None
        found = _affine(node, side, x, -1)
        if found is not None:
            return found
    return None


def _takes_affine(reader: ir.Node, value: ir.Value) -> bool:
    if reader.op_type != "MatMul" or reader.domain not in ("", build.DOMAIN) or attr(reader, "transA", 0):
        return False
    weight, bias = build.array(reader.inputs[1]), reader.inputs[2] if len(reader.inputs) > 2 else None
    if (
        reader.inputs[0] is not value
        or any(v is value for v in reader.inputs[1:])
        or weight is None
        or weight.ndim != 2
    ):
        return False
    if (build.rank(value) or 0) < 2:
        return False
    known = build.array(bias)
    return bias is None or (known is not None and known.ndim == 1)


def _absorb(reader: ir.Node, affine: Affine) -> None:
    weight, bias = build.array(reader.inputs[1]), build.array(reader.inputs[2]) if len(reader.inputs) > 2 else None
    assert weight is not None
    across = bool(attr(reader, "transB", 0))
    rows = (weight.T if across else weight).astype(np.float64)
    scale, shift = (np.broadcast_to(v, (rows.shape[0],)) for v in (affine.scale, affine.shift))
    moved, added = rows * scale[:, None], shift @ rows + (0 if bias is None else bias)
    edit, title = Edit(reader), reader.inputs[1].name if reader.inputs[1] is not None else None
    inputs = list(reader.inputs)
    inputs[:2] = [affine.x, edit.const((moved.T if across else moved).astype(weight.dtype), hint=title or "")]
    attrs = dict(reader.attributes)
    domain = reader.domain
    if affine.shift.any():
        inputs = [*inputs, None][: max(3, len(inputs))]
        inputs[2] = edit.const(added.astype(weight.dtype), hint=f"{title}.bias")
        domain = build.DOMAIN
    edit.replace(edit.op("MatMul", inputs, attrs, domain=domain, like=reader.outputs[0]))


def _is_planar(producer: ir.Node) -> bool:
    """Whether it is a BatchNormalization over axis 1."""
    return producer.op_type == "BatchNormalization" and attr(producer, "layout", "NCHW") == "NCHW"


def _batch_normalization(producer: ir.Node, affine: Affine, node: ir.Node) -> bool:
    scale, bias = (build.array(v) for v in producer.inputs[1:3])
    if scale is None or bias is None or attr(producer, "training_mode", 0):
        return False
    if affine.scale.size not in (1, scale.size) or affine.shift.size not in (1, scale.size):
        return False
    edit = Edit(producer)
    producer.replace_input_with(1, edit.const((scale * affine.scale).astype(scale.dtype)))
    producer.replace_input_with(2, edit.const((bias * affine.scale + affine.shift).astype(bias.dtype)))
    Edit(node).replace(producer.outputs[0])
    return True


_FOLDS: Mapping[str, Callable[[ir.Node, Affine, ir.Node], bool]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_normalization,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
