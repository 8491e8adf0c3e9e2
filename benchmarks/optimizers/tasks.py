"""Tasks for the optimisers: a loss, initial weights, batches, and a measure on held-out examples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.engine import lower
from cloud.zoo import resnet8

__all__ = ["TASKS", "Task"]

Tree = Any


@dataclass(frozen=True)
class Task:
    """`fresh(seed)` -> (params, state); `loss(params, state, batch)` -> (mean loss, state); `batch(random)`;
    `measure(params, state)` -> validation loss."""

    name: str
    fresh: Callable[[int], tuple[Tree, Tree]]
    loss: Callable[[Tree, Tree, Any], tuple[Any, Tree]]
    batch: Callable[[np.random.Generator], Any]
    measure: Callable[[Tree, Tree], Any]


def images(data: Path, batch: int = 64) -> Task:
    """ResNet-8 on a tenth of MNIST's training images; measured on 1,024 of its test images."""
    with np.load(data / "mnist.npz") as arrays:
        x, y, held, truth = (np.asarray(arrays[name]) for name in ("x_train", "y_train", "x_test", "y_test"))
    some, others = (np.random.default_rng(5).permutation(len(a))[:n] for a, n in ((x, 6000), (held, 1024)))
    x, held = (a.reshape(len(a), 1, 28, 28).astype(np.float32) / 255 - 0.1307 for a in (x[some], held[others]))
    y, truth = y[some].astype(np.int32), truth[others].astype(np.int32)
    function = lower(resnet8((1, 28, 28)), training=True)

    def run(params: Tree, state: Tree, some: Any, train: bool) -> tuple[Any, Tree]:
        outputs, state = function.apply(params, state, {"x": some[0]}, train=train)
        return optax.softmax_cross_entropy_with_integer_labels(outputs["logits"], some[1]).mean(), state

    def fresh(seed: int) -> tuple[Tree, Tree]:
        other = lower(resnet8((1, 28, 28), seed=seed), training=True)
        return other.params, other.state

    def draw(random: np.random.Generator) -> Any:
        rows = random.integers(0, len(x), batch)
        return x[rows], y[rows]

    return Task("ResNet-8, MNIST", fresh, lambda p, s, b: run(p, s, b, True), draw,
                lambda p, s: run(p, s, (held, truth), False)[0])  # fmt: skip


