"""A recommendation model: embedding tables and the dot products of their rows (DLRM, Naumov et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, normal

__all__ = ["dlrm"]


_TABLES = [1 << 21] * 4 + [1 << 17] * 8 + [1 << 10] * 14
_SMALL_TABLES = [64] * 3


def dlrm(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """26 tables of width 64: 4 of 2^21 rows, 8 of 2^17, 14 of 1024; 32,768 rows per batch (small: 3 of 64, 32 rows)."""
    tables, width, rows, dense = _SMALL_TABLES if small else _TABLES, 16 if small else 64, 32 if small else 1 << 15, 16
    lower, upper = ([32], [32, 1]) if small else ([512, 256], [1024, 512, 256, 1])
    pairs = (len(tables) + 1) ** 2

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, second, *keys = jax.random.split(key, 2 + len(tables))
        found = {f"table{i}": normal(keys[i], size, width, fan=width) for i, size in enumerate(tables)}
        lower_, upper_ = _layers(first, [dense, *lower, width]), _layers(second, [pairs + width, *upper])
        return {**found, "lower": lower_, "upper": upper_}, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values = cast(values, bfloat16)
        x = jax.nn.relu(_run(cast(batch["x"], bfloat16), values["lower"]))
        looked = [values[f"table{i}"][batch["ids"][:, i]] for i in range(len(tables))]
        features = jnp.stack([x, *looked], 1)
        products = jnp.einsum("bid,bjd->bij", features, features).reshape(-1, pairs)
        logits = _run(jnp.concatenate([x, products], 1), values["upper"])[:, 0].astype(jnp.float32)
        lost = jax.nn.softplus(logits) - logits * jax.nn.sigmoid(batch["y"])
        return {"loss": lost.sum(), "count": jnp.float32(len(lost))}, extra

    ids = Field((rows, len(tables)), min(tables))
    return build("dlrm", params, loss_sums, {"x": Field((rows, dense)), "ids": ids, "y": Field((rows,))}, optimizer)


def _layers(key: jax.Array, widths: Sequence[int]) -> Tree:
    keys = jax.random.split(key, len(widths) - 1)
    sizes = enumerate(pairwise(widths))
    return {f"layer{i}": {"w": normal(keys[i], given, made), "b": jnp.zeros(made)} for i, (given, made) in sizes}


def _run(x: jax.Array, layers: Tree) -> jax.Array:
    for index in range(len(layers)):
        layer = layers[f"layer{index}"]
        x = (jax.nn.relu(x) if index else x) @ layer["w"] + layer["b"]
    return x
