"""A vision transformer (Dosovitskiy et al., 2021): patches by a convolution, blocks one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.gpt import Sizes, block_of, dense
from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, layer_norm, lies, normal

__all__ = ["vit"]

_SMALL = Sizes(blocks=2, width=32, heads=8, hidden=64, rows=16)
_LARGE = Sizes(blocks=6, width=768, heads=12, hidden=3072, rows=256)


def vit(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """6 blocks of width 768 (small: 2 of 32), not in a scan; 256 images (16) of 224 x 224 (16 x 16) in patches of
    16 x 16 (4 x 4), and one place for the class."""
    sizes = _SMALL if small else _LARGE
    size, patch, classes = (16, 4, 8) if small else (224, 16, 1000)
    places = (size // patch) ** 2 + 1

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, second, third, last, *blocks = jax.random.split(key, 4 + sizes.blocks)
        return {
            "patch": {"w": normal(first, patch, patch, 3, sizes.width, fan=3 * patch**2), "b": jnp.zeros(sizes.width)},
            "class": normal(second, 1, 1, sizes.width, fan=sizes.width),
            "places": normal(third, places, sizes.width, fan=sizes.width),
            "norm": {"scale": jnp.ones(sizes.width), "bias": jnp.zeros(sizes.width)},
            "head": normal(last, sizes.width, classes),
            **{f"block{i}": block_of(one, sizes) for i, one in enumerate(blocks)},
        }, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values, x = cast(values, bfloat16), cast(batch["x"], bfloat16)
        x = jax.lax.conv_general_dilated(x, values["patch"]["w"], (patch, patch), "VALID",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC")) + values["patch"]["b"]  # fmt: skip
        x = x.reshape(len(x), -1, sizes.width)
        x = jnp.concatenate([jnp.broadcast_to(values["class"], (len(x), 1, sizes.width)), x], 1) + values["places"]
        for index in range(sizes.blocks):
            block, x = values[f"block{index}"], lies(x)
            x = x + _attention(layer_norm(x, **block["norm1"]), block)
            x = x + dense(layer_norm(x, **block["norm2"]), block)
        logits = (layer_norm(x[:, 0], **values["norm"]) @ values["head"]).astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], classes)).sum(-1)
        return {"loss": (jax.nn.logsumexp(logits, -1) - right).sum(), "count": jnp.float32(len(right))}, extra

    fields = {"x": Field((sizes.rows, size, size, 3)), "y": Field((sizes.rows,), classes)}
    return build("vit", params, loss_sums, fields, optimizer)


def _attention(x: jax.Array, block: Tree) -> jax.Array:
    """Every patch sees all."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, block[name]) for name in "qkv")
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores, -1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, v), block["out"])
