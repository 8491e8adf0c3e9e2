"""Training steps of known sizes for trying the planner: plain JAX for one device, as shapes; nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from cloud._jax import shaped

__all__ = ["EXAMPLES", "Example"]

Tree = Any
LENGTH, WORDS, WIDTH, HEADS, ROWS = 1024, 32768, 768, 12, 32


@dataclass(frozen=True)
class Example:
    """`step(state, batch) -> (state, metrics)`, and the shapes of its arguments. `about`: a description in one line."""

    step: Callable[[Tree, Tree], tuple[Tree, Tree]]
    state: Tree
    batch: Tree
    about: str


def _example(about: str, params: Tree, loss: Callable[[Tree, Tree], jax.Array], batch: Tree) -> Example:
    adam = optax.adam(1e-3)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        value, gradient = jax.value_and_grad(loss)(state["params"], batch)
        change, slots = adam.update(gradient, state["slots"], state["params"])
        return {"params": optax.apply_updates(state["params"], change), "slots": slots}, {"loss": value}

    state = jax.eval_shape(lambda given: {"params": given, "slots": adam.init(given)}, params)
    return Example(step, state, batch, about)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    made: jax.ShapeDtypeStruct = shaped(shape, jnp.float32)
    return made


def _mlp() -> Example:
    width, rows = 4096, 4096
    params = [{"w": _floats(width, width), "b": _floats(width)} for _ in range(8)]

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        for layer in params:
            x = jax.nn.gelu(x @ layer["w"] + layer["b"])
        return jnp.square(x - batch["y"]).mean()

    batch = {"x": _floats(rows, width), "y": _floats(rows, width)}
    return _example("8 layers of 4096, 4096 rows", params, loss, batch)


def _transformer(about: str, blocks: int, experts: int) -> Example:
    many, norm = ((experts,) if experts else ()), {"scale": _floats(WIDTH), "bias": _floats(WIDTH)}
    block = {
        **{name: _floats(WIDTH, HEADS, WIDTH // HEADS) for name in "qkv"},
        "out": _floats(HEADS, WIDTH // HEADS, WIDTH), "norm1": norm, "norm2": norm,
        "up": _floats(*many, WIDTH, 4 * WIDTH), "down": _floats(*many, 4 * WIDTH, WIDTH),
        **({"gate": _floats(WIDTH, experts)} if experts else {}),
    }  # fmt: skip
    ends = {"words": _floats(WORDS, WIDTH), "places": _floats(LENGTH, WIDTH), "norm": norm}
    feed = partial(_experts, experts) if experts else _dense

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x = params["words"][batch["x"]] + params["places"]
        for block in params["blocks"]:
            x = x + _attention(_norm(x, **block["norm1"]), block)
            x = x + feed(_norm(x, **block["norm2"]), block)
        logits = jnp.einsum("bsd,vd->bsv", _norm(x, **params["norm"]), params["words"])
        right = jnp.take_along_axis(logits, batch["y"][..., None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - right).mean()

    text = shaped((ROWS, LENGTH), jnp.int32)
    return _example(about, {**ends, "blocks": [block] * blocks}, loss, {"x": text, "y": text})


def _norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale + bias


def _attention(x: jax.Array, block: Tree) -> jax.Array:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, block[name]) for name in "qkv")
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    scores = jnp.where(seen, jnp.einsum("bshk,bthk->bhst", q, k) * q.shape[-1] ** -0.5, -1e30)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v), block["out"])


def _dense(x: jax.Array, block: Tree) -> jax.Array:
    done: jax.Array = jax.nn.gelu(x @ block["up"]) @ block["down"]
    return done


def _experts(experts: int, x: jax.Array, block: Tree) -> jax.Array:
    """Each token goes to one expert (Switch Transformer, Fedus et al., 2021) with a capacity factor of 1.25; dispatched
    by einsum (GShard, Lepikhin et al., 2020)."""
    chances = jax.nn.softmax(x @ block["gate"])
    chosen = jax.nn.one_hot(chances.argmax(-1), experts)
    place = jnp.cumsum(chosen, axis=1) * chosen - 1
    sent = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), 5 * LENGTH // (4 * experts))
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", jnp.einsum("bsec,bsd->ebcd", sent, x), block["up"]))
    done = jnp.einsum("ebcf,efd->ebcd", hidden, block["down"])
    return jnp.einsum("bsec,ebcd->bsd", sent * chances.max(-1)[..., None, None], done)


EXAMPLES: Mapping[str, Callable[[], Example]] = {
    "mlp": _mlp,
    "gpt": partial(_transformer, "12 blocks of 768, 124 M parameters, 32 x 1024 tokens", 12, 0),
    "moe": partial(_transformer, "6 blocks of 768 with 16 experts each, 32 x 1024 tokens", 6, 16),
}
"""Name to the function that makes the example."""
