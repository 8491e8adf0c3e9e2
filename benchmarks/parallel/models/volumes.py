"""A residual network over volumes, as for computed tomography (3-D ResNet, Hara et al., 2017)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, lies, normal

__all__ = ["volumes"]

_AS = ("NDHWC", "DHWIO", "NDHWC")


def volumes(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """16 volumes of 64 x 64 x 64 with 2 channels (small: 16 of 8 x 8 x 8); two blocks (one) each of 32, 64, 128 and 256
    channels (8, 16), each stage half as large as the one before. Groups of 8 channels are normalised."""
    rows, size, widths, blocks, classes = (16, 8, (8, 16), 1, 4) if small else (16, 64, (32, 64, 128, 256), 2, 8)
    plan = [(f"stage{s}block{b}", width, 2 if s and not b else 1)
            for s, width in enumerate(widths) for b in range(blocks)]  # fmt: skip

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, last, *keys = jax.random.split(key, 2 + len(plan))
        tree: Tree = {"stem": _conv(first, 3, 2, widths[0])}
        channels = widths[0]
        for (name, width, stride), one in zip(plan, keys, strict=True):
            a, b, c = jax.random.split(one, 3)
            tree[name] = {"a": _conv(a, 3, channels, width), "b": _conv(b, 3, width, width)}
            if channels != width or stride > 1:
                tree[name]["skip"] = _conv(c, 1, channels, width)
            channels = width
        return {**tree, "head": normal(last, channels, classes)}, {}

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values, x = cast(values, bfloat16), cast(batch["x"], bfloat16)
        x = jax.nn.relu(_normed(lies(x), values["stem"], 1))
        for name, _, stride in plan:
            block = values[name]
            y = _normed(jax.nn.relu(_normed(x, block["a"], stride)), block["b"], 1)
            x = lies(jax.nn.relu(y + (_normed(x, block["skip"], stride) if "skip" in block else x)))
        logits = x.astype(jnp.float32).mean((1, 2, 3)) @ values["head"].astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], classes)).sum(-1)
        return {"loss": (jax.nn.logsumexp(logits, -1) - right).sum(), "count": jnp.float32(len(right))}, extra

    fields = {"x": Field((rows, size, size, size, 2)), "y": Field((rows,), classes)}
    return build("volumes", params, loss_sums, fields, optimizer)


def _conv(key: jax.Array, size: int, given: int, made: int) -> Tree:
    weights = normal(key, size, size, size, given, made, fan=size**3 * given)
    return {"w": weights, "scale": jnp.ones(made), "bias": jnp.zeros(made)}


def _normed(x: jax.Array, conv: Tree, stride: int) -> jax.Array:
    """Convolution and group normalisation."""
    y = jax.lax.conv_general_dilated(x, conv["w"], (stride,) * 3, "SAME", dimension_numbers=_AS)
    wide = y.astype(jnp.float32).reshape(*y.shape[:-1], -1, 8)
    centred = wide - wide.mean((1, 2, 3, 5), keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean((1, 2, 3, 5), keepdims=True) + 1e-5)
    scaled: jax.Array = (normed.reshape(y.shape) * conv["scale"] + conv["bias"]).astype(x.dtype)
    return scaled
