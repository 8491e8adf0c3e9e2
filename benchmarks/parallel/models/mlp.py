"""A regression by dense layers of equal width."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, normal

__all__ = ["mlp"]


def mlp(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """8 layers of 4096 (small: 3 of 64), 4096 rows (32)."""
    depth, width, rows = (3, 64, 32) if small else (8, 4096, 4096)

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        keys = jax.random.split(key, depth)
        return {f"layer{i}": {"w": normal(keys[i], width, width), "b": jnp.zeros(width)} for i in range(depth)}, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values, x = cast(values, bfloat16), cast(batch["x"], bfloat16)
        for index in range(depth):
            layer = values[f"layer{index}"]
            x = x @ layer["w"] + layer["b"]
            x = jax.nn.gelu(x) if index < depth - 1 else x
        error = jnp.square(x.astype(jnp.float32) - batch["y"]).mean(-1)
        return {"loss": error.sum(), "count": jnp.float32(len(error))}, extra

    return build("mlp", params, loss_sums, {"x": Field((rows, width)), "y": Field((rows, width))}, optimizer)
