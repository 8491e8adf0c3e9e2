"""Plans applied: the compiled program moves just the bytes that were predicted, and computes what one device would."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import pytest

from cloud.errors import PlanError
from cloud.parallel.checking.hlo import read_program
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.running.apply import apply
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.search import RESERVE, search
from cloud.parallel.topology import PRESETS, Topology
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.steps import mlp, transformer

STEPS = 20
LINE, GRID = Mesh((8,), (0,)), Mesh((2, 4), (0, 0))
SLOW = replace(PRESETS["cpu8"], device=replace(PRESETS["cpu8"].device, flops={"float32": 1e8}, launch=1e-9))
LINKS = replace(SLOW, levels=tuple(replace(level, latency=1e-7) for level in SLOW.levels))


def predicted(plan: Plan) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in plan.estimate.collectives:
        found[one.kind] += one.bytes * one.times
    return found


def compiled(program: Any, mesh: Mesh) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in read_program(program.as_text(), mesh).collectives:
        found[one.kind] += one.bytes * one.times
    return found


def losses(step: Any, state: Any, batch: Any) -> list[float]:
    found = []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return found


Written = tuple[Any, Any, Any]


@pytest.fixture(scope="module")
def blocks() -> tuple[Written, list[float]]:
    """A step, and its losses on one device."""
    step, state, batch = transformer(d=64, rows=16, length=8)
    return (step, state, batch), losses(jax.jit(step), state, batch)


def checked(written: Written, alone: list[float], topology: Topology, **options: Any) -> Counter[str]:
    """Compiled as predicted, and the losses those of one device; the bytes by kind."""
    step, state, batch = written
    applied = prepare(step, state, batch, topology=topology, **options)
    program = applied.lower().compile()
    moved = compiled(program, applied.plan.mesh)
    assert moved == predicted(applied.plan)
    spread = losses(program, applied.place(state), applied.place_batch(batch))
    assert spread == pytest.approx(alone, abs=1e-5)
    return moved


CLOSED_FORMS = {
    "dp": (LINE, lambda p, a: {"all-reduce": p + 4}),
    "fsdp": (LINE, lambda p, a: {"all-gather": p, "all-reduce": p + 4}),
    "megatron": (LINE, lambda p, a: {"all-reduce": 7 * a}),
    "dp_tp": (GRID, lambda p, a: {"all-reduce": 7 * a // 2 + p // 4 + 4}),
}
"""Bytes moved on eight devices by two blocks of attention and MLP: `p` bytes of parameters, `a` of activations."""


@pytest.mark.parametrize("expert", CLOSED_FORMS)
def test_expert_plans_move_their_closed_forms(expert: str, blocks: tuple[Written, list[float]]) -> None:
    mesh, form = CLOSED_FORMS[expert]
    written, alone = blocks
    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(written[1]))
    moved = checked(written, alone, PRESETS["h100x8"], expert=expert, meshes=[mesh])
    assert moved == form(parameters, written[2]["x"].nbytes)


@pytest.mark.parametrize("mesh", [LINE, GRID], ids=["line", "grid"])
def test_searched_plans_move_what_was_predicted(mesh: Mesh) -> None:
    step, state, batch = mlp(rows=64)
    assert checked((step, state, batch), losses(jax.jit(step), state, batch), LINKS, meshes=[mesh])


def test_a_plan_with_parameters_gathered_twice() -> None:
    step, state, batch = mlp(layers=6, d=64, rows=16)
    graph = trace(step, state, batch)
    once = search(graph, LINKS, expert="fsdp", meshes=[LINE], backend="cpu")
    memory = 0.99 * once.estimate.peak_bytes / (1 - RESERVE)
    plan = search(graph, LINKS, expert="fsdp", meshes=[LINE], backend="cpu", memory=memory)
    assert plan.regather and plan.estimate.peak_bytes < once.estimate.peak_bytes
    assert predicted(plan)["all-gather"] > predicted(once)["all-gather"]
    applied = apply(graph, plan, LINKS, (state, batch), jax.eval_shape(step, state, batch))
    assert compiled(applied.lower().compile(), LINE) == predicted(plan)


def test_what_a_plan_is_not_for_is_refused() -> None:
    step, state, batch = mlp(d=32)
    graph = trace(step, state, batch)
    plan = search(graph, LINKS, meshes=[LINE], backend="cpu")
    results = jax.eval_shape(step, state, batch)
    with pytest.raises(PlanError, match=r"plan is for 8 devices.*there are 4"):
        apply(graph, plan, LINKS, (state, batch), results, jax.devices()[:4])
    with pytest.raises(PlanError, match="made for another step"):
        apply(trace(*mlp(layers=3, d=32)), plan, LINKS, (state, batch), results)
