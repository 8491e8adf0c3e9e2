"""Cuts are between blocks, the joined segments compute the function, recomputing keeps results and frees memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Line, best_cuts, line, segments
from cloud.parallel.staged.recompute import CPU_OPTIONS, recomputed
from tests.cloud.parallel import small_gpt as gpt

BLOCKS, ROWS = 3, 4


@pytest.fixture(scope="module")
def gpt_line() -> tuple[Line, list[Any], list[Any]]:
    args = gpt.params(BLOCKS), {}, gpt.batches(1, ROWS)[0], jax.random.key(0)
    return *line(gpt.loss_sums, *args), jax.tree.leaves(args)


def run(walked: Line, cuts: tuple[int, ...], entering: list[Any]) -> list[Any]:
    env: dict[Any, Any] = {}
    results: dict[int, Any] = {}
    for part in segments(walked, cuts):
        made = part(*(entering[i] for i in part.entering), *(env[v] for v in part.takes))
        env.update(zip(part.gives, made, strict=False))
        results.update(zip(part.results, made[len(part.gives) :], strict=True))
    return [results[j] for j in range(len(results))]


def test_between_blocks_only_the_residual_stream_crosses(gpt_line: Any) -> None:
    walked = gpt_line[0]
    cuts = best_cuts(walked, walked.flops, float(walked.flops.sum()) / (2 * BLOCKS))
    assert len(cuts) >= BLOCKS
    assert {walked.crossing[cut] for cut in cuts} == {4 * ROWS * gpt.LENGTH * gpt.WIDTH}


def test_what_derives_from_the_batch_or_from_parameters_alone_never_crosses() -> None:
    def function(params: Any, batch: Any) -> Any:
        narrow, hot = params.astype(jnp.bfloat16), jnp.eye(8)[batch]
        x = (hot @ params).astype(jnp.bfloat16)
        return (jnp.tanh(jnp.tanh(x @ narrow) @ narrow) * hot).sum()

    walked, constants = line(function, jnp.ones((8, 8)), jnp.arange(8))
    assert max(walked.crossing) <= 8 * 8 * 4  # never the mask, the cast weights or a second activation
    values = [*constants, jnp.ones((8, 8)), jnp.arange(8)]
    whole = jax.jit(lambda values: run(walked, tuple(range(1, len(walked.order))), values))(values)
    np.testing.assert_array_equal(whole[0], jax.jit(function)(*values[-2:]))


def test_every_place_can_be_cut(gpt_line: Any) -> None:
    walked, constants, leaves = gpt_line
    cuts = tuple(range(7, len(walked.order), 7))
    whole, pieces = jax.jit(lambda values: (run(walked, (), values), run(walked, cuts, values)))([*constants, *leaves])
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=9), st.lists(st.integers(1, 9), min_size=9, max_size=9),
       st.integers(5, 40))  # fmt: skip
def test_best_cuts_are_the_best_of_all(weights: list[int], crossing: list[int], limit: int) -> None:
    # Values that are small between two large ones everywhere, so that each place is one to cut at.
    fine = np.array([w for weight in weights for w in (weight, 0)], dtype=float)
    bytes_ = np.array([0] + [c for k in range(len(weights)) for c in (100, crossing[k])], dtype=float)
    walked = Line(None, tuple(range(len(fine))), bytes_, fine, fine, None)
    limit = max(limit, max(weights))

    def cost(cuts: tuple[int, ...]) -> float:
        bounds = [0, *cuts, len(fine)]
        fits = all(fine[a:b].sum() <= limit for a, b in pairwise(bounds))
        return float(bytes_[list(cuts)].sum()) if fits else np.inf

    inner = [2 * k for k in range(1, len(weights))]
    choices = [tuple(p for k, p in enumerate(inner) if bits >> k & 1) for bits in range(1 << len(inner))]
    assert cost(best_cuts(walked, fine, float(limit))) == min(map(cost, choices))


def test_recomputing_keeps_gradients_and_frees_memory() -> None:
    args = gpt.params(3), {}, gpt.batches(1, 32)[0], jax.random.key(0)
    found = {}
    for share in (0.0, 0.5, 1.0):
        loss = recomputed(gpt.loss_sums, share)
        step = jax.jit(jax.grad(lambda p, *rest, f=loss: f(p, *rest)[0]["loss"])).lower(*args).compile(CPU_OPTIONS)
        found[share] = step.memory_analysis().temp_size_in_bytes, jax.tree.leaves(step(*args))
    assert found[1.0][0] < 0.5 * found[0.0][0]
    assert found[1.0][0] < found[0.5][0] < found[0.0][0]
    for share in (0.5, 1.0):
        for one, other in zip(found[0.0][1], found[share][1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backward", [False, True])
def test_the_users_own_loops_recompute_their_trips(backward: bool) -> None:
    def loss(params: Any, x: Any) -> Any:
        def trip(carry: Any, w: Any) -> tuple[Any, Any]:
            return jnp.tanh(jnp.tanh(carry @ w) * jnp.sin(carry)), carry.sum()

        end, sums = jax.lax.scan(trip, x, params, reverse=backward)
        return (end**2).sum() + (sums * jnp.arange(8)).sum()

    args = jax.random.normal(jax.random.key(0), (8, 16, 16)) * 0.1, jax.random.normal(jax.random.key(1), (64, 16))
    kept, again = (jax.jit(jax.grad(recomputed(loss, share))).lower(*args).compile() for share in (0.0, 0.5))
    assert again.memory_analysis().temp_size_in_bytes < 0.8 * kept.memory_analysis().temp_size_in_bytes
    np.testing.assert_allclose(again(*args), kept(*args), rtol=1e-5, atol=1e-5)


def test_custom_derivatives_are_kept() -> None:
    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return x

    twice.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))
    loss = recomputed(lambda w, x: jnp.sum(twice(jnp.tanh(x @ w)) @ w), 1.0)
    args = jnp.eye(4), jnp.ones((4, 4))
    expected = jax.grad(lambda w, x: jnp.sum(twice(jnp.tanh(x @ w)) @ w))(*args)
    np.testing.assert_allclose(jax.grad(loss)(*args), expected, rtol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_the_recomputed_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(PlanError, match="between 0 and 1"):
        recomputed(lambda w: w, share)
