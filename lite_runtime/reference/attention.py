"""The attention operators, and rotary position embedding."""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array, Graph
from lite_runtime.reference.normalize import softmax
from lite_runtime.reference.registry import Context, define
from lite_runtime.reference.support import NARROW_FLOATS, dtype_of, in_float32, require, widen

__all__: list[str] = []


def _split_heads(x: Array, heads: int | None, what: str) -> Array:
    """(batch, time, heads * size) -> (batch, heads, time, size); rank 4 is returned unchanged."""
    if x.ndim == 4:
        return x
    require(x.ndim == 3, f"expected {what} of rank 3 or 4, got shape {x.shape}")
    require(bool(heads), f"expected the number of heads for {what} of rank 3, got none")
    assert heads is not None
    require(x.shape[2] % heads == 0, f"expected {what} with a last size divisible by {heads}, got shape {x.shape}")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def _join_heads(y: Array) -> Array:
    batch, heads, time, size = y.shape
    return y.swapaxes(1, 2).reshape(batch, time, heads * size)


def _repeat_heads(x: Array, heads: int) -> Array:
    require(heads % x.shape[1] == 0, f"expected query heads a multiple of {x.shape[1]} key heads, got {heads}")
    return np.repeat(x, heads // x.shape[1], axis=1)


@define("Attention")
def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad: Array | None = None,
    /,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | str | None = None,
) -> tuple[Array, Array, Array, Array]:
    """(Y, present key, present value, the scores selected by `qk_matmul_output_mode`).

    Computed in float32 if the operands are narrower. Fully masked rows give zeros. In the scores, positions hidden by a
    mask or window are -inf in mode 2 and 0 in mode 3.
    """
    packed, dtype = q.ndim == 3, q.dtype
    q, k, v = _split_heads(q, q_num_heads, "Q"), _split_heads(k, kv_num_heads, "K"), _split_heads(v, kv_num_heads, "V")
    require((past_key is None) == (past_value is None), "expected past_key and past_value together, got one")
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    offset = np.zeros(len(q), np.int64) + (0 if past_key is None else past_key.shape[2])
    if nonpad is not None:
        offset = nonpad.astype(np.int64) - q.shape[2]
    factor = np.sqrt(q.shape[-1] ** -0.5 if scale is None else scale)
    keys = _repeat_heads(widen(k), q.shape[1])
    require(q.shape[-1] == k.shape[-1], f"expected Q and K of one head size, got {q.shape} and {k.shape}")
    wide = widen(q)
    t = wide.dtype.type
    raw = (wide * t(factor)) @ (keys * t(factor)).swapaxes(2, 3)
    capped = raw if softcap == 0 else t(softcap) * np.tanh(raw / t(softcap))
    bias = _bias(mask, capped.shape, wide.dtype)
    seen = _visible(capped.shape, offset, nonpad, bool(is_causal), left_window_size, right_window_size)
    biased = np.where(seen, capped + bias, t(-np.inf))
    shares = _shares(biased, softmax_precision)
    y = shares.astype(v.dtype if v.dtype == np.float64 else wide.dtype) @ _repeat_heads(widen(v), q.shape[1])
    stages = (raw, capped, biased, shares)
    require(0 <= qk_matmul_output_mode < 4, f"expected qk_matmul_output_mode of 0 to 3, got {qk_matmul_output_mode}")
    y = y.astype(dtype)
    return _join_heads(y) if packed else y, k, v, stages[qk_matmul_output_mode].astype(dtype)


def _bias(mask: Array | None, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The term to add to the scores; keys beyond the mask's last column are hidden."""
    if mask is None:
        return np.zeros((), dtype)
    bias = np.where(mask, 0.0, -np.inf).astype(dtype) if mask.dtype == bool else mask.astype(dtype)
    missing = shape[-1] - bias.shape[-1]
    if missing > 0 and bias.shape[-1] != 1:
        bias = np.concatenate([bias, np.full((*bias.shape[:-1], missing), -np.inf, dtype)], -1)
    return bias


def _visible(shape: tuple[int, ...], offset: Array, nonpad: Array | None, causal: bool, left: int, right: int) -> Array:
    """Which keys each query may attend to: (batch, 1, queries, keys). The position of query i is `offset + i`."""
    keys = np.arange(shape[3])
    position = (offset[:, None] + np.arange(shape[2]))[:, None, :, None]
    seen = np.ones((len(offset), 1, shape[2], shape[3]), bool)
    if causal:
        seen &= keys <= position
    if left >= 0:
        seen &= keys >= position - left
    if right >= 0:
        seen &= keys <= position + right
    if nonpad is not None:
        seen &= keys < nonpad.astype(np.int64)[:, None, None, None]
    return seen


def _shares(scores: Array, precision: int | str | None) -> Array:
    """Softmax over keys; rows without visible keys give zeros."""
    dtype = None if precision is None else dtype_of(precision)
    if dtype is not None and dtype.name not in NARROW_FLOATS:
        scores = scores.astype(dtype)
    hidden = np.all(np.isneginf(scores), -1, keepdims=True)
    return np.where(hidden, scores.dtype.type(0), softmax(np.where(hidden, scores.dtype.type(0), scores)))


@define("FlexAttention")
def _flex_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    prob_mod: Graph | None = None,
    scale: float | None = None,
    score_mod: Graph | None = None,
    softmax_precision: int | str | None = None,
    *,
    context: Context,
) -> Array:
    """Attention over rank-4 operands with subgraphs that rewrite the scores and the probabilities."""
    require(q.ndim == k.ndim == v.ndim == 4, f"expected operands of rank 4, got {q.shape}, {k.shape}, {v.shape}")
    usual = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
    precision = usual if softmax_precision is None else dtype_of(softmax_precision)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    wide = widen(q)
    scores = wide @ _repeat_heads(widen(k), q.shape[1]).swapaxes(2, 3) * wide.dtype.type(factor)
    scores = _modified(scores.astype(precision), score_mod, context)
    shares = softmax(widen(scores)).astype(precision)
    shares = _modified(shares, prob_mod, context)
    return np.asarray((widen(shares) @ _repeat_heads(widen(v), q.shape[1])).astype(q.dtype))