def characters(
    data: Path, *, width: int = 64, heads: int = 4, layers: int = 2, length: int = 64, batch: int = 32
) -> Task:
    """A transformer of two blocks that reads 64 characters; measured on 256 windows of Shakespeare's last tenth."""
    text = np.frombuffer((data / "tinyshakespeare.txt").read_bytes(), np.uint8)
    alphabet, ids = np.unique(text, return_inverse=True)
    cut = int(0.9 * len(ids))
    ids = ids.astype(np.int32)
    held = _windows(ids[cut:], np.random.default_rng(9), 256, length)
    past = jnp.tril(jnp.ones((length, length), bool))

    def fresh(seed: int) -> tuple[Tree, Tree]:
        random = np.random.default_rng(seed)

        def normal(*shape: int, scale: float = 0.02) -> Any:
            return jnp.asarray(random.normal(0, scale, shape), jnp.float32)

        def block() -> Tree:
            out = 0.02 / np.sqrt(2 * layers)
            return {
                "norm1": jnp.ones(width), "qkv": normal(width, 3 * width), "out": normal(width, width, scale=out),
                "norm2": jnp.ones(width), "up": normal(width, 4 * width), "up_bias": jnp.zeros(4 * width),
                "down": normal(4 * width, width, scale=out), "down_bias": jnp.zeros(width),
            }  # fmt: skip

        ends = {"embed": normal(len(alphabet), width), "position": normal(length, width), "norm": jnp.ones(width)}
        return {**ends, "head": normal(width, len(alphabet)), "blocks": [block() for _ in range(layers)]}, {}

    def attend(h: Any, p: Tree) -> Any:
        parts = jnp.split(_norm(h, p["norm1"]) @ p["qkv"], 3, -1)
        q, k, v = (a.reshape(*a.shape[:2], heads, width // heads) for a in parts)
        scores = jnp.where(past, jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads), -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(h.shape) @ p["out"]

    def loss(params: Tree, state: Tree, windows: Any) -> tuple[Any, Tree]:
        h = params["embed"][windows[:, :-1]] + params["position"]
        for p in params["blocks"]:
            h = h + attend(h, p)
            h = h + jax.nn.gelu(_norm(h, p["norm2"]) @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]
        logits = _norm(h, params["norm"]) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean(), state

    return Task("transformer, Shakespeare", fresh, loss, lambda random: _windows(ids[:cut], random, batch, length),
                lambda p, s: loss(p, s, held)[0])  # fmt: skip


def movements(data: Path, batch: int = 256) -> Task:
    """An MLP of 1152-256-128-6 on the windows of smartphone sensors of UCI HAR; measured on 1,024 that are held out,
    of the same persons."""
    with np.load(data / "har_30_subjects.npz") as arrays:
        x, y = arrays["x"].astype(np.float32).reshape(len(arrays["y"]), -1), arrays["y"].astype(np.int32)
    order = np.random.default_rng(7).permutation(len(y))
    held, some = order[:1024], order[1024:]

    def loss(params: Tree, state: Tree, rows: Any) -> tuple[Any, Tree]:
        h, truth = rows
        for k, (weight, bias) in enumerate(params):
            h = (jax.nn.relu(h) if k else h) @ weight + bias
        return optax.softmax_cross_entropy_with_integer_labels(h, truth).mean(), state

    def fresh(seed: int) -> tuple[Tree, Tree]:
        random, sizes = np.random.default_rng(seed), (x.shape[1], 256, 128, 6)
        return [
            (jnp.asarray(random.normal(0, np.sqrt(2 / n), (n, m)), jnp.float32), jnp.zeros(m))
            for n, m in itertools.pairwise(sizes)
        ], {}

    def draw(random: np.random.Generator) -> Any:
        rows = some[random.integers(0, len(some), batch)]
        return x[rows], y[rows]

    return Task("MLP, HAR", fresh, loss, draw, lambda p, s: loss(p, s, (x[held], y[held]))[0])


def compressed(data: Path, batch: int = 256) -> Task:
    """An autoencoder of 1152-256-128-256-1152 on the same windows: the mean squared error of normalised values."""
    with np.load(data / "har_30_subjects.npz") as arrays:
        x = arrays["x"].astype(np.float32).reshape(len(arrays["y"]), -1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    order = np.random.default_rng(7).permutation(len(x))
    held, some = order[:1024], order[1024:]

    def loss(params: Tree, state: Tree, rows: Any) -> tuple[Any, Tree]:
        h = rows
        for k, (weight, bias) in enumerate(params):
            h = (jax.nn.gelu(h) if k else h) @ weight + bias
        return jnp.mean(jnp.square(h - rows)), state

    def fresh(seed: int) -> tuple[Tree, Tree]:
        random, sizes = np.random.default_rng(seed), (x.shape[1], 256, 128, 256, x.shape[1])
        return [
            (jnp.asarray(random.normal(0, np.sqrt(1 / n), (n, m)), jnp.float32), jnp.zeros(m))
            for n, m in itertools.pairwise(sizes)
        ], {}

    return Task("autoencoder, HAR", fresh, loss, lambda random: x[some[random.integers(0, len(some), batch)]],
                lambda p, s: loss(p, s, x[held])[0])  # fmt: skip


def _windows(ids: Any, random: np.random.Generator, count: int, length: int) -> Any:
    return ids[random.integers(0, len(ids) - length - 1, count)[:, None] + np.arange(length + 1)]


def _norm(x: Any, scale: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


TASKS: dict[str, Callable[[Path], Task]] = {
    "tiny": lambda data: characters(data, width=16, heads=2, layers=1, length=16, batch=4),
    "images": images,
    "characters": characters,
    "movements": movements,
    "compressed": compressed,
}
