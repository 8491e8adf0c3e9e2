"""Small training steps for the planner's tests, as a user would write them for one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.parallel.closed_forms import Sizes, two_blocks

__all__ = ["mlp", "transformer"]


def transformer(layers: int = 2, d: int = 64, heads: int = 8, rows: int = 16, length: int = 8) -> tuple[Any, Any, Any]:
    """Step, state and batch of the two blocks that closed forms are known of, small."""
    step, state, batch = two_blocks(Sizes(layers, d, heads, rows, length))
    draw = np.random.default_rng(0)
    params, rows_of = (jax.tree.map(lambda leaf: jnp.float32(draw.normal(size=leaf.shape)), t) for t in (state, batch))
    return step, jax.tree.map(lambda leaf: 0.1 * leaf, params), rows_of


def mlp(layers: int = 2, d: int = 64, rows: int = 32, rate: float = 1e-2) -> tuple[Any, Any, Any]:
    """Step, state and batch of dense layers with biases, trained by Adam."""
    keys = jax.random.split(jax.random.key(1), layers + 2)
    params = [{"w": 0.1 * jax.random.normal(key, (d, d)), "b": jnp.zeros(d)} for key in keys[2:]]
    x, y = (jax.random.normal(key, (rows, d)) for key in keys[:2])
    adam = optax.adam(rate)

    def loss(params: Any, batch: Any) -> Any:
        h = batch["x"]
        for layer in params:
            h = jax.nn.relu(h @ layer["w"] + layer["b"])
        return jnp.mean((h - batch["y"]) ** 2)

    def step(state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state["params"], batch)
        updates, slots = adam.update(gradient, state["slots"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "slots": slots}, {"loss": value}

    return step, {"params": params, "slots": adam.init(params)}, {"x": x, "y": y}