def _modified(x: Array, graph: Graph | None, context: Context) -> Array:
    if graph is None:
        return x
    y: Array = context.run_graph(graph, [x])[0]
    require(
        y.shape == x.shape and y.dtype == x.dtype, f"expected {x.dtype}{x.shape} of a modifier, got {y.dtype}{y.shape}"
    )
    return y


@define("RotaryEmbedding")
@in_float32
def _rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    /,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Pairs of features rotated by their token's angle; features after `rotary_embedding_dim` are unchanged."""
    heads = _split_heads(x, num_heads, "X")  # (batch, heads, time, size)
    size = rotary_embedding_dim or heads.shape[-1]
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    require(cos_cache.shape[-1] * 2 == size, f"expected caches of {size // 2} angles, got shape {cos_cache.shape}")
    cos, sin = cos_cache[:, None], sin_cache[:, None]
    turned, rest = heads[..., :size], heads[..., size:]
    halves = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, size // 2), slice(size // 2, None))
    first, second = turned[..., halves[0]], turned[..., halves[1]]
    out = np.empty_like(turned)
    out[..., halves[0]] = cos * first - sin * second
    out[..., halves[1]] = sin * first + cos * second
    y = np.concatenate([out, rest], -1)
    return _join_heads(y) if x.ndim == 3 else y


_UPDATES: dict[str, tuple[bool, bool]] = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""Rule -> (whether the state decays, whether the value is corrected by the state's prediction)."""


@define("LinearAttention")
def _linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    /,
    chunk_size: int = 64,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """A state (batch, heads, key size, value size) is updated token by token and read by every query."""
    if update_rule not in _UPDATES:
        raise UnsupportedOpError(f"expected update_rule of {', '.join(_UPDATES)}, got {update_rule!r}")
    gated, delta = _UPDATES[update_rule]
    require(not gated or decay is not None, f"expected decay for update_rule {update_rule}, got none")
    require(not delta or beta is not None, f"expected beta for update_rule {update_rule}, got none")
    q, k, v = (
        _split_heads(widen(x), heads, what)
        for x, heads, what in (
            (query, q_num_heads, "query"),
            (key, kv_num_heads, "key"),
            (value, kv_num_heads, "value"),
        )
    )
    batch, heads, time, size = k.shape
    state_type = query.dtype if past_state is None else past_state.dtype
    state = np.zeros((batch, heads, size, v.shape[-1]), q.dtype) if past_state is None else widen(past_state)
    gates = np.exp(_split_heads(widen(decay), kv_num_heads, "decay")) if gated and decay is not None else None
    rates = _rates(beta, heads) if delta and beta is not None else None
    factor = q.dtype.type(scale or q.shape[-1] ** -0.5)
    y = np.empty((batch, q.shape[1], time, v.shape[-1]), q.dtype)
    for t in range(time):
        if gates is not None:
            state = state * gates[:, :, t, :, None]
        news = v[:, :, t]
        if rates is not None:
            known = np.einsum("bhkv,bhk->bhv", state, k[:, :, t])
            news = rates[:, :, t] * (news - known)
        state = state + k[:, :, t, :, None] * news[:, :, None, :]
        y[:, :, t] = factor * np.einsum("bhkv,bhk->bhv", _repeat_heads(state, q.shape[1]), q[:, :, t])
    return _join_heads(y).astype(query.dtype), state.astype(state_type)


def _rates(beta: Array, heads: int) -> Array:
    """(batch, time, heads or 1) -> (batch, heads, time, 1)."""
    return np.broadcast_to(widen(beta), (*beta.shape[:2], heads)).swapaxes(1, 2)[..., None]
