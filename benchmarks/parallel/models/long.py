"""A decoder over one long text: too few rows to give one to each device, so that positions must be split."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.gpt import Sizes, block_of, dense
from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, layer_norm, lies, normal

__all__ = ["long"]

_SMALL = Sizes(blocks=2, width=32, heads=8, hidden=64, length=32, words=64, rows=1)
_LARGE = Sizes(blocks=6, width=512, heads=8, hidden=2048, length=16384, words=8192, rows=1)


def long(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """6 blocks of width 512 (small: 2 of 32) in one scan over one row of 16,384 positions (32), out of 8192 words (64).
    A trip keeps only what enters it, because the scores of one block need 8 GiB."""
    sizes = _SMALL if small else _LARGE

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, second, third = jax.random.split(key, 3)
        return {
            "words": normal(first, sizes.words, sizes.width, fan=sizes.width),
            "places": normal(second, sizes.length, sizes.width, fan=sizes.width),
            "norm": {"scale": jnp.ones(sizes.width), "bias": jnp.zeros(sizes.width)},
            "blocks": jax.vmap(lambda one: block_of(one, sizes))(jax.random.split(third, sizes.blocks)),
        }, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values = cast(values, bfloat16)

        def trip(x: jax.Array, block: Tree) -> tuple[jax.Array, None]:
            x = lies(x)
            x = x + _attention(layer_norm(x, **block["norm1"]), block)
            return x + dense(layer_norm(x, **block["norm2"]), block), None

        x = values["words"][batch["x"]] + values["places"]
        x, _ = jax.lax.scan(jax.checkpoint(trip), x, values["blocks"])
        x = lies(layer_norm(x, **values["norm"]))
        logits = jnp.einsum("bsd,vd->bsv", x, values["words"]).astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], sizes.words)).sum(-1)
        lost = jax.nn.logsumexp(logits, -1) - right
        return {"loss": lost.mean(-1).sum(), "count": jnp.float32(len(lost))}, extra

    text = Field((sizes.rows, sizes.length), sizes.words)
    return build("long", params, loss_sums, {"x": text, "y": text}, optimizer)


def _attention(x: jax.Array, block: Tree) -> jax.Array:
    """As `gpt.attention`, with a place to say that every position needs all keys and values."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, block[name]) for name in "qkv")
    k, v = lies(k, shared=True), lies(v, shared=True)
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    at = jnp.arange(x.shape[1])
    weights = jax.nn.softmax(jnp.where(at[:, None] >= at, scores, -1e30), -1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, v), block["out"])
