"""Second order: the blocks are the weight, the bases fit the factors, and refreshes become rare if nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.train.optim.blocks import Blocks
from cloud.train.optim.thor import ThorLayer, scale_by_thor, thor


@settings(max_examples=12)  # every shape is compiled
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 7))
def test_blocks_are_the_weight_and_nothing_else(shape: list[int], block: int) -> None:
    cut = Blocks.of(tuple(shape), block)
    if cut is None:
        assert sum(size > 1 for size in shape) < 2
        return
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    blocks = cut.cut(weight)
    assert blocks.shape == (cut.count, cut.height, cut.width) and max(cut.height, cut.width) <= block
    np.testing.assert_array_equal(cut.join(blocks), weight)
    np.testing.assert_allclose(np.sum(np.square(blocks)), np.sum(np.square(weight)), rtol=1e-5)


def kronecker(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Badly conditioned curvatures of the two sides, in no convenient basis."""
    random = np.random.default_rng(3)

    def side(n: int) -> np.ndarray:
        q, _ = np.linalg.qr(random.normal(size=(n, n)))
        return (q * np.logspace(0, -3, n) @ q.T).astype(np.float32)

    return side(rows), side(columns)


def least(make: Callable[[Any], optax.GradientTransformation], steps: int, shape: tuple[int, int] = (6, 10)) -> float:
    """The lowest last loss over a grid of rates that fall to zero."""
    a, b = kronecker(*shape)
    w = jnp.asarray(np.random.default_rng(4).normal(size=shape), jnp.float32)

    def loss(w: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum(w * (a @ w @ b))

    def end(rate: jax.Array) -> jax.Array:
        optimizer = make(lambda count: rate * (1 - count / steps))

        def step(carry: tuple, _: None) -> tuple:
            w, slots = carry
            updates, slots = optimizer.update(jax.grad(loss)(w), slots, w)
            return (optax.apply_updates(w, updates), slots), None

        return loss(jax.lax.scan(step, (w, optimizer.init(w)), None, steps)[0][0])

    return float(jnp.nanmin(jax.jit(jax.vmap(end))(jnp.array([0.01, 0.03, 0.1, 0.3]))))


def test_kronecker_curvature_is_what_it_is_good_at() -> None:
    assert least(thor, 150) < 0.5 * least(lambda rate: optax.adam(rate, 0.9, 0.95), 150)


def test_factors_become_diagonal_in_their_bases_and_updates_become_rare() -> None:
    random = np.random.default_rng(5)
    optimizer = scale_by_thor(factor_decay=0.9, first=2, longest=16, threshold=0.2)
    w = jnp.zeros((6, 5))
    update = jax.jit(optimizer.update)
    state = optimizer.init(w)
    left = random.normal(size=(6, 6)) * np.logspace(0, -1.5, 6)
    for _ in range(120):
        _, state = update(jnp.asarray(left @ random.normal(size=(6, 5)), jnp.float32), state, w)
    (layer,) = state.layers
    assert isinstance(layer, ThorLayer)
    inside = layer.left_basis[0].T @ layer.left[0] @ layer.left_basis[0]
    assert np.sum(np.square(np.diagonal(inside))) > 0.8 * np.sum(np.square(inside))
    np.testing.assert_allclose(layer.left_basis[0].T @ layer.left_basis[0], np.eye(6), atol=1e-5)
    assert int(layer.interval) > 2 and int(layer.refreshes) < 40


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_small_tensors_move_as_adam_moves_them(dtype: jnp.dtype) -> None:
    params = {"bias": jnp.zeros(4, dtype), "weight": jnp.ones((3, 4), dtype)}
    gradient = jax.tree.map(lambda p: jnp.full(p.shape, 0.5, dtype), params)
    optimizer = scale_by_thor()
    updates, state = optimizer.update(gradient, optimizer.init(params), params)
    np.testing.assert_allclose(np.asarray(updates["bias"], np.float32), 1.0, rtol=1e-2)
    assert updates["weight"].dtype == dtype and updates["weight"].shape == (3, 4)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
