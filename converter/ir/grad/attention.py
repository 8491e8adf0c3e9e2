"""Attention, as its products and softmax, recomputed in the backward pass; and the rotary embedding of queries and
keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, composed, refuse, rule
from converter.ir.grad.tape import Operand, Term

__all__: list[str] = []

_MASKED = -1e30


@rule("RotaryEmbedding")
def _rotary(n: At) -> Gradients:
    """The inverse rotation. The angles are a constant table."""
    kept = {name: n.attr(name, None) for name in ("interleaved", "num_heads", "rotary_embedding_dim")}
    attrs = {name: value for name, value in kept.items() if value is not None}
    return [n.g.op("RotaryEmbedding", n.input(1), -n.input(2), *n.inputs[3:4], **attrs)]


@refuse("Attention")
def _special(node: ir.Node) -> str:
    if any(v is not None for v in node.inputs[4:]) or any(v.uses() for v in node.outputs[1:]):
        return "a cache of keys and values, padding counts, or scores as a result"
    windows = (build.attr(node, f"{side}_window_size", -1) for side in ("left", "right"))
    if any(w not in (-1, None) for w in windows):
        return "a window"
    sizes = (build.dims(v) for v in node.inputs[:3])
    return "" if all(s is not None for s in sizes) else "its shapes must be known"


@composed("Attention")
def _attention(n: At) -> Sequence[Operand]:
    """softmax(Q K^T * scale + mask) V, over 4-D operands or 3-D ones whose last axis holds the heads side by side."""
    q, k, v = (n.input(i) for i in range(3))
    flat = q.rank == 3
    if flat:
        q, k, v = _heads(q, n.attr("q_num_heads", 1)), *(_heads(t, n.attr("kv_num_heads", 1)) for t in (k, v))
    groups = q.size(1) // k.size(1)
    # The queries of heads that share keys are rows of one matrix: keys and values are not repeated.
    rows = q if groups == 1 else _joined(q, k.size(1), groups)
    scale = n.attr("scale", None) or 1 / sqrt(q.size(3))
    products = (rows * scale).matmul(k.swap())
    scores = products if groups == 1 else _apart(products, q, k.op("Shape", start=2, end=3), k.shape[2])
    cap = n.attr("softcap", 0.0)
    if cap:
        scores = (scores * (1 / cap)).op("Tanh") * cap
    for mask in _masks(n, q, k):
        scores = scores + mask
    y = scores.op("Softmax", axis=-1).reshape_like(products).matmul(v)
    if groups > 1:
        y = _apart(y, q, n.tape.ints([v.size(3)]), v.shape[3])
    return [y.transpose([0, 2, 1, 3]).reshape_like(n.y) if flat else y]


def _heads(x: Term, count: int) -> Term:
    """(batch, time, heads * size) -> (batch, heads, time, size)."""
    return x.reshape([0, 0, count, x.size(2) // count]).transpose([0, 2, 1, 3])


def _joined(q: Term, heads: int, groups: int) -> Term:
    """(batch, heads, time, size), with `groups` heads behind one another."""
    time = q.shape[2]
    shape = [q.shape[0], heads, time * groups if isinstance(time, int) else f"{groups}*{time}", q.shape[3]]
    return q.op("Reshape", q.tape.ints([0, heads, -1, q.size(3)]), shape=shape)


def _apart(x: Term, q: Term, last: Term, size: int | str | None) -> Term:
    """(batch, heads of keys, groups * time, last) with the heads of q: (batch, heads, time, last)."""
    return x.op("Reshape", q.op("Shape", end=3).op("Concat", last, axis=0), shape=[*q.shape[:3], size])


def _masks(n: At, q: Term, k: Term) -> list[Term]:
    """The term added to the scores."""
    found = []
    if n.has(3):
        mask = n.input(3)
        found.append(n.tape.where(mask, *_limits(q)) if mask.dtype == ir.DataType.BOOL else mask)
    if n.attr("is_causal", 0):
        ones = np.tri(q.size(2), k.size(2), dtype=bool)
        found.append(n.tape.where(n.tape.const(ones), *_limits(q)))
    return found


def _limits(q: Term) -> tuple[Term, Term]:
    return q.number(0.0), q.number(_MASKED)
