"""Attention operators of onnxruntime (domain com.microsoft) become ONNX's Attention; `contrib` has the other operators.

1. Attention, QAttention and MultiHeadAttention, with masks, a bias on the scores, and earlier keys and values.
2. GroupQueryAttention: rotary embedding, and a cache of keys and values that grows or that new ones are written into.
3. RotaryEmbedding, at given positions or from one position on.

`ENTRIES` is the table. Meaning: onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.qlinear_to_qdq import dequantized
from converter.passes.rewrite import Entry, leading

__all__ = ["ACTIVATIONS", "ENTRIES", "activated", "summed", "used"]

Value = ir.Value | None


def used(node: ir.Node, *indices: int) -> bool:
    """Whether one of these results is read."""
    found = (node.outputs[i] for i in indices if i < len(node.outputs))
    return any(v.uses() or v.is_graph_output() for v in found)


def summed(edit: Edit, *values: Value) -> ir.Value:
    """The sum of the values that are given."""
    total, *rest = (v for v in values if v is not None)
    for value in rest:
        total = edit.op("Add", [total, value])
    return total


ACTIVATIONS = ("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Clip")
"""The fused activations that `activated` knows."""


def activated(edit: Edit, x: ir.Value, name: str, numbers: list[float]) -> ir.Value | None:
    """`x` after a fused activation and its parameters in order; None for an unknown one."""
    if name in ("", "Relu", "Tanh", "Sigmoid"):
        return edit.op(name, [x]) if name else x
    if name == "LeakyRelu":
        return edit.op(name, [x], {"alpha": numbers[0] if numbers else 0.01})
    if name == "HardSigmoid" and len(numbers) in (0, 2):
        alpha, beta = numbers or (0.2, 0.5)
        return edit.op(name, [x], {"alpha": alpha, "beta": beta})
    if name == "Clip" and len(numbers) == 2:
        return edit.op(name, [x, *(edit.scalar_like(n, x) for n in numbers)])
    return None


# self-attention, one product


def _attention(node: ir.Node) -> bool:
    """input, weights, bias, mask, past, bias of the scores"""
    x, weights, bias = node.inputs[0], node.inputs[1], operand(node, 2)
    if operand(node, 6) is not None:
        return False

    def joint(edit: Edit) -> ir.Value:
        return summed(edit, edit.op("MatMul", [x, weights]), bias)

    return _self_attention(node, joint, [operand(node, i) for i in (3, 4, 5)])


def _q_attention(node: ir.Node) -> bool:
    """input, weight, bias, input_scale, weight_scale, mask, input_zero, weight_zero, past"""
    x, weights, bias, x_scale, scale, mask, x_zero, zero, past = (operand(node, i) for i in range(9))

    def joint(edit: Edit) -> ir.Value:
        operands = [dequantized(edit, x, x_scale, x_zero), dequantized(edit, weights, scale, zero, axis=-1)]
        return summed(edit, edit.op("MatMul", operands), bias)

    return _self_attention(node, joint, [mask, past, None])


def _self_attention(node: ir.Node, joint: Callable[[Edit], ir.Value], operands: Sequence[Value]) -> bool:
    """`joint` computes queries, keys and values side by side; operands: mask, past, bias of the scores."""
    mask, past, extra = operands
    x, width = node.inputs[0], build.static_dims(node.inputs[1])
    if x is None:
        return False
    known = width is not None and _known_mask(mask, x) and not (past is not None and build.rank(mask) == 1)
    if not known or width is None or attr(node, "do_rotary", 0) or attr(node, "past_present_share_buffer", 0):
        return False
    sizes = list(attr(node, "qkv_hidden_sizes", ()) or [width[-1] // 3] * 3)
    edit = Edit(node)
    q, k, v = edit.ops("Split", [joint(edit), edit.ints(sizes)], {"axis": -1}, outputs=3)
    earlier = [None if past is None else edit.op("Gather", [past, edit.ints(i)], {"axis": 0}) for i in (0, 1)]
    seen = _visible(edit, node, mask, x, extra)
    y, keys, values = _attended(edit, node, _Parts(q, k, v), seen, earlier, used(node, 1))
    present = None
    if keys is not None and values is not None:
        stacked = [edit.op("Unsqueeze", [part, edit.ints([0])]) for part in (keys, values)]
        present = edit.op("Concat", stacked, {"axis": 0})
    edit.replace(y, present)
    return True


# queries, keys, values


class _Parts(NamedTuple):
    """Queries, keys and values: all [batch, length, heads * size], or all [batch, heads, length, size]."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    rank: int = 3


