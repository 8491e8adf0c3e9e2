"""Models whose layers, positions or microbatches are trips of a `lax.scan`, as large models are usually written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

from benchmarks.parallel.models.gpt import SMALL, Sizes, attention, block_of, dense
from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, layer_norm, lies, normal

__all__ = ["SCANNED", "accumulated", "lstm", "mamba", "scanned_gpt"]


def scanned_gpt(
    small: bool = False, sizes: Sizes | None = None, again: bool = False, optimizer: Optimizer | None = None
) -> Model:
    """The blocks of `gpt` as one scan over stacked parameters. `again`: a trip keeps only what enters it."""
    return build("scanned", *_scanned(sizes or (SMALL if small else Sizes()), again), optimizer)


def accumulated(small: bool = False, parts: int = 4) -> Model:
    """`scanned_gpt`, its gradient added up over `parts` microbatches in a scan; the number of rows stays the same."""
    sizes = SMALL if small else Sizes()
    sizes = replace(sizes, rows=max(sizes.rows, 8 * parts))
    params, loss_sums, fields = _scanned(sizes, False)
    update = optax.adam(1e-3)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        def loss(values: Tree, rows: Tree) -> jax.Array:
            value: jax.Array = loss_sums(values, {}, rows)[0]["loss"]
            return value

        def trip(carry: Tree, rows: Tree) -> tuple[Tree, None]:
            lost, gradient = jax.value_and_grad(loss)(state["params"], rows)
            return (carry[0] + lost, jax.tree.map(jnp.add, carry[1], gradient)), None

        apart = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)
        zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, state["params"])
        (lost, total), _ = jax.lax.scan(trip, zeros, apart)
        gradient = jax.tree.map(lambda g: g / sizes.rows, total)
        change, slots = update.update(gradient, state["slots"], state["params"])
        return {"params": optax.apply_updates(state["params"], change), "slots": slots, "extra": {}}, {
            "loss": lost / sizes.rows
        }

    return replace(build("accumulated", params, loss_sums, fields), step=step)


def lstm(small: bool = False, optimizer: Optimizer | None = None) -> Model:
    """One LSTM layer of 1024 (small: 32) over 256 positions (12), 256 rows (16); the last state is classified."""
    width, length, rows, classes = (32, 12, 16, 8) if small else (1024, 256, 256, 1024)

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, second, third = jax.random.split(key, 3)
        made = {"in": normal(first, width, 4 * width), "again": normal(second, width, 4 * width)}
        return {**made, "bias": jnp.zeros(4 * width), "out": normal(third, width, classes)}, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        def cell(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            h, c = map(lies, carry)
            i, f, g, o = jnp.split(x @ values["in"] + h @ values["again"] + values["bias"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((batch["x"].shape[0], width))
        (h, _), _ = jax.lax.scan(cell, (zero, zero), batch["x"].swapaxes(0, 1))
        return _classified(h @ values["out"], batch["y"]), extra

    return build(
        "lstm", params, loss_sums, {"x": Field((rows, length, width)), "y": Field((rows,), classes)}, optimizer
    )


def mamba(small: bool = False, optimizer: Optimizer | None = None) -> Model:
    """4 blocks (small: 2) of a selective state-space model (Gu and Dao, 2023) with a sequential scan over positions:
    width 1024 inside (64), 16 states (4), 256 positions (12), 64 rows (16)."""
    blocks, width, states, length, rows, classes = (2, 64, 4, 12, 16, 8) if small else (4, 1024, 16, 256, 64, 1024)

    def block(key: jax.Array) -> Tree:
        into, gate, steps, reads, writes, out = jax.random.split(key, 6)
        made = {"in": normal(into, width, width), "gate": normal(gate, width, width)}
        made |= {"steps": normal(steps, width, width), "reads": normal(reads, width, states)}
        made |= {"writes": normal(writes, width, states), "out": normal(out, width, width)}
        return {**made, "decay": jnp.zeros((width, states)), "norm": _norm(width)}

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        head, *keys = jax.random.split(key, 1 + blocks)
        return {"head": normal(head, width, classes), **{f"block{i}": block(one) for i, one in enumerate(keys)}}, {}

    def mixed(x: jax.Array, w: Tree) -> jax.Array:
        u = jax.nn.silu(x @ w["in"])
        step, read, write = jax.nn.softplus(u @ w["steps"]), u @ w["reads"], u @ w["writes"]
        decay = -jnp.exp(w["decay"])

        def trip(h: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            u, step, read, write = map(lies, at)
            h = jnp.exp(step[..., None] * decay) * h + (step * u)[..., None] * write[:, None]
            return h, jnp.einsum("bds,bs->bd", h, read)

        by_place = [each.swapaxes(0, 1) for each in (u, step, read, write)]
        _, y = jax.lax.scan(trip, jnp.zeros((x.shape[0], width, states)), tuple(by_place))
        done: jax.Array = (y.swapaxes(0, 1) * jax.nn.silu(x @ w["gate"])) @ w["out"]
        return done

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        x = batch["x"]
        for i in range(blocks):
            w = values[f"block{i}"]
            x = x + mixed(layer_norm(x, **w["norm"]), w)
        return _classified(x.mean(1) @ values["head"], batch["y"]), extra

    fields = {"x": Field((rows, length, width)), "y": Field((rows,), classes)}
    return build("mamba", params, loss_sums, fields, optimizer)


SCANNED: Mapping[str, Callable[..., Model]] = {
    "scanned12": scanned_gpt,
    "scanned48": lambda small=False: scanned_gpt(small, None if small else Sizes(blocks=48), again=True),
    "accumulated": accumulated,
    "lstm": lstm,
    "mamba": mamba,
}
"""Name to `make(small=False)`."""

Parts = tuple[
    Callable[[jax.Array], tuple[Tree, Tree]], Callable[[Tree, Tree, Tree], tuple[Tree, Tree]], Mapping[str, Field]
]


def _scanned(sizes: Sizes, again: bool) -> Parts:
    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, second, third = jax.random.split(key, 3)
        return {
            "words": normal(first, sizes.words, sizes.width, fan=sizes.width),
            "places": normal(second, sizes.length, sizes.width, fan=sizes.width),
            "norm": _norm(sizes.width),
            "blocks": jax.vmap(lambda one: block_of(one, sizes))(jax.random.split(third, sizes.blocks)),
        }, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        def trip(x: jax.Array, block: Tree) -> tuple[jax.Array, None]:
            x = lies(x)
            x = x + attention(layer_norm(x, **block["norm1"]), block)
            return x + dense(layer_norm(x, **block["norm2"]), block), None

        x = values["words"][batch["x"]] + values["places"]
        x, _ = jax.lax.scan(jax.checkpoint(trip) if again else trip, x, values["blocks"])
        logits = jnp.einsum("bsd,vd->bsv", layer_norm(x, **values["norm"]), values["words"]).astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], sizes.words)).sum(-1)
        lost = jax.nn.logsumexp(logits, -1) - right
        return {"loss": lost.mean(-1).sum(), "count": jnp.float32(len(lost))}, extra

    text = Field((sizes.rows, sizes.length), sizes.words)
    return params, loss_sums, {"x": text, "y": text}


def _norm(width: int) -> Tree:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def _classified(logits: jax.Array, labels: jax.Array) -> Tree:
    lost = jax.nn.logsumexp(logits, -1) - (logits * jax.nn.one_hot(labels, logits.shape[-1])).sum(-1)
    return {"loss": lost.sum(), "count": jnp.float32(len(lost))}
