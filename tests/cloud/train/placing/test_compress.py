"""Training with compressed gradients: how far it learns, checkpoints, other groups, and what refuses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

from cloud.errors import TrainError
from cloud.parallel.compressed.method import Compress
from cloud.parallel.topology import PRESETS
from cloud.train import Trainer
from cloud.train.inputs.batches import epoch_order
from cloud.train.placing.planned import Auto, Planned
from cloud.zoo import mlp

SLOW = replace(PRESETS["cpu8"], name="2x4", levels=PRESETS["2x4-slow"].levels)
INT8, RANK4 = (Compress(name, topology=SLOW) for name in ("int8", "powersgd"))


@pytest.fixture(scope="module")
def digits() -> Any:
    found = load_digits()
    return found.data.astype(np.float32) / 16, found.target


def trainer(compress: Any, parallel: Any = "data", **more: Any) -> Trainer:
    given: dict[str, Any] = {"optimizer": optax.sgd(0.1, momentum=0.9)} | more
    return Trainer(mlp(64, 10, (128,)), parallel=parallel, compress=compress, **given)


def test_it_learns_as_with_exact_sums(digits: Any) -> None:
    losses = []
    for how in (None, INT8, RANK4):
        run = trainer(how)
        run.fit(digits, steps=60, batch_size=64)
        losses.append(run.evaluate(digits, batch_size=600).loss)
    exact, int8, rank4 = losses
    assert exact < 0.5  # 2.3 at first
    assert int8 != exact and abs(int8 / exact - 1) < 0.02 and rank4 != exact and abs(rank4 / exact - 1) < 0.15


def test_checkpoints_hold_the_memory(digits: Any, tmp_path: Path) -> None:
    """Resumed, a run gives the bits of one that was not stopped; with other groups, or without compress, it goes on."""
    whole = trainer(INT8)
    whole.fit(digits, steps=8, batch_size=64)
    trainer(INT8, checkpoints=tmp_path).fit(digits, steps=5, batch_size=64)
    again = trainer(INT8, checkpoints=tmp_path)
    again.resume()
    memory: Any = again.whole_state().memory
    assert len(memory) == 1 and all(np.asarray(array).any() for array in memory.values())
    again.fit(digits, steps=3, batch_size=64)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(again.params), jax.device_get(whole.params))
    for other in (replace(INT8, topology=PRESETS["cpu8"]), None):
        moved = trainer(other, checkpoints=tmp_path)
        moved.resume()
        moved.fit(digits, steps=1, batch_size=64)
        memory = moved.whole_state().memory
        assert memory is None if other is None else {len(array) for array in memory.values()} == {8}


def test_statistics_are_means_over_the_groups() -> None:
    """BatchNormalization sees the rows of its group: what it keeps is the mean of what the groups saw."""

    def apply(params: Any, state: Any, x: Any, *, train: bool) -> Any:
        mean, var = (x.mean(0), x.var(0)) if train else (state["mean"], state["var"])
        normed = (x - mean) / (var + 1e-3) ** 0.5
        return normed @ params["w"], {"mean": mean, "var": var}

    draw = np.random.default_rng(0)
    x = draw.normal(size=(64, 64)).astype(np.float32) + np.repeat([0.0, 3.0], 32)[:, None].astype(np.float32)
    params = {"w": np.zeros((64, 64), np.float32)}
    state = {"mean": np.zeros(64, np.float32), "var": np.ones(64, np.float32)}
    run = Trainer((apply, params, state), parallel="data", compress=INT8)
    run.fit((x, np.arange(64) % 10), steps=1, batch_size=64)
    groups, kept = x[epoch_order(64, 0, 0)].reshape(2, 32, 64), jax.device_get(run.state)
    np.testing.assert_allclose(kept["mean"], x.mean(0), atol=1e-5)
    np.testing.assert_allclose(kept["var"], groups.var(1).mean(0), atol=1e-5)
    assert np.abs(kept["var"] - x.var(0)).max() > 1e-3


def test_float16_microbatches_and_frozen_layers(digits: Any) -> None:
    run = trainer(INT8, precision="float16", accumulate=2, freeze=["*0*weight"], clip=1.0)
    before = jax.device_get(run.params)
    run.fit(digits, steps=3, batch_size=64)
    same = [
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, jax.device_get(run.params))), strict=True)
    ]
    assert sum(same) == 1 and np.isfinite(run.evaluate(digits).loss)


def test_the_planner_takes_it_where_it_pays(digits: Any) -> None:
    """On slow links int8; on fast ones, and on one level, what it took before. Forced, always."""
    said: list[str] = []
    slow = replace(SLOW, levels=(replace(SLOW.levels[0], bandwidth=2e7), SLOW.levels[1]))
    fast = replace(SLOW, levels=(replace(SLOW.levels[0], bandwidth=2e9, latency=0.0), SLOW.levels[1]))
    chosen: dict[str, Any] = {}
    for topology, method in ((slow, "powersgd:2"), (fast, "auto")):
        how = Auto(
            topology=topology, seconds=5, compiled=0, pipelines=False, compress=Compress.named(method), said=said.append
        )
        run = trainer(None, parallel=how)
        run.fit(digits, steps=1, batch_size=64)
        chosen[method] = run._placement
    assert chosen["powersgd:2"].facts["compress"] == "powersgd:2" and "times fewer bytes" in said[0]
    assert isinstance(chosen["auto"], Planned)
    run = trainer(Compress("auto", topology=slow))
    run.fit(digits, steps=1, batch_size=64)
    assert run._placement is not None and run._placement.facts["compress"] == "int8:256"
    run = trainer(Compress("auto", topology=fast))
    run.fit(digits, steps=1, batch_size=64)
    assert run._placement is not None and not run._placement.facts


@pytest.mark.parametrize(
    "parallel, compress, words",
    [
        ("none", "int8", "one device exchanges no gradients"),
        ("plan.json", "int8", "a plan says already"),
        ("data", "zip", "int8:BLOCK"),
        ("data", Compress("int8", topology="4-small"), "has 4 devices, this machine 8"),
    ],
)
def test_what_refuses_it(digits: Any, parallel: Any, compress: Any, words: str) -> None:
    with pytest.raises(TrainError, match=words):
        trainer(compress, parallel).fit(digits, steps=1, batch_size=64)
