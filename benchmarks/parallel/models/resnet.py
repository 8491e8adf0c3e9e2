"""ResNet-50 (He et al., 2015) for 224 x 224 images."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.parallel.models.model import Field, Model, Optimizer, Tree, build, cast, normal

__all__ = ["resnet50"]


def resnet50(small: bool = False, bfloat16: bool = False, optimizer: Optimizer | None = None) -> Model:
    """256 images, stages of 3, 4, 6, 3 bottlenecks from 256 to 2048 channels (small: 16 images of 16 x 16, two stages
    of one). Batch normalisation over the whole batch."""
    rows, size, stem, stages, classes = (16, 16, 8, (1, 1), 16) if small else (256, 224, 64, (3, 4, 6, 3), 1000)
    plan = [(f"stage{s}block{b}", stem << s, 2 if s and not b else 1) for s, n in enumerate(stages) for b in range(n)]

    def params(key: jax.Array) -> tuple[Tree, Tree]:
        first, last, *keys = jax.random.split(key, 2 + len(plan))
        tree: Tree = {"stem": _conv(first, 3 if small else 7, 3, stem)}
        channels = stem
        for (name, width, _), one in zip(plan, keys, strict=True):
            a, b, c, d = jax.random.split(one, 4)
            tree[name] = {"a": _conv(a, 1, channels, width), "b": _conv(b, 3, width, width),
                          "c": _conv(c, 1, width, 4 * width)}  # fmt: skip
            if channels != 4 * width:
                tree[name]["skip"] = _conv(d, 1, channels, 4 * width)
            channels = 4 * width
        tree["head"] = {"w": normal(last, channels, classes), "b": jnp.zeros(classes)}
        means = jax.tree.map(jnp.zeros_like, {k: _biases(v) for k, v in tree.items() if k != "head"})
        return tree, means

    def loss_sums(values: Tree, extra: Tree, batch: Tree) -> tuple[Tree, Tree]:
        values, x = cast(values, bfloat16), cast(batch["x"], bfloat16)
        means: Tree = {}
        x, means["stem"] = _normed(x, values["stem"], 1 if small else 2)
        x = jax.nn.relu(x)
        if not small:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for name, _, stride in plan:
            block, seen = values[name], {}
            y, seen["a"] = _normed(x, block["a"], 1)
            y, seen["b"] = _normed(jax.nn.relu(y), block["b"], stride)
            y, seen["c"] = _normed(jax.nn.relu(y), block["c"], 1)
            if "skip" in block:
                x, seen["skip"] = _normed(x, block["skip"], stride)
            x = jax.nn.relu(x + y)
            means[name] = seen
        pooled = x.astype(jnp.float32).mean((1, 2))
        logits = pooled @ values["head"]["w"].astype(jnp.float32) + values["head"]["b"].astype(jnp.float32)
        right = (logits * jax.nn.one_hot(batch["y"], classes)).sum(-1)
        running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, extra, means)
        return {"loss": (jax.nn.logsumexp(logits, -1) - right).sum(), "count": jnp.float32(len(right))}, running

    fields = {"x": Field((rows, size, size, 3)), "y": Field((rows,), classes)}
    return build("resnet50", params, loss_sums, fields, optimizer)


def _conv(key: jax.Array, size: int, given: int, made: int) -> Tree:
    weights = normal(key, size, size, given, made, fan=size * size * given)
    return {"w": weights, "scale": jnp.ones(made), "bias": jnp.zeros(made)}


def _biases(tree: Tree) -> Tree:
    return tree["bias"] if "bias" in tree else {name: _biases(part) for name, part in tree.items()}


def _normed(x: jax.Array, conv: Tree, stride: int) -> tuple[jax.Array, jax.Array]:
    """Convolution and batch normalisation; also returns the mean of each channel."""
    y = jax.lax.conv_general_dilated(x, conv["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    wide = y.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.square(wide).mean((0, 1, 2)) - jnp.square(mean)
    normed = (wide - mean) * (jax.lax.rsqrt(variance + 1e-5) * conv["scale"]) + conv["bias"]
    return normed.astype(x.dtype), jax.lax.stop_gradient(mean)
