"""Second order within its share of a step: what is chosen, what is told, on several devices and after a resume."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud.errors import TrainError
from cloud.parallel.topology import Device, Level, Topology
from cloud.train import Trainer
from cloud.train.jobs.config import parse
from cloud.train.jobs.job import job_of
from cloud.train.optim.bases import members
from cloud.train.optim.blocks import Blocks
from cloud.train.optim.budget import LEAST, adams, cost, sides_within, work_of
from cloud.train.optim.thor import ThorLayer, thor
from cloud.train.placing.planned import Auto
from cloud.train.tasks import JaxTask

SHAPES = [(1152, 256), (256,), (256, 128), (128,), (128, 6)]
SMALL = Topology("small", (Level(8, 1e-7, 1e12),), 9e5, Device({"float32": 1e10}, 1e11, 1e-8))
"""Memory for a part of the weights' state only."""


def spent(chosen: list[tuple[int, int]]) -> float:
    found = (Blocks.of(shape, *sides) for shape, sides in zip(SHAPES, chosen, strict=True) if sides != (0, 0))
    pairs = zip(found, [sides for sides in chosen if sides != (0, 0)], strict=True)
    return sum(cost(blocks, sides, 10) for blocks, sides in pairs if blocks is not None)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_choice_stays_within_the_share_and_grows_with_the_work(share: float) -> None:
    before = 0
    for work in (1e6, 1e7, 1e8, 1e9, 1e10, 1e11):
        chosen = sides_within(work, share, SHAPES, 64, 10)
        rest = work + sum(adams(shape) for shape in SHAPES)
        assert spent(chosen) <= share / (1 - share) * rest * (1 + 1e-9)
        turned = sum(np.prod(shape) for shape, sides in zip(SHAPES, chosen, strict=True) if sides != (0, 0))
        assert turned >= before
        before = turned
    assert chosen == sides_within(None, share, SHAPES, 64, 10)
    assert [size for size, _ in chosen] == [64, 0, 64, 0, 64]
    assert sides_within(0.0, 0.0, SHAPES, 64, 10) == [(0, 0)] * 5


def test_small_weights_are_turned_before_large_ones() -> None:
    chosen = sides_within(2e8, 0.2, SHAPES, 64, 10)
    assert chosen[0] == (0, 0) and chosen[2][0] >= LEAST and chosen[4][0] >= LEAST


@pytest.mark.parametrize(
    ("options", "said"),
    [({"share": 1.0}, "share"), ({"block": 1}, "blocks"), ({"work": float("nan")}, "FLOPs"), ({"every": 0}, "every")],
)
def test_options_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainError, match=said):
        thor(1e-3, **options).init(jnp.zeros((4, 4)))


@pytest.mark.parametrize("n", [1, 2, 7, 10, 11, 18, 22, 46, 101, 288])
def test_turns_are_even_and_no_step_has_many(n: int) -> None:
    pieces, turns = members(n, 10)
    assert pieces * turns == n and pieces <= max(1, 2 * n / 10)


def test_work_counts_passes_and_trips() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, 5)[0])

    shapes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)
    products = 2 * 32 * 64 * 64 * 5
    assert products <= work_of(loss, *shapes) < 1.2 * products
    assert 3 * products <= work_of(jax.grad(loss), *shapes) < 3.5 * products


X = np.random.default_rng(2).normal(size=(64, 32)).astype(np.float32)
Y = np.random.default_rng(3).integers(0, 8, 64)


def trained(parallel: Any = "none", folder: Path | None = None, width: int = 192, **options: Any) -> Trainer:
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "a": jax.random.normal(keys[0], (32, width)) / 6,
        "b": jax.random.normal(keys[1], (width, 8)) / width**0.5,
    }
    task = JaxTask(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it does not pay with so little to do
        return Trainer(task, optimizer=thor(1e-2, **{"block": 24, "every": 4, **options}), seed=3, metrics=(),
                       parallel=parallel, checkpoints=folder)  # fmt: skip


@pytest.mark.filterwarnings("ignore:thor")
def test_the_same_on_one_device_and_as_the_planner_splits_it() -> None:
    alone, split = trained(), trained(Auto(SMALL))
    losses = [[report.loss for report in trainer.fit((X, Y), 3, 16)] for trainer in (alone, split)]
    assert not all(a.sharding.is_fully_replicated for a in jax.tree.leaves(split._state.slots))
    # Sums in another order turn the eigenvectors of equal eigenvalues, here those that are zero, at will.
    np.testing.assert_allclose(*losses, rtol=0.02)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.filterwarnings("ignore:thor")
def test_resumed_between_two_turns_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, first, second = trained(), trained(folder=tmp_path), trained(folder=tmp_path)
    whole.fit((X, Y), steps=13, batch_size=16)
    first.fit((X, Y), steps=6, batch_size=16)
    second.resume()
    second.fit((X, Y), steps=7, batch_size=16)
    for a, b in zip(*(jax.tree.leaves(t.whole_state()) for t in (whole, second)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_trainer_says_when_it_does_not_pay() -> None:
    with pytest.warns(RuntimeWarning, match=r"takes about \d+% of a step with a batch of 16.*thor\(rate, work="):
        trained().fit((X, Y), steps=1, batch_size=16)
    with pytest.warns(RuntimeWarning, match=r"only \d+% of the weights' numbers.*Batches of about \d+ rows"):
        trained(work=1e5).fit((X, Y), steps=1, batch_size=16)


def test_a_run_file_counts_the_work_of_its_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.tile(X, (16, 1)), labels=np.tile(Y, 16))
    model = {"zoo": "mlp", "options": {"features": 32, "outputs": 8, "hidden": [64]}}
    turned = {}
    for batch in (2, 512):
        train = {"optimizer": "thor", "batch": batch}
        job = job_of(parse({"model": model, "data": {"npz": "data.npz"}, "train": train}, tmp_path))
        turned[batch] = sum(isinstance(each, ThorLayer) for each in job.trainer.whole_state().slots[0].layers)
    assert turned[2] < turned[512]
