"""Frozen first layers computed once: the training of the other layers is the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cloud.train import JaxTask, Trainer, random_affine
from cloud.train.inputs import prefix
from cloud.train.inputs.batches import Dataset
from cloud.train.inputs.prefix import cut_at_frozen
from tests.cloud.models import tiny_net

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 1, 8, 8)).astype(np.float32)
Y = RNG.integers(0, 10, 40).astype(np.int32)
STEM = ("stem*",)


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "WORTH", {"cpu": 0})


def cut(trainer: Trainer, patterns: tuple[str, ...] = STEM, x: Any = X) -> prefix.Cut | None:
    name = trainer.task.inputs[0]
    return cut_at_frozen(trainer.objective, patterns, Dataset.of({name: x}, Y, (name,)), 16, 3)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_training_from_the_cut_is_training(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout after the cut draws the same numbers; the frozen batch norm's statistics do not change."""

    def fit() -> tuple[list[float], Trainer]:
        trainer = Trainer(tiny_net(dropout=0.3), freeze=STEM, precision=precision, optimizer=optax.adam(0.01))
        reports = trainer.fit((X, Y), 3, 16, validation=(X, Y))
        return [r.loss for r in reports] + [r.validation.loss for r in reports if r.validation], trainer

    found, short = fit()
    monkeypatch.setattr(prefix, "WORTH", {"cpu": 1e99})
    expected, whole = fit()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, value in whole.params.items():
        np.testing.assert_allclose(short.params[name], value, atol=1e-5)
    started = Trainer(tiny_net(dropout=0.3))
    assert all(np.array_equal(short.state[name], value) for name, value in started.state.items())
    assert not np.array_equal(short.params["head.weight"], started.params["head.weight"])


def test_the_position_of_the_cut() -> None:
    found = cut(Trainer(tiny_net(), freeze=STEM))
    assert found is not None
    kept = found.kept(Dataset.of(X, Y, ("x",)))
    assert {name: value.shape for name, value in kept.inputs.items()} == {"cut0": (40, 96)}


def test_many_devices_start_at_the_cut_too() -> None:
    one, many = (Trainer(tiny_net(), freeze=STEM, parallel=parallel) for parallel in ("none", "data"))
    alone, together = ([r.loss for r in trainer.fit((X, Y), 2, 16)] for trainer in (one, many))
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_models_without_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing frozen at the start; random moves of inputs; rows that know of one another; too much to keep."""
    assert cut(Trainer(tiny_net(), freeze=("head*",)), ("head*",)) is None
    assert cut(Trainer(tiny_net(), freeze=STEM, augment=random_affine())) is None

    def together(params: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x.reshape(len(x), 64) @ params["first"])
        return (hidden * jnp.arange(len(x))[:, None]) @ params["last"]

    params = {"first": np.ones((64, 4), np.float32), "last": np.ones((4, 10), np.float32)}
    assert cut(Trainer(JaxTask(together, params), freeze=("first",)), ("first",)) is None
    monkeypatch.setattr(prefix, "MOST_BYTES", 1000)
    assert cut(Trainer(tiny_net(), freeze=STEM)) is None
