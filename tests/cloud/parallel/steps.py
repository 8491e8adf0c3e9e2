"""Small training steps for the planner's tests, as a user would write them for one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

__all__ = ["mlp", "transformer"]


def transformer(layers: int = 2, d: int = 64, heads: int = 8, rows: int = 16, length: int = 8) -> tuple[Any, Any, Any]:
    """Step, state and batch of attention and MLP blocks without biases, trained by plain SGD on a mean of squares."""
    each = d // heads
    sizes = {"qkv": (d, 3, heads, each), "out": (heads, each, d), "up": (d, 4 * d), "down": (4 * d, d)}
    keys = iter(jax.random.split(jax.random.key(0), 4 * layers + 2))
    blocks = [{name: 0.1 * jax.random.normal(next(keys), size) for name, size in sizes.items()} for _ in range(layers)]
    x, y = (jax.random.normal(next(keys), (rows, length, d)) for _ in range(2))

    def loss(blocks: Any, batch: Any) -> Any:
        h = batch["x"]
        for w in blocks:
            q, k, v = jnp.einsum("bsd,dche->cbshe", h, w["qkv"])
            seen = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k), -1)
            h = h + jnp.einsum("bhqk,bkhe,hed->bqd", seen, v, w["out"])
            h = h + jax.nn.gelu(h @ w["up"]) @ w["down"]
        return jnp.mean((h - batch["y"]) ** 2)

    def step(state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state["params"], batch)
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradient)}, {"loss": value}

    return step, {"params": blocks}, {"x": x, "y": y}


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
