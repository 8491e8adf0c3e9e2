"""Scaled-dot-product attention and rotary position embedding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cloud.engine.lowering.registry import Tensor, lowering
from cloud.errors import EngineError

__all__ = ["score_bias", "split_heads"]


def split_heads(x: Tensor, count: int | None, what: str) -> Tensor:
    """[batch, length, heads * size] -> [batch, heads, length, size]; an array of four axes is unchanged."""
    if x.ndim == 4:
        return x
    if not count:
        raise EngineError(f"{what} has 3 axes, so its number of heads must be given as an attribute")
    return jnp.swapaxes(x.reshape(*x.shape[:2], count, -1), 1, 2)


def score_bias(
    mask: Tensor | None, is_causal: int, past: int, valid: Tensor | None,
    queries: int, keys: int, dtype: np.dtype[np.generic],
) -> Tensor | None:  # fmt: skip
    """The term added to the scores: 0 or a given bias where a query may attend, -inf where it may not."""
    total: Tensor | None = None
    if mask is not None:
        if mask.dtype == bool:
            mask = jnp.where(mask, 0, -jnp.inf).astype(dtype)
        missing = keys - mask.shape[-1]
        if missing > 0:  # a mask may be shorter than the keys: the rest is hidden
            widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
            mask = jnp.pad(mask, widths, constant_values=-jnp.inf)
        total = mask
    row, column = np.arange(queries)[:, None], np.arange(keys)[None, :]
    allowed: Tensor | None = None
    if is_causal:
        allowed = column <= row + past
        if valid is not None:
            allowed = column <= row + (jnp.reshape(valid, (-1, 1, 1, 1)) - queries)
    if valid is not None:
        seen = column < jnp.reshape(valid, (-1, 1, 1, 1))
        allowed = seen if allowed is None else allowed & seen
    if allowed is not None:
        causal = jnp.where(allowed, 0, -jnp.inf).astype(dtype)
        total = causal if total is None else total + causal
    return total


@lowering("Attention")
def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, past_key: Tensor | None = None,
    past_value: Tensor | None = None, nonpad_kv_seqlen: Tensor | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, q_num_heads: int | None = None, qk_matmul_output_mode: int = 0,
    scale: float | None = None, softcap: float = 0.0, softmax_precision: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Y, present key, present value, and the scores at the stage given by `qk_matmul_output_mode`."""
    packed = q.ndim == 3
    q, k, v = split_heads(q, q_num_heads, "Q"), split_heads(k, kv_num_heads, "K"), split_heads(v, kv_num_heads, "V")
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = jnp.concatenate([past_key, k], axis=2), jnp.concatenate([past_value, v], axis=2)
    keys, values = k, v
    if q.shape[1] != k.shape[1]:
        repeats = q.shape[1] // k.shape[1]
        keys, values = jnp.repeat(k, repeats, axis=1), jnp.repeat(v, repeats, axis=1)
    factor = float(q.shape[-1]) ** -0.5 if scale is None else scale
    raw = jnp.einsum("bhqd,bhkd->bhqk", q, keys) * factor
    bias = score_bias(attn_mask, is_causal, past, nonpad_kv_seqlen, raw.shape[2], raw.shape[3], raw.dtype)
    capped = softcap * jnp.tanh(raw / softcap) if softcap else raw
    biased = capped if bias is None else capped + bias
    weights = jax.nn.softmax(biased.astype(jnp.promote_types(biased.dtype, np.float32)), axis=-1).astype(q.dtype)
    if bias is not None:  # a query that may attend to no key gives zeros
        weights = jnp.where(jnp.all(biased == -jnp.inf, axis=-1, keepdims=True), 0, weights)
    y = jnp.einsum("bhqk,bhkd->bhqd", weights, values)
    if packed:
        y = jnp.swapaxes(y, 1, 2).reshape(y.shape[0], y.shape[2], -1)
    return y, k, v, (raw, capped, biased, weights)[qk_matmul_output_mode]


@lowering("RotaryEmbedding")
def rotary_embedding(
    x: Tensor, cos_cache: Tensor, sin_cache: Tensor, position_ids: Tensor | None = None,
    *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    """x [batch, heads, length, size] or [batch, length, heads * size].

    Caches are [positions, half] with `position_ids`, else [batch, length, half].
    """
    heads = jnp.swapaxes(split_heads(x, num_heads or None, "X"), 1, 2)  # batch, length, heads, size
    width = rotary_embedding_dim or heads.shape[-1]
    turning, rest = heads[..., :width], heads[..., width:]
    if position_ids is not None:
        cos_cache, sin_cache = jnp.asarray(cos_cache)[position_ids], jnp.asarray(sin_cache)[position_ids]
    cos, sin = (jnp.expand_dims(cache[..., : width // 2], 2) for cache in (cos_cache, sin_cache))
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = jnp.split(turning, 2, axis=-1)
    parts = (a * cos - b * sin, a * sin + b * cos)
    turned = jnp.stack(parts, axis=-1).reshape(turning.shape) if interleaved else jnp.concatenate(parts, axis=-1)
    y = jnp.concatenate([turned, rest], axis=-1)
    return y.reshape(x.shape) if x.ndim == 3 else jnp.swapaxes(y, 1, 2)
