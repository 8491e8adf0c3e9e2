"""Sums over groups in one byte an element and a scale a block, with error feedback.

What rounding loses is kept by the group that rounded and added to its next gradient, so that the sum of all that was
ever applied differs from the sum of all gradients by what is in memory (Seide et al., "1-bit stochastic gradient
descent", Interspeech 2014; Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["SCALE", "exchanged", "padded"]

SCALE = 4
"""Bytes of a block's scale."""


def padded(size: int, groups: int, block: int) -> int:
    """Elements that are exchanged for `size`: whole blocks, and equally many for each group where they are summed."""
    unit = block if groups == 2 else block * groups
    return -(-size // unit) * unit


def exchanged(values: Any, groups: int, axis: str, block: int) -> tuple[Any, Any]:
    """(sum over the groups, what this group's rounding lost) of `values`, [n] float32 on every device.

    Two groups send each other everything. More of them exchange parts, of which each group sums its own, and gather the
    rounded sums: 2 (groups - 1) / groups bytes an element instead of groups - 1. The sum's rounding error is kept by
    the group that summed. Called inside `shard_map`, where `axis` is manual. The same bits on every device.
    """
    blocks = jnp.pad(values, (0, padded(values.size, groups, block) - values.size)).reshape(-1, block)
    sent = _rounded(blocks)
    lost = blocks - _value(sent)
    if groups == 2:
        total = _added(jax.lax.all_gather(sent, axis), groups)
    else:
        shared = sent.reshape(groups, -1, block + SCALE)
        swap: Any = jax.lax.all_to_all
        own = _added(swap(shared, axis, 0, 0), groups)
        again = _rounded(own)
        at = jax.lax.axis_index(axis) * len(own)
        mine = jax.lax.dynamic_slice_in_dim(lost, at, len(own)) + (own - _value(again))
        lost = jax.lax.dynamic_update_slice_in_dim(lost, mine, at, 0)
        total = _value(jax.lax.all_gather(again, axis).reshape(-1, block + SCALE))
    return total.ravel()[: values.size], lost.ravel()[: values.size]


def _rounded(blocks: Any) -> Any:
    """[n, block] float32 -> [n, block + 4] int8: rounded to multiples of the largest magnitude / 127, and that scale's
    bytes. A block with a number that is not finite becomes one that `_value` reads as not finite."""
    scale = jnp.max(jnp.abs(blocks), 1, keepdims=True) / 127
    numbers = jnp.round(blocks / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8)
    return jnp.concatenate([numbers, jax.lax.bitcast_convert_type(scale[:, 0], jnp.int8)], 1)


def _value(sent: Any) -> Any:
    """The inverse of `_rounded`."""
    scale = jax.lax.bitcast_convert_type(sent[..., -SCALE:], jnp.float32)
    return sent[..., :-SCALE].astype(jnp.float32) * scale[..., None]


def _added(got: Any, groups: int) -> Any:
    """The sum of what the groups sent, always in the same order."""
    total = _value(got[0])
    for group in range(1, groups):
        total = total + _value(got[group])
    return total
