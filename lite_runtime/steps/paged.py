"""Attention of several sequences over caches in pages of 16 positions."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, InOut, Out, Step, step

__all__ = ["Append", "Attend"]


@step("paged.f16_append", "paged.f32_append", "paged.i8_append")
class Append(Step):
    """New keys and values, rotated by their positions, into the caches; queries, rotated, into `turned`."""

    query: In
    key: In
    value: In
    cumulative: In
    past: In
    table: In
    cos: In | None
    sin: In | None
    key_cache: InOut  # [pages][kv_heads][size][16]; of int8 two more for the scale
    value_cache: InOut  # [pages][kv_heads][16][deep]; likewise
    turned: Out
    rows: int
    sequences: int
    heads: int
    kv_heads: int
    size: int  # of a head of query and key
    deep: int  # of a head of value
    pages: int  # of the caches
    slots: int  # columns of the table
    angles: int  # rows of cos and sin
    pairs: int  # columns of cos and sin
    interleaved: int


@step("paged.f16_attend", "paged.f32_attend", "paged.i8_attend")
class Attend(Step):
    """y = softmax(turned K) V, for each sequence up to each row's position."""

    turned: In
    cumulative: In
    past: In
    table: In
    key_cache: In
    value_cache: In
    y: Out
    rows: int
    sequences: int
    heads: int
    kv_heads: int
    size: int
    deep: int
    pages: int
    slots: int
    window: int  # positions that a row sees, itself included; 0: all
    scale: float
    softcap: float  # 0: none
