"""Adversarial training: where examples are moved to, what is gained by it, what it goes with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax
import pytest
from sklearn.datasets import load_digits

from cloud.audit.attacks import auto_pgd
from cloud.audit.victim import from_onnx
from cloud.errors import TrainError
from cloud.train import Adversarial, Distill, JaxTask, Trainer
from cloud.train.jobs.config import parse
from cloud.train.jobs.job import job_of
from cloud.train.stepping.losses import LOSSES
from cloud.train.stepping.step import Objective
from cloud.train.tasks import as_task
from cloud.zoo import mlp

DIGITS = load_digits()
X, Y = (DIGITS.data / 16).astype(np.float32), DIGITS.target.astype(np.int32)
EPSILON = 0.15


def dense() -> ir.Model:
    return mlp(64, 10, (32,), seed=0)


@cache
def trained(trades: float | None, **more: Any) -> tuple[float, float]:
    """Shares of 297 held-out rows that are right: as they are, and after AutoPGD."""
    adversarial = None if trades is None else Adversarial(EPSILON, steps=5, trades=trades)
    trainer = Trainer(dense(), optimizer=optax.adam(1e-2), seed=0, adversarial=adversarial, **more)
    trainer.fit((X[:1500], Y[:1500]), 12, 100)
    victim = from_onnx(trainer.export())
    right = float((victim.logits(X[1500:]).argmax(1) == Y[1500:]).mean())
    return right, 1 - auto_pgd(victim, X[1500:], Y[1500:], epsilon=EPSILON, steps=20).rate


@pytest.mark.parametrize("trades", [0.0, 3.0])
def test_more_examples_stay_right_under_attack(trades: float) -> None:
    plain, robust = trained(None), trained(trades)
    assert robust[1] > plain[1] + 0.25
    assert robust[0] > plain[0] - 0.1


@pytest.mark.parametrize("more", [{"precision": "bfloat16", "accumulate": 4}, {"precision": "float16"}])
def test_other_ways_of_computing_gain_as_much(more: dict) -> None:
    assert trained(0.0, **more)[1] == pytest.approx(trained(0.0)[1], abs=0.07)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("trades", [0.0, 2.0])
def test_examples_are_moved_within_the_ball_to_where_the_loss_is_higher(norm: Any, trades: float) -> None:
    epsilon = {"Linf": 0.1, "L2": 0.8}[norm]
    way, seen = Adversarial(epsilon, norm=norm, trades=trades), []
    task = as_task(dense())
    objective = Objective(task, LOSSES["softmax_cross_entropy"])
    params, state = task.init()

    class Watched(Objective):
        def training_outputs(self, params: Any, state: Any, inputs: Any, rng: Any) -> Any:
            seen.append(np.asarray(inputs["x"]))
            return super().training_outputs(params, state, inputs, rng)

    watched = Watched(task, objective.loss)
    x, labels = jnp.asarray(X[:50]), jnp.asarray(Y[:50])
    way.outputs(watched, params, state, {"x": x}, labels, jax.random.key(0))
    *clean, moved = seen
    assert len(clean) == (trades > 0) and all((one == X[:50]).all() for one in clean)
    assert moved.min() >= 0 and moved.max() <= 1
    delta = moved.astype(np.float64) - X[:50]
    length = np.abs(delta).max(1) if norm == "Linf" else np.sqrt((delta**2).sum(1))
    assert (length <= epsilon * (1 + 1e-5)).all() and length.min() > epsilon / 4
    before, after = (np.asarray(objective.outputs(params, state, {"x": one})) for one in (X[:50], moved))
    loss = [np.asarray(objective.loss(jnp.asarray(scores), labels)) for scores in (before, after)]
    assert (loss[1] > loss[0]).mean() > (0.95 if not trades else 0.3)
    assert np.abs(before - after).max() > 0.1


def test_recomputed_passes_and_frozen_parts_go_with_it() -> None:
    for more in ({"recompute": 1.0}, {"freeze": ["layer0.*"]}, {"average": 0.9}):
        reports = Trainer(dense(), adversarial=Adversarial(0.1, steps=2), **more).fit((X[:200], Y[:200]), 2, 96)
        assert reports[-1].loss < reports[0].loss


def test_what_it_does_not_go_with() -> None:
    with pytest.raises(TrainError, match="adversarial or distill, got both"):
        Trainer(dense(), adversarial=Adversarial(0.1), distill=Distill(dense()))
    with pytest.raises(TrainError, match=r'norm "Linf" or "L2", got .L1'):
        replace(Adversarial(0.1), norm="L1")
    with pytest.raises(TrainError, match="epsilon above 0"):
        Adversarial(0.0)
    two = JaxTask(lambda p, a, b: (a + b) @ p["w"], {"w": np.zeros((64, 10), np.float32)})
    for said, text in (("", "expected one input of floats, or its name"), ("c", "expected the input 'c'")):
        trainer = Trainer(two, adversarial=Adversarial(0.1, input=said))
        with pytest.raises(TrainError, match=text):
            trainer.fit(({"a": X[:100], "b": X[:100]}, Y[:100]), 1, 50)


def test_a_run_file_has_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X[:200], labels=Y[:200])
    words = {"model": {"zoo": "mlp", "options": {"features": 64, "outputs": 10, "hidden": [8]}},
             "data": {"npz": "d.npz"},
             "train": {"batch": 50, "epochs": 1, "adversarial": {"epsilon": 0.1, "steps": 3, "trades": 2.0}},
             }  # fmt: skip
    job = job_of(parse(words, tmp_path))
    assert job.trainer.objective.outputs_of.__self__ == Adversarial(0.1, steps=3, trades=2.0)
    job.fit()
    assert job.trainer.steps_done == 4
