"""Attention (ONNX operators, Attention-24/25): values weighted by scaled dot products of queries and keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.ops._panels import float32_only
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []


class _Heads(NamedTuple):
    """Sizes of one operand with separate heads: from (batch, heads, length, width) or (batch, length, heads *
    width)."""

    batch: int
    heads: int
    length: int
    width: int
    joined: bool


def _heads(spec: Spec, heads: int | None) -> _Heads | None:
    if len(spec.shape) == 4:
        batch, count, length, width = spec.shape
        return _Heads(batch, count, length, width, False)
    if len(spec.shape) == 3 and heads and spec.shape[2] % heads == 0:
        batch, length, width = spec.shape
        return _Heads(batch, heads, length, width // heads, True)
    return None


@infer("Attention")
def _(n: Inference) -> list[Spec]:
    q = _heads(n.spec(0), n.attr("q_num_heads"))
    k, v = (_heads(n.spec(i), n.attr("kv_num_heads")) for i in (1, 2))
    if q is None or k is None or v is None:
        shapes = [list(n.spec(i).shape) for i in range(3)]
        raise n.error(f"expected 4-D operands, or 3-D ones with q_num_heads and kv_num_heads; got {shapes}")
    if len({q.batch, k.batch, v.batch}) != 1 or k.length != v.length or k.heads != v.heads or q.width != k.width:
        raise n.error(f"queries {q[:4]}, keys {k[:4]} and values {v[:4]} are incompatible")
    if not k.heads or q.heads % k.heads:
        raise n.error(f"{q.heads} query heads are not a multiple of {k.heads} key heads")
    past = 0
    if n.has(4) and n.has(5):
        past_k, past_v = n.spec(4).shape, n.spec(5).shape
        if len(past_k) != 4 or past_k[:2] != (k.batch, k.heads) or past_k[3] != k.width or past_v[:3] != past_k[:3]:
            raise n.error(f"past keys {list(past_k)} and values {list(past_v)} do not fit keys {k[:4]}")
        past = past_k[2]
    total = past + k.length
    y = (q.batch, q.length, q.heads * v.width) if q.joined else (q.batch, q.heads, q.length, v.width)
    return [
        Spec(n.spec(0).dtype, y),
        Spec(n.spec(1).dtype, (k.batch, k.heads, total, k.width)),
        Spec(n.spec(2).dtype, (v.batch, v.heads, total, v.width)),
        Spec(n.spec(0).dtype, (q.batch, q.heads, q.length, total)),
    ]


def _steps(h: _Heads, elements: int = 4) -> tuple[int, int, int]:
    """Byte distances between batches, heads and rows."""
    row = h.heads * h.width if h.joined else h.width
    head = h.width if h.joined else h.length * h.width
    return elements * h.heads * h.length * h.width, elements * head, elements * row


if TYPE_CHECKING:

    class _Rows(TypedDict):
        """Strides of the rows of every head, as steps declare them."""

        batches: int
        heads: int
        rows: int
        width: int
        batch_step: int
        head_step: int
        row_step: int

else:
    _Rows = dict


def _rows(h: _Heads) -> _Rows:
    batch, head, row = _steps(h)
    return _Rows(
        batches=h.batch, heads=h.heads, rows=h.length, width=h.width, batch_step=batch, head_step=head, row_step=row
    )


@bind("Attention")
def _(b: Binder) -> None:
    given = [b.inputs[i] if i < len(b.inputs) else None for i in range(7)]
    query, key, value, mask = given[:4]
    out = b.outputs[0]
    assert query is not None and key is not None and value is not None
    if out is None or any(o is not None for o in b.outputs[1:]) or any(g is not None for g in given[4:]):
        raise NoKernel("attention with a cache or with its scores as a result")
    if b.attr("softcap", 0.0) or b.attr("left_window_size", -1) >= 0 or b.attr("right_window_size", -1) >= 0:
        raise NoKernel("attention with a soft cap or a window")
    float32_only(query, key, value)
    q, (k, v) = (
        _heads(query.spec, b.attr("q_num_heads")),
        (_heads(o.spec, b.attr("kv_num_heads")) for o in (key, value)),
    )
    assert q is not None and k is not None and v is not None
    if 0 in (k.length, k.width):
        raise NoKernel("no keys")
    lanes = b.lanes
    scale = b.attr("scale") or 1.0 / math.sqrt(q.width)
    head = 4 * k.width * -(-k.length // lanes) * lanes
    packed = b.scratch("float32", (k.batch * k.heads, head // 4))
    b.emit(steps.PackKeys(k=key, packed=packed, head_size=head, factor=float(scale), **_rows(k)))
    v_steps = _steps(v)
    if v.width % lanes:
        padded = _Heads(v.batch, v.heads, v.length, -(-v.width // lanes) * lanes, False)
        wide = b.scratch("float32", padded[:4])
        b.emit(steps.PadRows(v=value, out=wide, **_rows(v)))
        value, v_steps = wide, _steps(padded)
    y = _Heads(q.batch, q.heads, q.length, v.width, q.joined)
    q_steps, y_steps = _steps(q), _steps(y)
    m_batch, m_head, m_row, is_bool = _mask_steps(mask, (q.batch, q.heads, q.length, k.length))
    b.emit(
        steps.F32Attention(
            q=query,
            k=packed,
            v=value,
            mask=mask,
            y=out,
            batches=q.batch,
            heads=q.heads,
            group=q.heads // k.heads,
            queries=q.length,
            keys=k.length,
            width=q.width,
            wide=v.width,
            q_batch=q_steps[0],
            q_head=q_steps[1],
            q_row=q_steps[2],
            v_batch=v_steps[0],
            v_head=v_steps[1],
            v_row=v_steps[2],
            y_batch=y_steps[0],
            y_head=y_steps[1],
            y_row=y_steps[2],
            packed_head=head,
            m_batch=m_batch,
            m_head=m_head,
            m_row=m_row,
            is_bool=is_bool,
            causal=1 if b.attr("is_causal", 0) else -1,
        )
    )


def _mask_steps(mask: Operand | None, scores: tuple[int, ...]) -> tuple[int, int, int, bool]:
    """Byte distances between batches, heads and queries, and whether the mask is boolean."""
    if mask is None:
        return 0, 0, 0, False
    if mask.dtype not in ("float32", "bool") or not 2 <= len(mask.shape) <= 4 or mask.shape[-1] != scores[3]:
        raise NoKernel(f"a mask {mask.dtype}{list(mask.shape)}")
    shape = (1,) * (4 - len(mask.shape)) + mask.shape
    strides = np.empty(shape, mask.dtype).strides
    if any(s not in (1, want) for s, want in zip(shape, scores, strict=True)):
        raise NoKernel(f"a mask of shape {list(mask.shape)}")
    batch, head, query = (0 if s == 1 else step for s, step in zip(shape[:3], strides[:3], strict=True))
    return batch, head, query, mask.dtype == "bool"
