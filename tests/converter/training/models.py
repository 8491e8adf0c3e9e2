"""Small trainable models as ONNX, and what JAX makes of training them: the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax

from cloud.engine import lower
from cloud.zoo.build import BATCH, Builder
from converter.quantize import Options

Batch = tuple[Any, Any]
INT8 = Options(mode="int8", method="minmax", equalize=False, bias_correction=False, gptq=False)
"""What takes least time."""


def mlp(sizes: Sequence[int] = (6, 8, 3), *, softmax: bool = False) -> ir.Model:
    """x [batch, sizes[0]] -> logits."""
    b = Builder("mlp", 0)
    y = b.input("x", (BATCH, sizes[0]))
    for i, units in enumerate(sizes[1:-1]):
        y = b.relu(b.dense(y, units, name=f"body{i}"), name=f"body{i}.relu")
    y = b.dense(y, sizes[-1], name="head")
    return b.model(probabilities=b.op("Softmax", y, axis=-1)) if softmax else b.model(logits=y)


def cnn(classes: int = 4) -> ir.Model:
    """x [batch, 2, 9, 7] -> logits, with batch norms, a depthwise convolution and a stride."""
    b = Builder("cnn", 0)
    y = b.conv_bn_relu(b.input("x", (BATCH, 2, 9, 7)), 6, 3, name="stem")
    y = b.relu(b.batch_norm(b.depthwise(y, 3, name="middle.conv"), name="middle.bn"), name="middle.relu")
    y = b.conv_bn_relu(y, 5, 3, stride=2, name="last")
    return b.model(logits=b.dense(b.global_average_pool(y), classes, name="head"))


def shaken(model: ir.Model, seed: int = 7) -> ir.Model:
    """The model with scales, shifts and running statistics that are not ones and zeros."""
    rng = np.random.default_rng(seed)
    for name, value in model.graph.initializers.items():
        if value.const_value is None or value.const_value.dtype != ir.DataType.FLOAT:
            continue
        old = value.const_value.numpy()
        if old.ndim == 1:
            moved = np.abs(old) + 0.2 * rng.random(old.shape) + 0.1
            value.const_value = ir.tensor(moved.astype(np.float32), name=name)
    return model


def batches(model: ir.Model, classes: int, size: int, count: int, seed: int = 1) -> list[Batch]:
    """Random rows with labels that follow from them, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    shape = [d for d in model.graph.inputs[0].shape or () if isinstance(d, int)]
    projection = rng.standard_normal((int(np.prod(shape)), classes))
    found = []
    for _ in range(count):
        x = rng.standard_normal((size, *shape)).astype(np.float32)
        found.append((x, (x.reshape(size, -1) @ projection).argmax(-1)))
    return found


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


Held = dict[str, Any]


def steps(
    model: ir.Model, trainable: Sequence[str] | None, optimizer: optax.GradientTransformation, data: Iterable[Batch],
    *, train: bool = False,
) -> Iterator[tuple[Held, Held, float]]:  # fmt: skip
    """Of a step on each batch: parameters and statistics before it and after it, and the loss before it."""
    function = lower(model, training=train, trainable=trainable)

    def objective(params: Any, state: Any, x: Any, labels: Any) -> tuple[Any, Any]:
        outputs, state = function.apply(params, state, {"x": x}, train=train)
        return cross_entropy(next(iter(outputs.values())), labels), state

    @jax.jit
    def step(params: Any, state: Any, slots: Any, x: Any, labels: Any) -> Any:
        (value, state), grads = jax.value_and_grad(objective, has_aux=True)(params, state, x, labels)
        updates, slots = optimizer.update(grads, slots, params)
        return optax.apply_updates(params, updates), state, slots, value

    params, state, slots = function.params, function.state, optimizer.init(function.params)
    before = {name: np.asarray(v) for name, v in {**params, **state}.items()}
    for x, labels in data:
        params, state, slots, value = step(params, state, slots, x, jnp.asarray(labels))
        after = {name: np.asarray(v) for name, v in {**params, **state}.items()}
        yield before, after, float(value)
        before = after


def trajectory(
    model: ir.Model, trainable: Sequence[str] | None, optimizer: optax.GradientTransformation, data: Iterable[Batch],
    *, train: bool = False,
) -> tuple[Held, list[float]]:  # fmt: skip
    """Parameters and statistics after a step on every batch, and the losses before each."""
    found = list(steps(model, trainable, optimizer, data, train=train))
    return found[-1][1], [value for _, _, value in found]


def gradients(
    model: ir.Model, trainable: Sequence[str] | None, batch: Batch, *, train: bool = False
) -> Mapping[str, Any]:
    """Of the mean cross-entropy of a batch, by parameter."""
    function = lower(model, training=train, trainable=trainable)

    def objective(params: Any) -> Any:
        outputs, _ = function.apply(params, function.state, {"x": batch[0]}, train=train)
        return cross_entropy(next(iter(outputs.values())), jnp.asarray(batch[1]))

    return {name: np.asarray(g) for name, g in jax.jit(jax.grad(objective))(function.params).items()}
