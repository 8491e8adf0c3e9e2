"""Gradients by inputs, and the loss that continues a gradient: against JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lite_runtime
from cloud.engine import lower
from converter import Training, convert
from converter.errors import TrainingError
from lite_runtime import bundle
from tests.converter.training.models import cnn, mlp


def run(model: Any, training: Training, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The signature `gradients`, with the bundle's own state."""
    held = bundle.read(convert(model, trainable=training).bundle)
    state = {read: held.state[name] for read, name in held.uses["gradients"].reads.items()}
    loaded = lite_runtime.load(bundle.write(None, {"gradients": held.signatures["gradients"]}))
    return loaded.run({**inputs, **state}, "gradients")


@pytest.mark.parametrize("make", [mlp, cnn])
def test_the_gradient_by_an_input(make: Any) -> None:
    model, rng = make(), np.random.default_rng(0)
    shape = [3 if not isinstance(side, int) else side for side in model.graph.inputs[0].shape]
    x = rng.standard_normal(shape).astype(np.float32)
    function = lower(make())
    outputs = model.graph.outputs[0].shape[-1]
    labels = rng.integers(0, outputs, 3)
    found = run(model, Training("*", slopes="x"), {"x": x, "labels": labels})

    def loss(x: Any) -> Any:
        (logits,) = function.apply(function.params, function.state, {"x": x}, train=False)[0].values()
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    np.testing.assert_allclose(found["slope/x"], jax.grad(loss)(x), rtol=1e-4, atol=1e-6)


def test_the_inner_product_continues_a_gradient() -> None:
    rng = np.random.default_rng(1)
    x, slopes = rng.standard_normal((5, 6), dtype=np.float32), rng.standard_normal((5, 3), dtype=np.float32)
    found = run(mlp(), Training("*", loss="inner_product"), {"x": x, "labels": slopes})
    function = lower(mlp())

    def result(params: Any) -> Any:
        return next(iter(function.apply(params, function.state, {"x": x}, train=False)[0].values()))

    value, pull_back = jax.vjp(result, function.params)
    np.testing.assert_allclose(found["loss"], (np.asarray(value) * slopes).sum(), rtol=1e-4)
    for name, wanted in pull_back(slopes)[0].items():
        np.testing.assert_allclose(found[f"grad/{name}"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["labels", "head.weight", "nothing"])
def test_slopes_of_what_is_no_input(name: str) -> None:
    with pytest.raises(TrainingError, match=f"slopes: expected some of the model's inputs x, got '{name}'"):
        convert(mlp(), trainable=Training("*", slopes=name))
