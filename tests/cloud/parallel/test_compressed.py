"""Compressed gradients: what an exchange sends and keeps, what it loses, and that its price is what compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud._jax import shaped
from cloud.errors import TrainError
from cloud.parallel.checking.check import measure
from cloud.parallel.compressed.across import Across
from cloud.parallel.compressed.layout import layout
from cloud.parallel.compressed.method import Compress
from cloud.parallel.compressed.price import offers
from cloud.parallel.compressed.telling import as_data, told
from cloud.parallel.topology import PRESETS, Topology
from cloud.parallel.tracing.trace import trace
from cloud.train import Trainer
from cloud.train.placing.compressed import Compressed, price_of
from cloud.zoo import mlp, resnet8
from tests.cloud.parallel import steps

SLOW = replace(PRESETS["cpu8"], name="2x4", levels=PRESETS["2x4-slow"].levels)
"""The CPUs' compiler makes no reduce-scatters, and the prices know which compiler it is by the device."""

SHAPES = {"a": (96, 128), "b": (7,), "k": (32, 16, 3, 3)}


def _gradients(groups: int, seed: int = 0) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [jnp.asarray(draw.normal(size=(groups, *shape)), jnp.float32) for shape in SHAPES.values()]


def _across(how: Compress, topology: Topology) -> Across:
    trained = {name: shaped(shape, jnp.float32) for name, shape in SHAPES.items()}
    return Across(how, how.mesh(topology), trained, jax.devices()[:8])


@pytest.mark.parametrize("topology", [SLOW, PRESETS["cpu8"]], ids=["two groups of four", "eight groups of one"])
@pytest.mark.parametrize("method", ["int8:64", "powersgd:2"])
def test_nothing_is_lost_for_ever(method: str, topology: Topology) -> None:
    """What is applied and what is kept add up to what was given, in every step; what is small is summed exactly."""
    across = _across(Compress.named(method), topology)
    memory, exchange = across.memory(), jax.jit(across.exchange)
    for seed in range(2):
        gradients = _gradients(across.groups, seed)
        owed = {name: np.asarray(array).sum(0) for name, array in memory.items() if name.startswith("error.")}
        sums, memory = exchange(gradients, memory)
        for name, given, found in zip(SHAPES, gradients, sums, strict=True):
            exact = np.asarray(given).sum(0)
            if name == "b":
                np.testing.assert_allclose(found, exact, atol=1e-6)
                continue
            kept = np.asarray(memory[f"error.{name}"])
            np.testing.assert_allclose(found + kept.sum(0), exact + owed[f"error.{name}"], atol=3e-5)
            wanted = exact + owed[f"error.{name}"]
            gap = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
            assert (0.002 < gap < 0.02) if method == "int8:64" else (0.5 < gap < 1.0)


def test_a_product_of_low_rank_is_found_exactly() -> None:
    """Of a sum of rank 2 nothing is lost; a gradient of zeros does not end later ones."""
    across = _across(Compress("powersgd", rank=2), SLOW)
    draw, exchange = np.random.default_rng(0), jax.jit(across.exchange)
    low = (draw.normal(size=(2, 96, 2)) @ draw.normal(size=(2, 128))).astype(np.float32)
    zeros = [jnp.zeros_like(array) for array in _gradients(2)]
    _, memory = exchange(zeros, across.memory())
    sums, memory = exchange([jnp.asarray(low), *zeros[1:]], memory)
    np.testing.assert_allclose(sums[0], low.sum(0), atol=2e-4)
    assert float(jnp.abs(memory["error.a"].sum(0)).max()) < 2e-4


def test_numbers_that_are_not_finite_stay_so() -> None:
    across = _across(Compress("int8"), SLOW)
    gradients = _gradients(2)
    gradients[0] = gradients[0].at[1, 3, 5].set(jnp.inf)
    sums, _ = jax.jit(across.exchange)(gradients, across.memory())
    assert not bool(jnp.isfinite(sums[0]).all()) and bool(jnp.isfinite(sums[1]).all())


