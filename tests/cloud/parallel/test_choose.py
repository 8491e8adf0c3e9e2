"""Among several plans the best one after compilation is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from cloud.errors import PlanError
from cloud.parallel.checking.check import Measured
from cloud.parallel.checking.compilers import cpu
from cloud.parallel.checking.hlo import Program
from cloud.parallel.plan import Estimate, Mesh, Plan
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.choose import candidates, checked, choose, different
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import PRESETS
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.steps import mlp

CPU8 = PRESETS["cpu8"]


def plan(seconds: float, mesh: int = 8) -> Plan:
    return Plan(Mesh((mesh,), (0,)), (), (), Estimate(seconds, 0.0, 0.0, 0, 0), "", "")


def as_compiled(figures: dict[float, tuple[float, int]], seen: list[Plan]) -> Any:
    """Estimated seconds to (compiled seconds, peak)."""

    def measured(one: Plan) -> Measured:
        seen.append(one)
        seconds, peak = figures[one.estimate.step_seconds]
        return Measured(Program((), ()), peak, seconds, 0.0, 0.0)

    return measured


def test_compiled_figures_decide_among_the_best_predictions() -> None:
    figures = {1.0: (1.4, 10), 1.1: (1.2, 10), 1.2: (1.1, 99), 1.25: (1.0, 10), 2.0: (0.1, 10)}
    seen: list[Plan] = []
    found = checked([plan(s) for s in figures], as_compiled(figures, seen), 50, most=3)
    assert [one.plan.estimate.step_seconds for one in found] == [1.1, 1.0, 1.2]
    assert [one.fits for one in found] == [True, True, False]
    assert len(seen) == 3


def test_more_are_compiled_until_one_fits() -> None:
    figures = {1.0: (1.0, 99), 2.0: (2.0, 80), 3.0: (3.0, 40), 4.0: (4.0, 40)}
    seen: list[Plan] = []
    found = checked([plan(s) for s in figures], as_compiled(figures, seen), 50, most=1)
    assert found[0].plan.estimate.step_seconds == 3.0
    assert len(seen) == 3
    with pytest.raises(Infeasible, match="the least takes") as short:
        checked([plan(s) for s in figures], as_compiled(figures, []), 30)
    assert short.value.least == 40


def test_equal_programs_are_compiled_once() -> None:
    one, other = plan(1.0), plan(1.0, 4)
    assert different([other, one, replace(one, name="dp")]) == [other, one]


def test_experts_are_among_the_candidates_and_the_choice_runs() -> None:
    step, state, batch = mlp(layers=2, d=64, rows=32)
    graph = trace(step, state, batch)
    meshes = [Mesh((8,), (0,))]
    found = candidates(graph, CPU8, experts=("dp", "ep"), meshes=meshes, backend="cpu")
    assert found == sorted(found, key=lambda one: one.estimate.step_seconds)
    assert "dp" in {one.name for one in found}
    results = jax.eval_shape(step, state, batch)
    best = choose(graph, CPU8, (state, batch), results, cpu(8), 2, experts=("dp",), meshes=meshes)
    assert [one.measured.step_seconds for one in best] == sorted(one.measured.step_seconds for one in best)
    applied = prepare(step, state, batch, topology=CPU8, devices=jax.devices()[:8], compiled=2, experts=("dp",),
                      meshes=meshes)  # fmt: skip
    assert applied.plan == best[0].plan
    with pytest.raises(PlanError):
        choose(graph, CPU8, (state, batch), results, cpu(8), 2, experts=(), meshes=meshes, memory=1e4)
