"""Retrieval with two towers and a softmax over the items of the batch (Yi et al., 2019)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, lies, normal

__all__ = ["towers"]


def towers(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """Users and items with a table of 10^7 rows of width 64 each (small: 64 of 16), 8192 rows (32). A user is an
    identifier and the mean of 16 items (4) seen before; each tower has layers of 256 and 128 (32 and 16)."""
    size, width, rows, seen, hidden, out = (64, 16, 32, 4, 32, 16) if small else (10**7, 64, 8192, 16, 256, 128)

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        users, items, *keys = jax.random.split(key, 6)
        layers = {
            "user1": (2 * width, hidden),
            "user2": (hidden, out),
            "item1": (width, hidden),
            "item2": (hidden, out),
        }
        return {
            "users": normal(users, size, width, fan=width),
            "items": normal(items, size, width, fan=width),
            **{name: {"w": normal(one, *shape), "b": jnp.zeros(shape[1])}
               for one, (name, shape) in zip(keys, layers.items(), strict=True)},
        }, {}  # fmt: skip

    def tower(x: jax.Array, name: str, values: Tree) -> jax.Array:
        first, second = values[f"{name}1"], values[f"{name}2"]
        x = jax.nn.relu(lies(x) @ first["w"] + first["b"]) @ second["w"] + second["b"]
        wide = x.astype(jnp.float32)
        return wide * jax.lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + 1e-6)

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values = cast(values, bfloat16)
        history = lies(values["items"][batch["seen"]]).mean(1)
        user = lies(tower(jnp.concatenate([values["users"][batch["user"]], history], -1), "user", values))
        item = tower(values["items"][batch["item"]], "item", values)
        scores = 20.0 * user @ lies(item, shared=True).T
        lost = jax.nn.logsumexp(scores, -1) - 20.0 * (user * lies(item)).sum(-1)
        return {"loss": lost.sum(), "count": jnp.float32(len(lost))}, extra

    fields = {"user": Field((rows,), size), "item": Field((rows,), size), "seen": Field((rows, seen), size)}
    return build("towers", params, loss_sums, fields, optimizer)
