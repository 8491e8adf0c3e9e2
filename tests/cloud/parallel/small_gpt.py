"""A transformer small enough to compile in seconds: tied head, causal attention, a mask of valid rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, LENGTH, WORDS = 16, 2, 8, 32


def params(blocks: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)

    def weight(*shape: int) -> jax.Array:
        return jnp.asarray(draw.normal(size=shape) * 0.1, jnp.float32)

    def block() -> dict[str, Any]:
        return {"attend": weight(WIDTH, 3 * WIDTH), "project": weight(WIDTH, WIDTH), "up": weight(WIDTH, 4 * WIDTH),
                "down": weight(4 * WIDTH, WIDTH), "scale": jnp.ones(WIDTH)}  # fmt: skip

    return {"words": weight(WORDS, WIDTH), "places": weight(LENGTH, WIDTH), "blocks": [block() for _ in range(blocks)]}


def loss_sums(params: Any, state: Any, batch: Any, key: Any) -> tuple[dict[str, Any], Any]:
    ids, rows = batch["ids"], batch["mask"]
    x = params["words"][ids[:, :-1]] + params["places"]
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for block in params["blocks"]:
        x = _block(block, x, seen)
    guess = jax.nn.log_softmax(x @ params["words"].T)
    losses = -jnp.take_along_axis(guess, ids[:, 1:, None], -1).mean((1, 2))
    return {"examples": rows.sum(), "loss": jnp.sum(jnp.where(rows > 0, losses, 0))}, state


@jax.jit
def _block(block: Any, x: Any, seen: Any) -> Any:
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * block["scale"]
    q, k, v = jnp.split((h @ block["attend"]).reshape(len(x), LENGTH, 3 * HEADS, -1), 3, axis=2)
    scores = jnp.where(seen, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ block["project"]
    return x + jax.nn.silu(x @ block["up"]) @ block["down"]


def batches(count: int, rows: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    mask = np.ones(rows, np.float32)
    mask[-1] = 0
    return [
        {"ids": draw.integers(0, WORDS, (rows, LENGTH + 1)).astype(np.int32), "mask": mask} for _ in range(count)
    ]
