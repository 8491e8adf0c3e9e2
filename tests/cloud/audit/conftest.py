"""A dense network trained on scikit-learn's digits in a second, as ONNX, and rows that it has right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax
import pytest
from sklearn.datasets import load_digits

from cloud import engine, zoo
from cloud.audit.victim import WhiteBox, from_onnx

ROWS = 64


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """All digits: values from 0 to 1 (1797, 64), labels."""
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int32)


@pytest.fixture(scope="session")
def network(digits: tuple[np.ndarray, np.ndarray]) -> ir.Model:
    """64 to 10 classes by way of 48, 98 % of the training rows right."""
    x, y = digits[0][ROWS:], digits[1][ROWS:]
    model = zoo.mlp(64, 10, [48], seed=1)
    function = engine.lower(model, training=True)
    optimiser = optax.adam(1e-2)

    def loss(params: dict) -> jax.Array:
        scores = function.apply(params, {}, {"x": x})[0]["logits"]
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    def step(_: int, carry: tuple) -> tuple:
        params, state = carry
        updates, state = optimiser.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    run = jax.jit(lambda params: jax.lax.fori_loop(0, 150, step, (params, optimiser.init(params)))[0])
    return engine.export(model, run(function.params), {})


@pytest.fixture(scope="session")
def victim(network: ir.Model) -> WhiteBox:
    return from_onnx(network)


@pytest.fixture(scope="session")
def rows(digits: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that training did not see."""
    return digits[0][:ROWS], digits[1][:ROWS]


def planted(victim: WhiteBox, masked: str) -> WhiteBox:
    """The network behind something that hides its gradients."""
    inner, weights = victim._forward, victim._weights
    before = {"quantised": lambda x: jnp.round(x * 8) / 8}.get(masked, lambda x: x)
    after = {"hot": lambda z: 1e4 * z}.get(masked, lambda z: z)
    return WhiteBox(masked, lambda w, x: after(inner(w, before(x))), weights, victim.shape, victim.classes)