def _multi_head(node: ir.Node) -> bool:
    """query, key, value, bias, key padding mask, bias of the scores, past key, past value"""
    mask, extra, past = operand(node, 4), operand(node, 5), [operand(node, i) for i in (6, 7)]
    if any(operand(node, i) is not None for i in range(8, len(node.inputs))) or used(node, 3):
        return False
    edit = Edit(node)
    parts = _parts(edit, node)
    if parts is None or not _known_mask(mask, node.inputs[0]):
        return False
    if any(v is not None for v in past) and build.rank(mask) == 1:
        return False
    seen = _visible(edit, node, mask, parts.k, extra)
    edit.replace(*_attended(edit, node, parts, seen, past, used(node, 1, 2)))
    return True


def _parts(edit: Edit, node: ir.Node) -> _Parts | None:
    """The operands of MultiHeadAttention in one of its forms, each with its part of the bias."""
    q, k, v, bias = (operand(node, i) for i in range(4))
    ranks = [build.rank(x) for x in (q, k, v)]
    if ranks == [3, 3, 3]:
        made = [x for x in (q, k, v) if x is not None]
        if bias is not None:
            sizes = [(build.dims(x) or (None,))[-1] for x in made]
            whole = [size for size in sizes if isinstance(size, int)]
            if len(whole) < 3:
                return None
            shares = edit.ops("Split", [bias, edit.ints(whole)], {"axis": 0}, outputs=3)
            made = [edit.op("Add", [x, share]) for x, share in zip(made, shares, strict=True)]
        return _Parts(made[0], made[1], made[2])
    if bias is not None or q is None:
        return None
    if ranks == [3, 4, 4] and k is not None and v is not None:
        return _Parts(_heads(edit, q, int(attr(node, "num_heads", 1))), k, v, 4)
    return None


def _heads(edit: Edit, x: ir.Value, heads: int) -> ir.Value:
    """[batch, length, heads * size] to [batch, heads, length, size]."""
    parts = edit.op("Reshape", [x, edit.ints([0, 0, heads, -1])])
    return edit.op("Transpose", [parts], {"perm": [0, 2, 1, 3]})


def _joined(edit: Edit, y: ir.Value) -> ir.Value:
    """The opposite of `_heads`."""
    turned = edit.op("Transpose", [y], {"perm": [0, 2, 1, 3]})
    return edit.op("Reshape", [turned, edit.ints([0, 0, -1])])


# masks


def _known_mask(mask: Value, x: Value) -> bool:
    """Whether it is absent, the number of keys of each sequence, or a flag for each key or for each query and key."""
    if mask is None:
        return True
    sizes, batch = build.dims(mask), (build.dims(x) or (None,))[0]
    if sizes is None or mask.dtype is None:
        return False
    several = len(sizes) == 1 and isinstance(batch, int) and sizes[0] != batch  # starts too, or sequences end to end
    return len(sizes) in (1, 2, 3) and not several


def _visible(edit: Edit, node: ir.Node, mask: Value, keys: ir.Value, extra: Value) -> Value:
    """What is added to the scores, or booleans [batch, 1, 1 or queries, keys]."""
    allowed = _allowed(edit, mask, keys)
    if allowed is None or extra is None:
        return allowed if extra is None else extra
    hidden = edit.const(float(attr(node, "mask_filter_value", -10000.0)), "float32")
    hidden = edit.op("CastLike", [hidden, extra])
    return edit.op("Add", [extra, edit.op("Where", [allowed, edit.op("CastLike", [edit.const(0.0), extra]), hidden])])


