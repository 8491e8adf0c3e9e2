"""Attention of several sequences at once over caches in pages."""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.operators.language import PAGE, SCALE
from lite_runtime.reference.normalize import softmax
from lite_runtime.reference.registry import define

__all__: list[str] = []


def _rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x (rows, heads, size), the first features of each head turned by the angles of its row (rows, features / 2)."""
    size = 2 * cos.shape[-1]
    halves = (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(0, size // 2), slice(size // 2, size))
    cos, sin = cos[:, None], sin[:, None]
    first, second = x[..., halves[0]], x[..., halves[1]]
    out = x.copy()
    out[..., halves[0]] = cos * first - sin * second
    out[..., halves[1]] = sin * first + cos * second
    return out


def _stored(x: Array, cache: Array) -> Array:
    """Features (..., size) as a cache has them: of int8, the two bytes of their scale are behind them."""
    if cache.dtype != np.int8:
        return x.astype(cache.dtype)
    scale = np.minimum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127), np.float32(65504)).astype("<f2")
    wide = scale.astype(np.float32)
    inverse = np.where(wide > 0, np.float32(1) / np.where(wide > 0, wide, np.float32(1)), np.float32(0))
    q = np.clip(np.rint(x * inverse), -127, 127).astype(np.int8)
    return np.concatenate([q, scale.view(np.int8)], axis=-1)


def _widened(held: Array) -> Array:
    """What `_stored` made, as float32."""
    if held.dtype != np.int8:
        return held.astype(np.float32)
    scale = np.ascontiguousarray(held[..., -SCALE:]).view("<f2").astype(np.float32)
    made: Array = held[..., :-SCALE].astype(np.float32) * scale
    return made


@define("PagedAttention")
def _paged_attention(
    query: Array,
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    cumulative: Array,
    past: Array,
    table: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    /,
    *,
    num_heads: int,
    kv_num_heads: int,
    local_window_size: int = -1,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    """(y, key_cache, value_cache); the caches are changed in place and returned.

    query (rows, num_heads * size), key and value (rows, kv_num_heads * size): the new tokens of all sequences behind
    one another, those of sequence s from row cumulative[s] to cumulative[s + 1]. The first of them has position
    past[s]. Query and key are rotated by the angles of their positions (rows of cos and sin). Position p of sequence s
    is in page table[s, p // 16]: key_cache (pages, kv_num_heads, size, 16), value_cache (pages, kv_num_heads, 16,
    size); in caches of int8, features are multiples of a float16 of their position and head, whose two bytes are behind
    them: sizes are larger by 2, and rotated queries are rounded as keys are. Every token attends to all positions of
    its sequence up to its own, or to the last `local_window_size`. scale 0: 1 / sqrt(size). Raises InputError for
    positions without a page.
    """
    rows, size = len(query), query.shape[1] // num_heads
    group = num_heads // kv_num_heads
    q, k, v = (
        x.reshape(rows, heads, -1) for x, heads in ((query, num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    y = np.zeros((rows, num_heads, v.shape[-1]), np.float32)
    factor = np.float32(scale or size**-0.5)
    for s, before in enumerate(past.tolist()):
        begin, end = int(cumulative[s]), int(cumulative[s + 1])
        reach = before + end - begin
        pages = -(-reach // PAGE)
        used = table[s, :pages].astype(np.int64)
        fits = 0 <= begin <= end <= rows and before >= 0 and pages <= table.shape[1]
        if not fits or ((used < 0) | (used >= len(key_cache))).any() or (cos is not None and reach > len(cos)):
            raise InputError(f"PagedAttention: sequence {s}: {reach} positions do not fit its pages or its angles")
        at = np.arange(before, reach)
        turned, new = q[begin:end], k[begin:end]
        if cos is not None and sin is not None:
            turned, new = (_rotated(x, cos[at], sin[at], bool(rotary_interleaved)) for x in (turned, new))
        if key_cache.dtype == np.int8:
            turned = _widened(_stored(turned, key_cache))
        key_cache[used[at // PAGE], :, :, at % PAGE] = _stored(new, key_cache)
        value_cache[used[at // PAGE], :, at % PAGE] = _stored(v[begin:end], value_cache)
        keys = key_cache[used].transpose(1, 0, 3, 2).reshape(kv_num_heads, -1, key_cache.shape[2])
        values = value_cache[used].swapaxes(0, 1).reshape(kv_num_heads, -1, value_cache.shape[3])
        keys, values = _widened(keys[:, :reach]), _widened(values[:, :reach])
        scores = np.einsum("qhd,hkd->hqk", turned, np.repeat(keys, group, 0)) * factor
        if softcap:
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        distance = at[:, None] - np.arange(reach)
        seen = distance >= 0
        if local_window_size > 0:
            seen &= distance < local_window_size
        shares = softmax(np.where(seen, scores, np.float32(-np.inf)))
        y[begin:end] = np.einsum("hqk,hkd->qhd", shares, np.repeat(values, group, 0))
    return y.reshape(rows, -1), key_cache, value_cache
