"""Among several plans the best one after compilation is chosen."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from cloud.errors import PlanError
from cloud.parallel.checking.check import Measured
from cloud.parallel.checking.compilers import cpu
from cloud.parallel.checking.hlo import Program
from cloud.parallel.plan import Estimate, Figures, Mesh, Plan
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching import choose as module
from cloud.parallel.searching.choose import (
    EQUAL,
    Checked,
    Reader,
    checked,
    choose,
    different,
    smallest,
    with_experts,
    worth,
)
from cloud.parallel.searching.search import plans
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


@pytest.fixture(scope="module")
def small() -> tuple[Any, ...]:
    """A step, its arguments and its graphs."""
    step, state, batch = mlp(layers=2, d=64, rows=32)
    return step, (state, batch), {1: trace(step, state, batch)}, jax.eval_shape(step, state, batch)


MESHES = [Mesh((8,), (0,))]


def test_experts_are_among_the_candidates_and_the_choice_runs(
    small: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLACK", 1e3)
    step, about, graphs, results = small
    options: dict[str, Any] = {"meshes": MESHES, "backend": "cpu"}
    found = plans(graphs[1], CPU8, **options)
    found = with_experts(found, {1: graphs[1]}, CPU8, time.monotonic() + 60, ("dp", "ep"), options)
    assert found == sorted(found, key=lambda one: one.estimate.step_seconds)
    assert "dp" in {one.name for one in found}
    given: dict[str, Any] = {"compiled": 2, "experts": ("dp",), "meshes": MESHES}
    best = choose(graphs, CPU8, about, results, cpu(8), **given)
    read = best.compiled
    assert len(read) == 2 and best.said.startswith("compiled the 2 best plans in")
    assert best.plan.figures == read[0].plan.compiled == best.plan.compiled
    assert read[0].measured.step_seconds <= (1 + EQUAL) * min(one.measured.step_seconds for one in read)
    applied = prepare(step, *about, topology=CPU8, devices=jax.devices()[:8], **given)
    assert applied.plan == best.plan and applied.said.startswith("compiled")
    with pytest.raises(PlanError):
        choose(graphs, CPU8, about, results, cpu(8), **given, memory=1e4)


def test_the_chosen_program_is_not_compiled_again(small: tuple[Any, ...], caplog: pytest.LogCaptureFixture) -> None:
    step, about, *_ = small
    applied = prepare(step, *about, topology=CPU8, devices=jax.devices()[:8], experts=(), meshes=MESHES)
    assert applied.plan.compiled is not None
    state, batch = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), about)
    placed = applied.place(state), applied.place_batch(batch)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        applied.step(*placed)
    assert not [record for record in caplog.records if "Finished XLA compilation of jit(step)" in record.message]


def test_by_default_compiling_is_bounded_and_what_was_not_done_is_said(
    small: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, about, graphs, results = small
    given: dict[str, Any] = {"experts": ("dp",), "meshes": MESHES}
    estimated = choose(graphs, CPU8, about, results, "there is no compiler", **given)
    assert estimated.said == "not compiled: there is no compiler" and estimated.plan.compiled is None
    assert choose(graphs, CPU8, about, results, cpu(8), compiled=0, **given).said == "not compiled: none was asked for"
    other = choose(graphs, CPU8, about, results, cpu(8), backend="gpu", **given)
    assert other.said.startswith("not compiled: the plan is for the compiler 'gpu'")
    monkeypatch.setattr(module, "EACH", 1e3)
    late = choose(graphs, CPU8, about, results, cpu(8), **given)
    assert late.said.startswith("not compiled: that may take") and not late.compiled
    once = choose(graphs, CPU8, about, results, cpu(8), running=True, seconds=1.0, **given)
    assert len(once.compiled) >= 1  # the devices need one program anyway


def test_programs_that_need_more_than_estimated_are_searched_again_with_less(
    small: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is made to report one and a half times the estimate."""
    _, about, graphs, results = small
    given: dict[str, Any] = {"experts": (), "meshes": MESHES, "seconds": 60.0}
    asked: list[float | None] = []

    def noted(*args: Any, **options: Any) -> list[Plan]:
        asked.append(options.get("memory"))
        return plans(*args, **options)[:1]

    def more(self: Reader, one: Plan) -> Checked:
        peak = int(1.5 * one.estimate.peak_bytes)
        read = Measured(Program((), ()), peak, one.estimate.step_seconds, 0.0, 0.0)
        return Checked(replace(one, compiled=Figures(read.step_seconds, peak)), read, peak <= self.limit, 0.0)

    limit = 1.2 * choose(graphs, CPU8, about, results, "none", backend="cpu", **given).plan.estimate.peak_bytes
    monkeypatch.setattr(module, "plans", noted)
    monkeypatch.setattr(Reader, "read", more)
    try:
        found = choose(graphs, CPU8, about, results, cpu(8), memory=limit, **given)
        assert found.plan.figures.peak_bytes <= limit
    except Infeasible as error:
        assert error.least > limit
    assert asked[0] == limit and asked[1] == pytest.approx(limit / 1.5)


def test_of_equal_costs_the_smaller_program_is_taken() -> None:
    figures = [(1.0, 50.0), (1.004, 20.0), (1.006, 10.0)]
    assert smallest(figures, lambda one: one) == (1.004, 20.0)


def test_data_parallelism_is_compiled_second_and_origins_in_turn() -> None:
    found = [replace(plan(1.0 + each / 100), name=name, parts=parts) for each, (name, parts) in enumerate(
        [("searched", 1), ("searched", 1), ("searched", 8), ("tp_sp", 1), ("fsdp", 8), ("dp", 1)])]  # fmt: skip
    order = [(one.name, one.parts) for one in worth(found, 4)]
    assert order == [("searched", 1), ("fsdp", 8), ("searched", 8), ("searched", 1)]
    assert worth(found, 1) == found[:1] and worth(found[4:], 4) == found[4:]
    far = [
        found[0],
        *(replace(plan(seconds), name=name) for seconds, name in ((1.5, "tp"), (1.9, "zero1"), (2.1, "dp"))),
    ]
    assert worth(far, 4) == [far[0], far[2]]
    assert worth([far[0], far[3]], 4) == [far[0]]
    close = replace(plan(1.95), name="dp")
    assert worth([*far[:3], close], 4) == [far[0], far[2], close]
