"""Operators that onnxruntime's optimiser writes (domain com.microsoft) become ONNX's own.

`ENTRIES` is the table; integer operators are in `qlinear_to_qdq`. An operator whose form has no equivalent here stays,
and the lowering names it. Meaning: onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.qlinear_to_qdq import CONTRIB
from converter.passes.rewrite import Entry, by_operator

__all__ = ["ENTRIES", "run"]

Value = ir.Value | None


def run(model: ir.Model) -> int:
    """The number of operators rewritten. Shape inference must run afterwards for the new values."""
    return by_operator(model, {(CONTRIB, op): entry for op, entry in ENTRIES.items()})


def _used(node: ir.Node, *indices: int) -> bool:
    """Whether one of these results is read."""
    found = (node.outputs[i] for i in indices if i < len(node.outputs))
    return any(v.uses() or v.is_graph_output() for v in found)


def _sum(edit: Edit, *values: Value) -> ir.Value:
    """The sum of the values that are given."""
    total, *rest = (v for v in values if v is not None)
    for value in rest:
        total = edit.op("Add", [total, value])
    return total


# activations


def _gelu(approximate: str) -> Entry:
    def entry(node: ir.Node) -> bool:
        edit = Edit(node)
        edit.replace(edit.op("Gelu", [_sum(edit, node.inputs[0], operand(node, 1))], {"approximate": approximate}))
        return True

    return entry


def _activated(edit: Edit, x: ir.Value, name: str, numbers: list[float]) -> ir.Value | None:
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


# contractions


def _fused_conv(node: ir.Node) -> bool:
    """act(Conv(X, W, B) + Z)."""
    edit = Edit(node)
    window = {k: v for k, v in node.attributes.items() if k not in ("activation", "activation_params")}
    y = edit.op("Conv", list(node.inputs[:3]), window, like=node.outputs[0])
    name, numbers = str(attr(node, "activation", "")), list(attr(node, "activation_params", ()))
    return _done(edit, _activated(edit, _sum(edit, y, operand(node, 3)), name, numbers))


def _fused_gemm(node: ir.Node) -> bool:
    edit = Edit(node)
    own = {k: v for k, v in node.attributes.items() if k in ("alpha", "beta", "transA", "transB")}
    y = edit.op("Gemm", list(node.inputs[:3]), own, like=node.outputs[0])
    numbers = [float(attr(node, key, 0.0)) for key in ("activation_alpha", "activation_beta") if key in node.attributes]
    return _done(edit, _activated(edit, y, str(attr(node, "activation", "")), numbers))


def _done(edit: Edit, made: ir.Value | None) -> bool:
    if made is not None:
        edit.replace(made)
    return made is not None


def _fused_matmul(node: ir.Node) -> bool:
    """alpha * A' @ B', with the last two axes swapped on request."""
    if attr(node, "transBatchA", 0) or attr(node, "transBatchB", 0):
        return False
    turned = [attr(node, key, 0) for key in ("transA", "transB")]
    ranks = [build.rank(v) for v in node.inputs[:2]]
    if any(turn and rank is None for turn, rank in zip(turned, ranks, strict=True)):
        return False
    edit = Edit(node)
    operands: list[Value] = []
    for value, turn, rank in zip(node.inputs[:2], turned, ranks, strict=True):
        swapped = bool(turn) and rank is not None and rank > 1
        perm = [*range((rank or 2) - 2), (rank or 2) - 1, (rank or 2) - 2]
        operands.append(edit.op("Transpose", [value], {"perm": perm}) if swapped else value)
    y = edit.op("MatMul", operands, like=node.outputs[0])
    alpha = float(attr(node, "alpha", 1.0))
    edit.replace(y if alpha == 1.0 else edit.op("Mul", [y, edit.scalar_like(alpha, y)]))
    return True


# normalisation


def _skip_norm(op: str) -> Entry:
    """norm(input + skip + bias), and the sum itself as result 3."""
    bias = 4 if op == "LayerNormalization" else 3

    def entry(node: ir.Node) -> bool:
        if _used(node, 1, 2):
            return False
        edit = Edit(node)
        total = _sum(edit, node.inputs[0], node.inputs[1], operand(node, bias))
        scales = [node.inputs[2], *([operand(node, 3)] if bias == 4 else [])]
        y = edit.op(op, [total, *scales], {"axis": -1, "epsilon": float(attr(node, "epsilon", 1e-5))})
        edit.replace(y, None, None, total)
        return True

    return entry


def _simplified_norm(node: ir.Node) -> bool:
    if _used(node, 1):
        return False
    edit = Edit(node)
    attrs = {"axis": int(attr(node, "axis", -1)), "epsilon": float(attr(node, "epsilon", 1e-5))}
    edit.replace(edit.op("RMSNormalization", list(node.inputs[:2]), attrs))
    return True


def _embed_norm(node: ir.Node) -> bool:
    """LayerNormalization of the sum of word, position and segment embeddings; the numbers of words as result 1."""
    ids, segments, words, positions, kinds, scale, shift = node.inputs[:7]
    mask, chosen = operand(node, 7), operand(node, 8)
    if attr(node, "mask_index_type", 1) != 1 and _used(node, 1):
        return False
    edit = Edit(node)
    if chosen is None:
        length = edit.op("Shape", [ids], {"start": 1, "end": 2})
        place = edit.op("Slice", [positions, edit.ints([0]), length, edit.ints([0])])
    else:
        place = edit.op("Gather", [positions, chosen])
    kind = None if segments is None or kinds is None else edit.op("Gather", [kinds, segments])
    total = _sum(edit, edit.op("Gather", [words, ids]), place, kind)
    attrs = {"axis": -1, "epsilon": float(attr(node, "epsilon", 1e-12))}
    y = edit.op("LayerNormalization", [total, scale, shift], attrs)
    counts = None
    if _used(node, 1):
        if mask is None:
            batch = edit.op("Shape", [ids], {"start": 0, "end": 1})
            counts = edit.op("Expand", [edit.const(0, "int32"), batch])
        else:
            counts = edit.op("ReduceSum", [mask, edit.ints([1])], {"keepdims": 0})
    edit.replace(y, counts, total)
    return True


# attention


def _attention(node: ir.Node) -> bool:
    """Self-attention: one product gives queries, keys and values."""
    x, weights, bias, mask = node.inputs[0], node.inputs[1], operand(node, 2), operand(node, 3)
    plain = all(operand(node, i) is None for i in range(4, len(node.inputs))) and not _used(node, 1)
    if not plain or attr(node, "do_rotary", 0) or not _known_mask(mask):
        return False
    width = build.static_dims(weights)
    if width is None:
        return False
    sizes = list(attr(node, "qkv_hidden_sizes", ()) or [width[-1] // 3] * 3)
    edit = Edit(node)
    joint = _sum(edit, edit.op("MatMul", [x, weights]), bias)
    parts = edit.ops("Split", [joint, edit.ints(sizes)], {"axis": -1}, outputs=3)
    edit.replace(_attended(edit, node, list(parts), _allowed(edit, mask, x), int(attr(node, "unidirectional", 0))))
    return True


def _multi_head(node: ir.Node) -> bool:
    """Attention over queries, keys and values of rank 3, each with its part of the bias."""
    parts, bias, mask, more = list(node.inputs[:3]), operand(node, 3), operand(node, 4), operand(node, 5)
    plain = all(operand(node, i) is None for i in range(6, len(node.inputs))) and not _used(node, 1, 2, 3)
    if not plain or len(parts) < 3 or any(build.rank(v) != 3 for v in parts) or not _known_mask(mask):
        return False
    if mask is not None and more is not None:
        return False
    edit = Edit(node)
    if bias is not None:
        sizes = [(build.dims(v) or (None,))[-1] for v in parts]
        if not all(isinstance(size, int) for size in sizes):
            return False
        shares = edit.ops("Split", [bias, edit.ints([s for s in sizes if isinstance(s, int)])], {"axis": 0}, outputs=3)
        parts = [edit.op("Add", [v, share]) for v, share in zip(parts, shares, strict=True)]
    allowed = more if mask is None else _allowed(edit, mask, parts[1])
    edit.replace(_attended(edit, node, parts, allowed, int(attr(node, "unidirectional", 0))))
    return True


def _known_mask(mask: Value) -> bool:
    """Whether it is absent, the number of keys of each sequence, or a flag for each key."""
    return mask is None or (build.rank(mask) in (1, 2) and mask.dtype is not None)


def _allowed(edit: Edit, mask: Value, keys: Value) -> Value:
    """The mask as booleans [batch, 1, 1, keys]."""
    if mask is None:
        return None
    if build.rank(mask) == 2:
        flags = edit.op("Cast", [mask], {"to": int(ir.DataType.BOOL)})
    else:
        count = edit.op("Squeeze", [edit.op("Shape", [keys], {"start": 1, "end": 2}), edit.ints([0])])
        places = edit.op("Range", [edit.ints(0), count, edit.ints(1)])
        ends = edit.op("Unsqueeze", [edit.op("Cast", [mask], {"to": int(ir.DataType.INT64)}), edit.ints([1])])
        flags = edit.op("Less", [places, ends])
    return edit.op("Unsqueeze", [flags, edit.ints([1, 2])])


def _attended(edit: Edit, node: ir.Node, parts: list[Value], mask: Value, causal: int) -> ir.Value:
    heads = int(attr(node, "num_heads", 1))
    attrs: dict[str, object] = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": causal}
    if attr(node, "scale", 0.0):
        attrs["scale"] = float(attr(node, "scale", 0.0))
    return edit.op("Attention", [*parts, *([mask] if mask is not None else [])], attrs, like=node.outputs[0])


def _rotary(node: ir.Node) -> bool:
    x, places, cosines, sines = node.inputs[:4]
    if build.rank(places) != 2 or attr(node, "is_packed_batching", 0) or float(attr(node, "scale", 1.0)) != 1.0:
        return False
    kept = ("interleaved", "num_heads", "rotary_embedding_dim")
    edit = Edit(node)
    attrs = {key: int(attr(node, key, 0)) for key in kept if attr(node, key, 0)}
    edit.replace(edit.op("RotaryEmbedding", [x, cosines, sines, places], attrs, like=node.outputs[0]))
    return True


ENTRIES: Mapping[str, Entry] = {
    "Attention": _attention,
    "BiasGelu": _gelu("none"),
    "EmbedLayerNormalization": _embed_norm,
    "FastGelu": _gelu("tanh"),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm("LayerNormalization"),
    "SkipSimplifiedLayerNormalization": _skip_norm("RMSNormalization"),
    "TransposeMatMul": _fused_matmul,
}
"""By operator."""