def test_other_groups_share_what_is_owed() -> None:
    before, after = _across(Compress("int8"), SLOW), _across(Compress("int8"), PRESETS["cpu8"])
    memory = {name: jnp.arange(a.size, dtype=jnp.float32).reshape(a.shape) for name, a in before.memory().items()}
    moved = after.fitted(memory)
    assert moved["error.a"].shape == (8, 96, 128)
    np.testing.assert_allclose(moved["error.a"].sum(0), memory["error.a"].sum(0), rtol=1e-6)
    assert not _across(Compress("int8"), SLOW).fitted({"error.gone": memory["error.a"]})["error.a"].any()


def test_which_arrays_are_compressed_and_how_they_lie() -> None:
    shapes = {name: shaped(shape, jnp.float32) for name, shape in SHAPES.items()}
    shapes |= {"odd": shaped((81, 81), jnp.float32), "flat": shaped((8192,), jnp.float32)}
    bytes_, ranks = (layout(shapes, Compress(name), 4) for name in ("int8", "powersgd"))
    assert [part.exact for part in bytes_] == [False, True, False, False, False]
    assert [part.exact for part in ranks] == [False, True, False, False, True]
    assert [part.dim for part in bytes_] == [0, None, 0, None, 0]
    assert ranks[2].sides == (32, 144) and ranks[2].local == (8, 16, 3, 3)


BN, PLAIN = resnet8((1, 8, 8), filters=(16, 32)), mlp(64, 10, (64,))


def _batch(trainer: Trainer, shape: Sequence[int]) -> Any:
    name = next(iter(trainer.task.inputs))
    arrays = {name: np.zeros(shape, np.float32)}, np.zeros(shape[0], np.int32), np.zeros(shape[0], np.float32)
    return jax.eval_shape(lambda: dict(zip(("inputs", "labels", "mask"), arrays, strict=True)))


@pytest.mark.parametrize(
    "model, shape, method, topology",
    [
        (PLAIN, (64, 64), "int8", PRESETS["cpu8"]),
        (PLAIN, (64, 64), "powersgd:2", SLOW),
        (BN, (32, 1, 8, 8), "int8", SLOW),
    ],
)
def test_the_bytes_that_compile_are_those_predicted(model: Any, shape: Any, method: str, topology: Topology) -> None:
    trainer, how = Trainer(model), Compress.named(method)
    state, batch = jax.eval_shape(trainer.whole_state), _batch(trainer, shape)
    price = price_of(trainer.recipe, state, batch, how, topology)
    placed = Compressed(trainer.recipe, state, how, topology, jax.devices()[:8])
    found = measure(placed.lower(batch).compile(), price.mesh, topology)
    totals = [Counter[Any](), Counter[Any]()]
    for total, collectives in zip(totals, (price.estimate.collectives, found.collectives), strict=True):
        for one in collectives:
            total[one.kind, one.axes] += one.bytes * one.times
    assert totals[0] == totals[1] and sum(totals[0].values()) > 10_000


def test_what_compressing_saves_depends_on_the_links() -> None:
    step, state, batch = steps.mlp(layers=3, d=512, rows=64)
    graph = trace(step, state, batch)
    slower, faster = (replace(SLOW, levels=(replace(SLOW.levels[0], bandwidth=b), SLOW.levels[1])) for b in (1e8, 1e10))
    slow, quick = (offers(graph, topology, [Compress("int8")])[0] for topology in (slower, faster))
    assert slow.pays and not quick.pays and 3.5 < slow.fewer < 4.0
    assert slow.estimate.step_seconds < slow.plan.estimate.step_seconds
    assert "gradients across 0.1 GB/s: int8:256 takes" in told(slow, slower) and as_data(slow)["groups"] == 2
    assert offers(graph, PRESETS["cpu8"], [Compress("int8")]) == []


@pytest.mark.parametrize(
    "text, words",
    [("int4", "int8:BLOCK"), ("powersgd:x", "powersgd:RANK"), ("int8:2", "block of at least 8"), ("auto:3", "auto")],
)
def test_methods_that_there_are_not(text: str, words: str) -> None:
    with pytest.raises(TrainError, match=words):
        Compress.named(text)


def test_levels_that_there_are_not() -> None:
    with pytest.raises(TrainError, match="a level below 2 of 2x4, got 2"):
        Compress("int8", level=2).mesh(SLOW)
    with pytest.raises(TrainError, match="at least two groups"):
        Compress("int8").mesh(replace(SLOW, levels=(replace(SLOW.levels[0], size=1),)))