def _allowed(edit: Edit, mask: Value, keys: ir.Value) -> Value:
    """The mask as booleans [batch, 1, 1 or queries, keys]."""
    if mask is None:
        return None
    if build.rank(mask) != 1:
        flags = edit.op("Cast", [mask], {"to": int(ir.DataType.BOOL)})
    else:
        axis = 1 if build.rank(keys) == 3 else 2
        count = edit.op("Squeeze", [edit.op("Shape", [keys], {"start": axis, "end": axis + 1}), edit.ints([0])])
        places = edit.op("Range", [edit.ints(0), count, edit.ints(1)])
        ends = edit.op("Unsqueeze", [edit.op("Cast", [mask], {"to": int(ir.DataType.INT64)}), edit.ints([1])])
        flags = edit.op("Less", [places, ends])
    return edit.op("Unsqueeze", [flags, edit.ints([1] if build.rank(mask) == 3 else [1, 2])])


def _attended(
    edit: Edit, node: ir.Node, parts: _Parts, mask: Value, past: Sequence[Value], present: bool
) -> tuple[ir.Value, Value, Value]:
    """The result, and all keys and values if `present`."""
    heads = int(attr(node, "num_heads", 1))
    attrs: dict[str, object] = {"is_causal": int(attr(node, "unidirectional", 0))}
    if parts.rank == 3:
        attrs.update(q_num_heads=heads, kv_num_heads=heads)
    if attr(node, "scale", 0.0):
        attrs["scale"] = float(attr(node, "scale", 0.0))
    operands = [*parts[:3], mask, *past]
    while operands[-1] is None:
        operands.pop()
    y, *rest = edit.ops("Attention", operands, attrs, outputs=3 if present else 1)
    if node.outputs[0].type is not None:
        y.type = node.outputs[0].type
    keys, values = rest or (None, None)
    return (y if parts.rank == 3 else _joined(edit, y)), keys, values


# keys shared by groups


def _group_query(node: ir.Node) -> bool:
    """query, key, value, past key, past value, last positions, total length, cosines, sines, positions, bias"""
    q, k, v, past_k, past_v, last, total, cosines, sines, given, extra = (operand(node, i) for i in range(11))
    heads, shared = int(attr(node, "num_heads", 0)), int(attr(node, "kv_num_heads", 0))
    if q is None or last is None or total is None or not heads or not shared or not _plain_groups(node):
        return False
    edit = Edit(node)
    if k is None or v is None:  # all in the first operand, along its last axis
        width = build.dims(q)
        if width is None or not isinstance(width[-1], int):
            return False
        size = width[-1] // (heads + 2 * shared)
        q, k, v = edit.ops(
            "Split", [q, edit.ints([n * size for n in (heads, shared, shared)])], {"axis": -1}, outputs=3
        )
    q, k, v = _heads(edit, q, heads), _heads(edit, k, shared), _heads(edit, v, shared)
    count = edit.op("Shape", [q], {"start": 2, "end": 3})
    lengths = edit.op("Cast", [edit.op("Reshape", [last, edit.ints([-1])])], {"to": int(ir.DataType.INT64)})
    start = edit.op("Sub", [edit.op("Add", [lengths, edit.ints(1)]), count])
    start = edit.op("Max", [start, edit.ints([0])])
    steps = edit.op("Range", [edit.ints(0), edit.op("Squeeze", [count, edit.ints([0])]), edit.ints(1)])
    places = edit.op("Add", [edit.op("Unsqueeze", [start, edit.ints([1])]), steps])  # [batch, queries]
    if attr(node, "do_rotary", 0):
        turns = {"interleaved": int(attr(node, "rotary_interleaved", 0)), **_turned(cosines)}
        at = places if given is None else given
        q, k = (edit.op("RotaryEmbedding", [x, cosines, sines, at], turns) for x in (q, k))
    keys = _cached(edit, past_k, k, start, total)
    values = _cached(edit, past_v, v, start, total)
    mask = _group_mask(edit, node, places, keys, edit.op("Unsqueeze", [lengths, edit.ints([1, 2])]), extra)
    attrs = {"softcap": float(attr(node, "softcap", 0.0))}
    if attr(node, "scale", 0.0):
        attrs["scale"] = float(attr(node, "scale", 0.0))
    edit.replace(_joined(edit, edit.op("Attention", [q, keys, values, mask], attrs)), keys, values)
    return True


