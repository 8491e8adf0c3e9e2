"""Attention whose heads are split and merged by Reshape and Transpose takes [batch, length, heads * width] as it is.

Reshape(Transpose(Attention(heads(q), heads(k), heads(v), mask))) -> Attention(q, k, v, mask, q_num_heads, kv_num_heads)
where heads(x) = Transpose(Reshape(x, [batch, length, heads, width]), (0, 2, 1, 3)). ONNX defines the three-dimensional
form as exactly this.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, dims
from converter.passes.sink_transposes import perm_of

__all__ = ["run"]

_SWAP = (0, 2, 1, 3)


def run(model: ir.Model) -> int:
    """The number of Attention operators rewritten."""
    return sum(_fuse(node) for node in build.nodes(model) if node.graph is not None and build.is_op(node, "Reshape"))


def _fuse(node: ir.Node) -> bool:
    merged = node.inputs[0]
    if merged is None or perm_of(merged) != _SWAP or build.sole_use(merged) is not node:
        return False
    turned = merged.producer()
    assert turned is not None and turned.inputs[0] is not None
    result = turned.inputs[0]
    attention = result.producer()
    if not build.is_op(attention, "Attention") or build.sole_use(result) is not turned:
        return False
    assert attention is not None
    if len(attention.outputs) > 1 or any(v is not None for v in attention.inputs[4:]):
        return False
    flat = [_flat(v) for v in attention.inputs[:3]]
    if any(v is None for v in flat) or not _merges(result, node.outputs[0]):
        return False
    heads = [(dims(v) or (0, 0))[1] for v in attention.inputs[:2]]
    edit = Edit(node)
    attrs = {**dict(attention.attributes), "q_num_heads": heads[0], "kv_num_heads": heads[1]}
    edit.replace(edit.op("Attention", [*flat, *attention.inputs[3:]], attrs, like=node.outputs[0]))
    return True


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
    """[b, h, l, d] was turned and flattened to [b, l, h * d]."""
    shape, flat = dims(result), dims(merged)
    if shape is None or flat is None or len(shape) != 4 or len(flat) != 3:
        return False
    batch, heads, length, width = shape
    if not isinstance(heads, int) or not isinstance(width, int):
        return False
    return flat == (batch, length, heads * width) and batch is not None and length is not None
