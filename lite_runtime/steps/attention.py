"""Attention in float32: packs keys into panels, pads values to whole vectors, and computes attention."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["F32Attention", "PackKeys", "PadRows"]


@step("attention.f32_attention")
class F32Attention(Step):
    """y = softmax(q kT + mask) v by batch and head. Rows without visible keys become zeros."""

    q: In
    k: In  # panels of PackKeys
    v: In  # rows may be read up to whole vectors
    mask: In | None
    y: Out
    batches: int
    heads: int  # of q
    group: int  # heads of q per head of k
    queries: int
    keys: int
    width: int  # elements of a row of q and k
    wide: int  # elements of a row of v
    q_batch: int  # stride in bytes over batches, heads, rows of q
    q_head: int
    q_row: int
    v_batch: int  # … of v
    v_head: int
    v_row: int
    y_batch: int  # … of y
    y_head: int
    y_row: int
    packed_head: int  # bytes of one head's packed keys
    m_batch: int  # bytes from batch, head, query of the mask to the next; 0: the same for all
    m_head: int
    m_row: int
    is_bool: int  # 1: the mask is boolean, true means attend
    causal: int  # keys visible to query 0, one more for each next query; -1: all keys are visible


class _Heads(Step):
    """Rows of every head."""

    batches: int
    heads: int
    rows: int
    width: int  # elements of a row
    batch_step: int  # stride in bytes over batches, heads, rows
    head_step: int
    row_step: int


@step("attention.f32_pack_keys")
class PackKeys(_Heads):
    """Keys of every head -> panels [width][4 * LANES], the last with fewer vectors, zero-padded after the last key."""

    k: In
    packed: Out
    head_size: int  # bytes of one head's panels
    factor: float  # factor applied to keys


@step("attention.f32_pad_rows")
class PadRows(_Heads):
    """Rows of every head, each zero-padded to whole vectors."""

    v: In
    out: Out  # [batches][heads][rows][width in whole vectors]
