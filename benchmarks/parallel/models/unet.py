"""A U-Net (Ronneberger et al., 2015) that classifies each pixel."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, normal

__all__ = ["unet"]

_AS = ("NHWC", "HWIO", "NHWC")


def unet(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """32 to 512 channels over 64 images of 256 x 256 (small: 8 to 32 over 8 of 16 x 16)."""
    rows, size, widths = (8, 16, (8, 16, 32)) if small else (64, 256, (32, 64, 128, 256, 512))

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        keys = iter(jax.random.split(key, 5 * len(widths) + 1))
        tree: Tree = {}
        for level, (given, made) in enumerate(zip((3, *widths), widths, strict=False)):
            tree[f"down{level}"] = {"a": _conv(next(keys), 3, given, made), "b": _conv(next(keys), 3, made, made)}
        for level, (made, given) in enumerate(pairwise(widths)):
            tree[f"up{level}"] = {"grow": _conv(next(keys), 2, given, made), "a": _conv(next(keys), 3, 2 * made, made),
                                  "b": _conv(next(keys), 3, made, made)}  # fmt: skip
        return {**tree, "head": _conv(next(keys), 1, widths[0], 1)}, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values, x = cast(values, bfloat16), cast(batch["x"], bfloat16)
        kept = []
        for level in range(len(widths)):
            x = _twice(_halved(x) if level else x, values[f"down{level}"])
            kept.append(x)
        for level in reversed(range(len(widths) - 1)):
            part = values[f"up{level}"]
            x = jax.lax.conv_transpose(x, part["grow"]["w"], (2, 2), "SAME", dimension_numbers=_AS) + part["grow"]["b"]
            x = _twice(jnp.concatenate([kept[level], x], -1), part)
        logits = _convolved(x, values["head"])[..., 0].astype(jnp.float32)
        lost = jax.nn.softplus(logits) - logits * batch["y"]
        return {"loss": lost.mean((1, 2)).sum(), "count": jnp.float32(len(lost))}, extra

    fields = {"x": Field((rows, size, size, 3)), "y": Field((rows, size, size))}
    return build("unet", params, loss_sums, fields, optimizer)


def _conv(key: jax.Array, size: int, given: int, made: int) -> Tree:
    return {"w": normal(key, size, size, given, made, fan=size * size * given), "b": jnp.zeros(made)}


def _convolved(x: jax.Array, conv: Tree) -> jax.Array:
    y: jax.Array = jax.lax.conv_general_dilated(x, conv["w"], (1, 1), "SAME", dimension_numbers=_AS) + conv["b"]
    return y


def _twice(x: jax.Array, part: Tree) -> jax.Array:
    return jax.nn.relu(_convolved(jax.nn.relu(_convolved(x, part["a"])), part["b"]))


def _halved(x: jax.Array) -> jax.Array:
    y: jax.Array = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return y
