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

from benchmarks.optimizers.soap import scale_by_soap
from cloud.train.optim.blocks import Blocks
from cloud.train.optim.thor import ThorLayer, scale_by_thor, thor


@settings(max_examples=12)  # every shape is compiled
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 7))
def test_blocks_are_the_weight_and_nothing_else(shape: list[int], block: int) -> None:
    cut = Blocks.of(tuple(shape), block, block)
    if cut is None:
        assert sum(size > 1 for size in shape) < 2
        return
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    tiles = cut.cut(weight)
    assert tiles.shape == cut.tiles and max(cut.height, cut.width) <= block
    assert Blocks.like(tuple(shape), tiles.shape) == cut
    np.testing.assert_array_equal(cut.join(tiles, tuple(shape)), weight)
    np.testing.assert_allclose(np.sum(np.square(tiles)), np.sum(np.square(weight)), rtol=1e-5)


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


def soap(rate: Any) -> optax.GradientTransformation:
    return optax.chain(scale_by_soap(), optax.scale_by_learning_rate(rate))


@pytest.mark.parametrize("make", [thor, soap])
def test_kronecker_curvature_is_what_it_is_good_at(make: Callable[[Any], optax.GradientTransformation]) -> None:
    assert least(make, 150) < 0.5 * least(lambda rate: optax.adam(rate, 0.9, 0.95), 150)


def test_factors_become_diagonal_in_their_bases() -> None:
    random = np.random.default_rng(5)
    optimizer = scale_by_thor(factor_decay=0.9, every=4, gather=1)
    w = jnp.zeros((6, 5))
    update = jax.jit(optimizer.update)
    state = optimizer.init(w)
    left = random.normal(size=(6, 6)) * np.logspace(0, -1.5, 6)
    for _ in range(120):
        _, state = update(jnp.asarray(left @ random.normal(size=(6, 5)), jnp.float32), state, w)
    (layer,) = state.layers
    assert isinstance(layer, ThorLayer)
    basis = layer.left.basis[0]
    inside = basis.T @ layer.left.factor[0] @ basis
    assert np.sum(np.square(np.diagonal(inside))) > 0.8 * np.sum(np.square(inside))
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-5)


def test_every_basis_has_its_turn_and_no_step_renews_more_than_its_part() -> None:
    random = np.random.default_rng(6)
    optimizer = scale_by_thor(block=4, every=6, gather=1)
    w = jnp.zeros((48, 8))  # 12 pieces of the rows: 2 a step; 2 of the columns: one in every third step
    update = jax.jit(optimizer.update)
    state = optimizer.init(w)
    seen = {"left": np.zeros(12, int), "right": np.zeros(2, int)}
    for number in range(1, 19):
        before = state.layers[0]
        _, state = update(jnp.asarray(random.normal(size=w.shape), jnp.float32), state, w)
        for name, most in (("left", 2), ("right", 1)):
            old, new = (np.asarray(getattr(layer, name).basis) for layer in (before, state.layers[0]))
            changed = np.any(old != new, axis=(1, 2))
            assert changed.sum() <= most
            seen[name] += changed * (number > 6)
    assert set(seen["left"]) == {2} and set(seen["right"]) == {2}  # twice in twelve steps


def test_the_same_direction_as_adam_in_axes_turned_by_hand() -> None:
    """Between the turns of its bases, a step is Adam's step of the turned weight."""
    random = np.random.default_rng(7)
    u, v = (np.linalg.qr(random.normal(size=(n, n)))[0].astype(np.float32) for n in (6, 10))
    ours, adam = scale_by_thor(every=1000), optax.scale_by_adam(0.95, 0.95)
    w = jnp.zeros((6, 10))
    state, other = ours.init(w), adam.init(w)
    layer = state.layers[0]
    layer = layer._replace(left=layer.left._replace(basis=u[None]), right=layer.right._replace(basis=v[None]))
    state, other = state._replace(layers=(layer,), count=state.count + 1001), other._replace(count=other.count + 1001)
    for _ in range(3):
        g = random.normal(size=w.shape).astype(np.float32)
        direction, state = ours.update(g, state, w)
        expected, other = adam.update(u.T @ g @ v, other, w)
        np.testing.assert_allclose(direction, u @ expected @ v.T, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_small_tensors_move_as_adam_moves_them(dtype: jnp.dtype) -> None:
    params = {"bias": jnp.zeros(4, dtype), "weight": jnp.ones((3, 4), dtype)}
    gradient = jax.tree.map(lambda p: jnp.full(p.shape, 0.5, dtype), params)
    optimizer = scale_by_thor()
    updates, state = optimizer.update(gradient, optimizer.init(params), params)
    np.testing.assert_allclose(np.asarray(updates["bias"], np.float32), 1.0, rtol=1e-2)
    assert updates["weight"].dtype == dtype and updates["weight"].shape == (3, 4)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
