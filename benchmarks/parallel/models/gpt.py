"""A decoder of transformer blocks with its head tied to the embedding, and one with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, layer_norm, normal

__all__ = ["SMALL", "Sizes", "attention", "block_of", "dense", "gpt", "moe"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """`experts` 0: plain blocks; else each row is routed to one of them, and each has a capacity of `room` times its
    even share."""

    blocks: int = 12
    width: int = 1024
    heads: int = 16
    hidden: int = 4096
    length: int = 1024
    words: int = 32768
    rows: int = 32
    experts: int = 0
    room: float = 1.25


SMALL = Sizes(blocks=2, width=64, heads=8, hidden=128, length=16, words=128, rows=8)


def gpt(
    small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None, sizes: Sizes | None = None
) -> Model:
    """12 blocks of width 1024 (small: 2 of 64), 32 rows (8) of 1024 tokens (16), a vocabulary of 32,768 (128)."""
    return _transformer("gpt", sizes or (SMALL if small else Sizes()), bfloat16, optimizer)


def moe(
    small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None, sizes: Sizes | None = None
) -> Model:
    """6 blocks with 16 experts each (small: 2 with 8), as in the Switch Transformer (Fedus et al., 2021), dispatched by
    einsum with a capacity (GShard, Lepikhin et al., 2020)."""
    given = Sizes(blocks=2, width=64, heads=8, hidden=128, length=16, words=128, rows=8, experts=8)
    return _transformer("moe", sizes or (given if small else Sizes(blocks=6, experts=16)), bfloat16, optimizer)


def _transformer(name: str, sizes: Sizes, bfloat16: bool, optimizer: Optimizer | None) -> Model:
    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, second, *blocks = jax.random.split(key, 2 + sizes.blocks)
        return {
            "words": normal(first, sizes.words, sizes.width, fan=sizes.width),
            "places": normal(second, sizes.length, sizes.width, fan=sizes.width),
            "norm": _norm(sizes.width),
            **{f"block{i}": block_of(block, sizes) for i, block in enumerate(blocks)},
        }, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values = cast(values, bfloat16)
        x = values["words"][batch["x"]] + values["places"]
        feed = _experts(sizes) if sizes.experts else dense
        for index in range(sizes.blocks):
            block = values[f"block{index}"]
            x = x + attention(layer_norm(x, **block["norm1"]), block)
            x = x + feed(layer_norm(x, **block["norm2"]), block)
        logits = jnp.einsum("bsd,vd->bsv", layer_norm(x, **values["norm"]), values["words"]).astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], sizes.words)).sum(-1)
        lost = jax.nn.logsumexp(logits, -1) - right
        return {"loss": lost.mean(-1).sum(), "count": jnp.float32(len(lost))}, extra

    text = Field((sizes.rows, sizes.length), sizes.words)
    return build(name, params, loss_sums, {"x": text, "y": text}, optimizer)


def _norm(width: int) -> Tree:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def block_of(key: jax.Array, sizes: Sizes) -> Tree:
    """Parameters of one block."""
    q, k, v, out, up, down, gate = jax.random.split(key, 7)
    width, heads, hidden = sizes.width, sizes.heads, sizes.hidden
    many = (sizes.experts,) if sizes.experts else ()
    return {
        "norm1": _norm(width),
        "norm2": _norm(width),
        **{name: normal(one, width, heads, width // heads) for name, one in (("q", q), ("k", k), ("v", v))},
        "out": normal(out, heads, width // heads, width, fan=width),
        "up": {"w": normal(up, *many, width, hidden, fan=width), "b": jnp.zeros((*many, hidden))},
        "down": {"w": normal(down, *many, hidden, width, fan=hidden), "b": jnp.zeros((*many, width))},
        **({"gate": normal(gate, width, sizes.experts)} if many else {}),
    }


def attention(x: jax.Array, block: Tree) -> jax.Array:
    """Causal attention over `x` [rows, positions, width]."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, block[name]) for name in "qkv")
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, v), block["out"])


def dense(x: jax.Array, block: Tree) -> jax.Array:
    """The MLP of a block."""
    hidden = jax.nn.gelu(x @ block["up"]["w"] + block["up"]["b"])
    done: jax.Array = hidden @ block["down"]["w"] + block["down"]["b"]
    return done


def _experts(sizes: Sizes) -> Callable[[jax.Array, Tree], jax.Array]:
    """Each row of the batch is a group with its own capacity, so that rows are independent."""
    capacity = max(1, int(sizes.room * sizes.length / sizes.experts))

    def feed(x: jax.Array, block: Tree) -> jax.Array:
        chances = jax.nn.softmax((x @ block["gate"]).astype(jnp.float32), -1)
        chosen = jax.nn.one_hot(chances.argmax(-1), sizes.experts)
        place = jnp.cumsum(chosen, 1) * chosen - 1
        sent = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)
        weight = (sent * chances.max(-1)[..., None, None]).astype(x.dtype)
        given = jnp.einsum("bsec,bsd->ebcd", sent.astype(x.dtype), x)
        hidden = jnp.einsum("ebcd,edf->ebcf", given, block["up"]["w"]) + block["up"]["b"][:, None, None]
        done = jnp.einsum("ebcf,efd->ebcd", jax.nn.gelu(hidden), block["down"]["w"]) + block["down"]["b"][:, None, None]
        return jnp.einsum("bsec,ebcd->bsd", weight, done)

    return feed
