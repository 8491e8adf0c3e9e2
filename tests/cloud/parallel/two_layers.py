"""A training step for which tests make plans: two layers and Adam."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from cloud._jax import shaped
from cloud.parallel.graph import Graph
from cloud.parallel.tracing.trace import trace

__all__ = ["step_graph"]


def step_graph(width: int = 64) -> Graph:
    """128 rows of 32 features, `width` hidden ones, 16 results."""
    adam = optax.adam(1e-3)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.square(jnp.tanh(batch["x"] @ params["w1"]) @ params["w2"] - batch["y"]).mean()

        value, gradient = jax.value_and_grad(loss)(state["params"])
        change, slots = adam.update(gradient, state["slots"])
        return {"params": optax.apply_updates(state["params"], change), "slots": slots}, value

    params = {"w1": shaped((32, width), jnp.float32), "w2": shaped((width, 16), jnp.float32)}
    state = jax.eval_shape(lambda p: {"params": p, "slots": adam.init(p)}, params)
    return trace(step, state, {"x": shaped((128, 32), jnp.float32), "y": shaped((128, 16), jnp.float32)})