def _plain_groups(node: ir.Node) -> bool:
    """Whether it has none of the parts without an equivalent: sinks, quantised caches, norms of queries and keys."""
    more = any(operand(node, i) is not None for i in range(11, len(node.inputs))) or used(node, 3)
    flags = ("smooth_softmax", "sliding_window_cache", "qk_output")
    narrow = any(attr(node, key, "NONE") != "NONE" for key in ("k_quant_type", "v_quant_type"))
    rotary = attr(node, "do_rotary", 0) and (operand(node, 7) is None or operand(node, 8) is None)
    return not (more or narrow or rotary or any(attr(node, key, 0) > 0 for key in flags))


def _turned(cosines: Value) -> dict[str, int]:
    width = build.dims(cosines)
    return {"rotary_embedding_dim": 2 * width[-1]} if width is not None and isinstance(width[-1], int) else {}


def _cached(edit: Edit, past: Value, new: ir.Value, start: ir.Value, total: ir.Value) -> ir.Value:
    """All keys or values: the earlier ones, in a buffer with room for `total`, with the new ones from `start` on."""
    if past is None:
        return new
    room = edit.op("Reshape", [edit.op("Cast", [total], {"to": int(ir.DataType.INT64)}), edit.ints([1])])
    missing = edit.op("Sub", [room, edit.op("Shape", [past], {"start": 2, "end": 3})])
    missing = edit.op("Max", [missing, edit.ints([0])])
    pads = edit.op("Concat", [edit.ints([0] * 6), missing, edit.ints([0])], {"axis": 0})
    return edit.op("TensorScatter", [edit.op("Pad", [past, pads]), new, start], {"axis": 2})


def _group_mask(edit: Edit, node: ir.Node, places: ir.Value, keys: ir.Value, last: ir.Value, extra: Value) -> ir.Value:
    """Which keys each query sees, [batch, 1, queries, keys]; with `extra`, what is added to the scores."""
    length = edit.op("Squeeze", [edit.op("Shape", [keys], {"start": 2, "end": 3}), edit.ints([0])])
    every = edit.op("Range", [edit.ints(0), length, edit.ints(1)])
    own = edit.op("Unsqueeze", [places, edit.ints([2])])
    seen = edit.op("LessOrEqual", [every, own if attr(node, "causal", 1) else last])
    window = int(attr(node, "local_window_size", -1))
    if window > 0:
        seen = edit.op("And", [seen, edit.op("Greater", [every, edit.op("Sub", [own, edit.ints(window)])])])
    seen = edit.op("Unsqueeze", [seen, edit.ints([1])])
    if extra is None:
        return seen
    hidden = edit.op("CastLike", [edit.const(float("-inf"), "float32"), extra])
    return edit.op("Where", [seen, extra, hidden])


def _rotary(node: ir.Node) -> bool:
    """input, positions [batch, length] or the first one [1], cosines, sines"""
    x, places, cosines, sines = leading(node, 4)
    rank = build.rank(places)
    if rank not in (1, 2) or attr(node, "is_packed_batching", 0) or float(attr(node, "scale", 1.0)) != 1.0:
        return False
    edit = Edit(node)
    if rank == 1:
        axis = build.rank(x)
        if x is None or axis not in (3, 4):
            return False
        batch = edit.op("Shape", [x], {"start": 0, "end": 1})
        count = edit.op("Shape", [x], {"start": axis - 2, "end": axis - 1})
        steps = edit.op("Range", [edit.ints(0), edit.op("Squeeze", [count, edit.ints([0])]), edit.ints(1)])
        spread = edit.op("Concat", [batch, count], {"axis": 0})
        places = edit.op("Expand", [edit.op("Add", [places, steps]), spread])
    kept = ("interleaved", "num_heads", "rotary_embedding_dim")
    attrs = {key: int(attr(node, key, 0)) for key in kept if attr(node, key, 0)}
    edit.replace(edit.op("RotaryEmbedding", [x, cosines, sines, places], attrs, like=node.outputs[0]))
    return True


ENTRIES: Mapping[str, Entry] = {
    "Attention": _attention,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
    "QAttention": _q_attention,
    "RotaryEmbedding": _rotary,
}
"""By operator."""
