"""Applied plans: the compiled program moves exactly the predicted bytes, and computes what one device would."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import pytest

from benchmarks.parallel import closed_forms
from benchmarks.parallel.closed_forms import FORMS, SMALL, Sizes
from benchmarks.parallel.models import gpt, moe
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.hlo import read_program
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.running.apply import Applied, apply
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.predict import predict
from cloud.parallel.searching.search import RESERVE, search
from cloud.parallel.searching.walk import lying
from cloud.parallel.topology import PRESETS, Topology
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.steps import mlp, transformer

STEPS = 20
LINE, GRID = Mesh((8,), (0,)), Mesh((2, 4), (0, 0))
SLOW = replace(PRESETS["cpu8"], device=replace(PRESETS["cpu8"].device, flops={"float32": 1e8}, launch=1e-9))
LINKS = replace(SLOW, levels=tuple(replace(level, latency=1e-7) for level in SLOW.levels))
STRONG = replace(
    SLOW, levels=tuple(replace(level, latency=1e-6) for level in SLOW.levels),
    device=replace(SLOW.device, flops={"float32": 1e10}, bandwidth=1e10),
)  # fmt: skip
"""So fast compared with its links that sums should end scattered."""


def predicted(graph: Graph, plan: Plan, topology: Topology) -> Counter[str]:
    """By the CPU's compiler, which makes no reduce-scatters."""
    found: Counter[str] = Counter()
    for one in predict(graph, plan, topology, reduce_scatter=False).collectives:
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


def checked(written: Written, alone: list[float], topology: Topology, **options: Any) -> Applied:
    """The plan at work: compiled as predicted, and its losses those of one device."""
    step, state, batch = written
    applied = prepare(step, state, batch, topology=topology, **options)
    program = applied.lower().compile()
    assert compiled(program, applied.plan.mesh) == predicted(applied.graph, applied.plan, topology)
    spread = losses(program, applied.place(state), applied.place_batch(batch))
    assert spread == pytest.approx(alone, abs=1e-5)
    return applied


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if not form.apart])
def test_expert_plans_move_their_closed_forms(name: str, blocks: tuple[Written, list[float]]) -> None:
    form, (written, alone) = FORMS[name], blocks
    topology = PRESETS["h100x8"]
    applied = checked(written, alone, topology, expert=form.expert, meshes=[form.mesh])
    assert predicted(applied.graph, applied.plan, topology) == form.bytes(SMALL.parameters, SMALL.activations, 8, False)


HERE = pytest.mark.skipif(not compilers.has_gpu(), reason=f"no compiler for GPUs: see {compilers.FOLDER}")


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=HERE)])
def test_closed_forms_hold_at_their_documented_sizes(backend: str, name: str) -> None:
    assert (Sizes().parameters, Sizes().activations) == (25_165_824, 4_194_304)
    topology = PRESETS["h100x8"]
    compiler = compilers.cpu(8) if backend == "cpu" else compilers.gpu(topology)
    found = closed_forms.moved(FORMS[name], compiler, topology, Sizes())
    assert found.closed == found.foretold == found.compiled


@pytest.mark.parametrize(("model", "expert", "shape", "split"), [
    (gpt, "tp_sp", (8, 16, 64), ((), (0,), ())),
    (moe, "ep", (8, 8, 2, 64), ((0,), (), (), ())),
])  # fmt: skip
def test_sequences_and_experts_apart_train_as_one_device_does(
    model: Any, expert: str, shape: tuple[int, ...], split: Split
) -> None:
    """Activations between blocks are split along the sequence; inputs of the experts are split by expert."""
    made = model(small=True)
    state, batch = made.make()
    alone = losses(jax.jit(made.step), state, batch)
    applied = checked((made.step, state, batch), alone, STRONG, expert=expert, meshes=[LINE], backend="gpu")
    lies = zip(applied.graph.values, lying(applied.graph, applied.plan), strict=True)
    assert sum(split == here for value, here in lies if value.shape == shape) >= 4
    assert alone[-1] < alone[0]


@pytest.mark.parametrize("mesh", [LINE, GRID], ids=["line", "grid"])
def test_searched_plans_move_what_was_predicted(mesh: Mesh) -> None:
    step, state, batch = mlp(rows=64)
    applied = checked((step, state, batch), losses(jax.jit(step), state, batch), LINKS, meshes=[mesh])
    assert applied.plan.estimate.collectives


def test_a_plan_with_parameters_gathered_twice() -> None:
    step, state, batch = mlp(layers=6, d=64, rows=16)
    graph = trace(step, state, batch)
    once = search(graph, LINKS, expert="fsdp", meshes=[LINE], backend="cpu")
    memory = 0.99 * once.estimate.peak_bytes / (1 - RESERVE)
    plan = search(graph, LINKS, expert="fsdp", meshes=[LINE], backend="cpu", memory=memory)
    assert plan.regather and plan.estimate.peak_bytes < once.estimate.peak_bytes
    gathered = [predicted(graph, each, LINKS)["all-gather"] for each in (once, plan)]
    assert gathered[0] < gathered[1]
    applied = apply(graph, plan, LINKS, (state, batch), jax.eval_shape(step, state, batch))
    assert compiled(applied.lower().compile(), LINE) == predicted(graph, plan, LINKS)


def test_a_plan_for_another_step_is_refused() -> None:
    step, state, batch = mlp(d=32)
    graph = trace(step, state, batch)
    plan = search(graph, LINKS, meshes=[LINE], backend="cpu")
    results = jax.eval_shape(step, state, batch)
    with pytest.raises(PlanError, match=r"plan is for 8 devices.*got 4"):
        apply(graph, plan, LINKS, (state, batch), results, jax.devices()[:4])
    with pytest.raises(PlanError, match="made for another step"):
        apply(trace(*mlp(layers=3, d=32)), plan, LINKS, (state, batch), results)
