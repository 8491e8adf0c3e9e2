"""An encoder and a decoder with cross attention and one embedding for both and the head (T5, Raffel et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, lies, normal

__all__ = ["t5"]


@dataclass(frozen=True, slots=True)
class _Sizes:
    blocks: int = 6
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    words: int = 32128
    buckets: int = 32
    rows: int = 128
    length: int = 512
    target: int = 128


_SMALL = _Sizes(blocks=2, width=32, heads=8, hidden=64, words=64, buckets=8, rows=16, length=16, target=8)


def t5(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """T5-small: 6 + 6 blocks of width 512 (small: 2 + 2 of 32), each stack one scan; 128 rows (16) of 512 words (16) in
    and 128 (8) out, of a vocabulary of 32,128 (64). A trip keeps all its residuals."""
    sizes = _SMALL if small else _Sizes()

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        words, buckets, encoder, decoder = jax.random.split(key, 4)
        stack = {"encoder": (encoder, ("self",)), "decoder": (decoder, ("self", "cross"))}
        blocks = {name: jax.vmap(lambda one, parts=parts: _block(one, sizes, parts))(jax.random.split(at, sizes.blocks))
                  for name, (at, parts) in stack.items()}  # fmt: skip
        each = jax.random.split(buckets)
        return {
            "words": normal(words, sizes.words, sizes.width, fan=sizes.width),
            **{f"{name}_blocks": {"norm": jnp.ones(sizes.width), "buckets": normal(one, sizes.buckets, sizes.heads),
                                  "blocks": blocks[name]} for name, one in zip(stack, each, strict=True)},
        }, {}  # fmt: skip

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values = cast(values, bfloat16)
        read = _stack(values["words"][batch["x"]], values["encoder_blocks"], sizes, None)
        given = jnp.pad(batch["y"], ((0, 0), (1, 0)))[:, :-1]
        made = _stack(values["words"][given], values["decoder_blocks"], sizes, read)
        logits = jnp.einsum("bsd,vd->bsv", made * sizes.width**-0.5, values["words"]).astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], sizes.words)).sum(-1)
        lost = jax.nn.logsumexp(logits, -1) - right
        return {"loss": lost.mean(-1).sum(), "count": jnp.float32(len(lost))}, extra

    fields = {"x": Field((sizes.rows, sizes.length), sizes.words), "y": Field((sizes.rows, sizes.target), sizes.words)}
    return build("t5", params, loss_sums, fields, optimizer)


def _block(key: jax.Array, sizes: _Sizes, parts: Sequence[str]) -> Tree:
    width, heads, each = sizes.width, sizes.heads, sizes.width // sizes.heads
    made: Tree = {}
    for name, one in zip(parts, jax.random.split(key, 2), strict=False):
        q, k, v, out = jax.random.split(one, 4)
        made[name] = {n: normal(at, width, heads, each) for n, at in (("q", q), ("k", k), ("v", v))}
        made[name] |= {"out": normal(out, heads, each, width, fan=width), "norm": jnp.ones(width)}
    up, down = jax.random.split(jax.random.fold_in(key, 1))
    return {**made, "up": normal(up, width, sizes.hidden), "down": normal(down, sizes.hidden, width),
            "norm": jnp.ones(width)}  # fmt: skip


def _stack(x: jax.Array, stack: Tree, sizes: _Sizes, read: jax.Array | None) -> jax.Array:
    """All blocks of the encoder (`read` None, every position sees all), or of the decoder, which also attends to
    `read`. One bias by distance is shared by all blocks."""
    length, each = x.shape[1], sizes.width // sizes.heads
    apart = np.arange(length)[None] - np.arange(length)[:, None]
    bias = stack["buckets"][_bucket(apart, read is None, sizes.buckets)].transpose(2, 0, 1)
    if read is not None:
        bias = jnp.where(apart <= 0, bias, -1e30)

    def attention(x: jax.Array, seen: jax.Array, w: Tree, bias: jax.Array | float) -> jax.Array:
        q = jnp.einsum("bsd,dhk->bshk", x, w["q"])
        k, v = (jnp.einsum("btd,dhk->bthk", seen, w[name]) for name in "kv")
        scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * each**-0.5 + bias
        weights = jax.nn.softmax(scores, -1).astype(x.dtype)
        return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, v), w["out"])

    def trip(x: jax.Array, block: Tree) -> tuple[jax.Array, None]:
        x = lies(x)
        own = _scaled(x, block["self"]["norm"])
        x = x + attention(own, own, block["self"], bias)
        if read is not None:
            x = x + attention(_scaled(x, block["cross"]["norm"]), read, block["cross"], 0.0)
        return x + jax.nn.relu(_scaled(x, block["norm"]) @ block["up"]) @ block["down"], None

    x, _ = jax.lax.scan(trip, x, stack["blocks"])
    return _scaled(x, stack["norm"])


def _scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    normed: jax.Array = (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)
    return normed


def _bucket(apart: np.ndarray[Any, Any], both: bool, buckets: int) -> np.ndarray[Any, Any]:
    """Half of the buckets for one distance each, the others for distances that grow up to 128."""
    half = buckets // 2 if both else buckets
    far = np.abs(apart) if both else np.maximum(-apart, 0)
    exact = half // 2
    wide = exact + (np.log(np.maximum(far, 1) / exact) / np.log(128 / exact) * (half - exact)).astype(int)
    found: np.ndarray[Any, Any] = np.where(far < exact, far, np.minimum(wide, half - 1))
    return np.where(apart > 0, found + half, found) if both else found
