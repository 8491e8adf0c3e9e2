"""`parallel="auto"`: training is the same as on one device, whatever the planner decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cloud.errors import PlanError
from cloud.parallel.explaining import planfile
from cloud.parallel.running.prepare import prepare
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import Device, Level, Topology
from cloud.train import Group, Plateau, Swa, Trainer
from cloud.train.callbacks import Callback
from cloud.train.placing import planned
from cloud.train.placing.planned import Auto, Planned
from cloud.train.tasks import JaxTask

RANDOM = np.random.default_rng(2)
X = RANDOM.normal(size=(64, 32)).astype(np.float32)
Y = RANDOM.integers(0, 8, 64)
WIDTH = 256

FAST = Topology("fast", (Level(8, 1e-7, 1e12),), 1e9, Device({"float32": 1e10}, 1e11, 1e-8))
"""Links so quick that splitting pays even here."""


def small(memory: float) -> Topology:
    return Topology("small", FAST.levels, memory, FAST.device)


def model() -> JaxTask:
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = [(32, WIDTH), (WIDTH, WIDTH), (WIDTH, 8)]
    params = {f"w{i}": jax.random.normal(k, s) / s[0] ** 0.5 for i, (k, s) in enumerate(zip(keys, sizes, strict=True))}

    def apply(params: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ params["w0"]) @ params["w1"]) @ params["w2"]

    return JaxTask(apply, params)


def losses(parallel: Any, epochs: int = 2) -> list[float]:
    trainer = Trainer(model(), optimizer=optax.adam(1e-2), seed=3, metrics=(), parallel=parallel)
    return [report.loss for report in trainer.fit((X, Y), epochs, 16, validation=(X, Y))]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return losses("none")


def test_an_automatic_plan_trains_as_one_device_does(alone: list[float]) -> None:
    told: list[str] = []
    np.testing.assert_allclose(losses(Auto(FAST, pipelines=False, said=told.append)), alone, rtol=1e-5)
    assert len(told) == 1 and ("mesh 8" in told[0] or "mesh 2 x 4" in told[0]) and "; compiled " in told[0]


def test_stages_are_used_if_no_plan_fits(alone: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_fits(*_: Any, **__: Any) -> None:
        raise Infeasible("nothing fits", 1e9, ())

    monkeypatch.setattr(planned, "prepare", nothing_fits)
    told: list[str] = []
    trainer = Trainer(model(), optimizer=optax.adam(1e-2), seed=3, metrics=(), parallel=Auto(FAST, said=told.append))
    reports = trainer.fit((X, Y), 2, 16, validation=(X, Y))
    np.testing.assert_allclose([report.loss for report in reports], alone, rtol=1e-5)
    assert len(told) == 1 and "stages of" in told[0]
    assert trainer.params["w1"].shape == (WIDTH, WIDTH)


def test_the_best_few_may_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(*given: Any, compiled: int, **options: Any) -> Any:
        assert compiled is not None
        asked.append(compiled)
        return prepare(*given, **options)

    monkeypatch.setattr(planned, "prepare", noted)
    assert np.isfinite(losses(Auto(FAST, pipelines=False, compiled=3), 1)[0])
    assert asked == [3]


class Heard(Callback):
    """Records the plans that are reported to it."""

    def __init__(self) -> None:
        self.plans: list[Mapping[str, Any]] = []

    def placed(self, plan: Mapping[str, Any]) -> None:
        self.plans.append(plan)


def test_the_plan_is_reported_and_saved_with_checkpoints(tmp_path: Path) -> None:
    heard = Heard()
    trainer = Trainer(
        model(), optimizer=optax.adam(1e-2), metrics=(), parallel=Auto(FAST, pipelines=False), callbacks=[heard],
        checkpoints=tmp_path / "kept",
    )  # fmt: skip
    trainer.fit((X, Y), 1, 16)
    (plan,) = heard.plans
    assert json.loads(json.dumps(plan)) == plan and len(plan["digest"]) == 64 and plan["peak_bytes"] > 0
    assert trainer.checkpoints is not None and trainer.checkpoints.facts["plan"] == plan


def test_little_memory_spreads_parameters(alone: list[float]) -> None:
    """Adam's state is 3 x 76,000 floats, 0.9 MB whole."""
    trainer = Trainer(
        model(), optimizer=optax.adam(1e-2), seed=3, metrics=(), parallel=Auto(small(7e5), pipelines=False, compiled=0)
    )
    reports = trainer.fit((X, Y), 1, 16)
    np.testing.assert_allclose(reports[-1].loss, alone[0], rtol=1e-5)
    held = trainer._state.params["w1"].addressable_shards[0].data
    assert held.nbytes < WIDTH * WIDTH * 4
    assert trainer.params["w1"].shape == (WIDTH, WIDTH)


def test_what_cannot_fit_says_the_least_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "SHARES", ())  # each is a search of seconds
    linear = JaxTask(lambda params, x: x @ params, np.ones((32, 8), np.float32))
    trainer = Trainer(
        linear, optimizer=optax.sgd(0.1), metrics=(), parallel=Auto(small(500), pipelines=False, compiled=0)
    )
    with pytest.raises(PlanError, match="least found to fit"):
        trainer.fit((X, Y), 1, 16)


def test_a_plan_for_something_else_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(model(), optimizer=optax.adam(1e-2), metrics=(), parallel=Auto(FAST, pipelines=False, compiled=0))
    trainer.fit((X, Y), 1, 16)
    made = trainer._placement
    assert isinstance(made, Planned)
    plan, file = made.plan, tmp_path / "plan.json"
    planfile.write(file, plan, made.applied.graph, FAST)
    with pytest.raises(PlanError, match="another step"):
        Trainer(model(), optimizer=optax.sgd(0.1), metrics=(), parallel=plan).fit((X, Y), 1, 16)
    with pytest.raises(PlanError, match="another topology"):
        Trainer(model(), optimizer=optax.adam(1e-2), metrics=(), parallel=file).fit((X, Y), 1, 16)
    again = Trainer(model(), optimizer=optax.adam(1e-2), metrics=(), parallel=Auto(FAST, plan=plan))
    assert np.isfinite(again.fit((X, Y), 1, 16)[0].loss)


def test_a_run_that_decides_is_planned_too() -> None:
    """Groups, a lower rate, metrics over the whole set, an average, and weights that validation does not have."""

    def run(parallel: Any) -> tuple[list[Any], float]:
        trainer = Trainer(
            model(), optimizer=optax.adam(1e-2), metrics=["f1_macro"], groups=[Group(["w2"], 0.5, optax.sgd(0.1))],
            plateau=Plateau(patience=1, min_delta=9.0), average=Swa(2, 2), layer_decay=0.7, parallel=parallel,
        )  # fmt: skip
        reports = trainer.fit((X, Y, np.linspace(0, 2, 64)), 2, 16, validation=(X, Y))
        return [
            (r.loss, r.validation.loss, r.validation.metrics["f1_macro"]) for r in reports if r.validation
        ], trainer.pace

    (one, pace), (many, same) = run("none"), run(Auto(FAST, pipelines=False))
    np.testing.assert_allclose(many, one, rtol=1e-5)
    assert pace == same == 0.5
