"""Attention whose heads are split and merged by Reshape and Transpose reads [batch, length, heads * width] directly.

Reshape(Transpose(Attention(heads(q), heads(k), heads(v), mask))) -> Attention(q, k, v, mask, q_num_heads, kv_num_heads)
where heads(x) = Transpose(Reshape(x, [batch, length, heads, width]), (0, 2, 1, 3)). ONNX defines the three-dimensional
form as exactly this. Quantisers between the removed operators, which must all have the same parameters, become one
after them.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, dims
from converter.passes import quantized
from converter.passes.sink_transposes import perm_of

__all__ = ["run"]

_SWAP = (0, 2, 1, 3)


def run(model: ir.Model) -> int:
    """The number of Attention operators rewritten."""
    return sum(_fuse(node) for node in build.nodes(model) if node.graph is not None and build.is_op(node, "Reshape"))


def _fuse(node: ir.Node) -> bool:
    merged, outer = _unquantised(node.inputs[0], node)
    turned = merged.producer() if merged is not None else None
    if merged is None or turned is None or perm_of(merged) != _SWAP:
        return False
    result, inner = _unquantised(turned.inputs[0], turned)
    attention = result.producer() if result is not None else None
    if result is None or attention is None or not build.is_op(attention, "Attention"):
        return False
    steps = outer or inner
    if outer is not None and inner is not None and not quantized.same(outer, inner):
        return False
    if len(attention.outputs) > 1 or any(v is not None for v in attention.inputs[4:]):
        return False
    flat = [_flat(v) for v in attention.inputs[:3]]
    if any(v is None for v in flat) or not _merges(result, node.outputs[0]):
        return False
    heads = [(dims(v) or (0, 0))[1] for v in attention.inputs[:2]]
    edit = Edit(node)
    attrs = {**dict(attention.attributes), "q_num_heads": heads[0], "kv_num_heads": heads[1]}
    joined = edit.op("Attention", [*flat, *attention.inputs[3:]], attrs, like=node.outputs[0])
    if steps is not None:
        stored = edit.op("QuantizeLinear", [joined, steps.scale, steps.zero_point], shape=dims(joined))
        stored.dtype = steps.dtype
        joined = quantized.dequantize(edit, stored, steps, node.outputs[0])
    edit.replace(joined)
    return True


def _unquantised(value: ir.Value | None, reader: ir.Node) -> tuple[ir.Value | None, quantized.Parameters | None]:
    """The value that only `reader` reads, before a pair of quantisers if there is one, and their parameters.

    (None, None) if it has other readers.
    """
    if value is None or build.sole_use(value) is not reader:
        return None, None
    found = quantized.dequantized(value)
    maker = found.q.producer() if found is not None else None
    given = quantized.quantizer(maker)
    if found is None or maker is None or given is None:
        return value, None
    before = maker.inputs[0]
    alone = before is not None and build.sole_use(before) is maker and build.sole_use(found.q) is value.producer()
    plain = given.plain and given.zero_point is not None and quantized.same(given, found.parameters)
    return (before, given) if alone and plain else (None, None)


def _flat(value: ir.Value | None) -> ir.Value | None:
    """x, for heads(x)."""
    if value is None or perm_of(value) != _SWAP:
        return None
    split = value.producer().inputs[0]  # type: ignore[union-attr]
    reshape = split.producer() if split is not None else None
    if not build.is_op(reshape, "Reshape"):
        return None
    source, shape = reshape.inputs[0], dims(split)  # type: ignore[union-attr]
    flat = dims(source)
    if source is None or shape is None or flat is None or len(flat) != 3 or len(shape) != 4:
        return None
    heads, width = shape[2:]
    if not isinstance(heads, int) or not isinstance(width, int) or flat[2] != heads * width:
        return None
    return source if flat[:2] == shape[:2] and None not in flat[:2] else None


def _merges(result: ir.Value, merged: ir.Value) -> bool:
    """[b, h, l, d] was transposed and flattened to [b, l, h * d]."""
    shape, flat = dims(result), dims(merged)
    if shape is None or flat is None or len(shape) != 4 or len(flat) != 3:
        return False
    batch, heads, length, width = shape
    if not isinstance(heads, int) or not isinstance(width, int):
        return False
    return flat == (batch, length, heads * width) and batch is not None and length is not None
