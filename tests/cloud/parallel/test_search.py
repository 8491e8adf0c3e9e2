"""The search: results on topologies where the answer is known, refusals, and consistent costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud.errors import PlanError
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.searching import search as module
from cloud.parallel.searching.demands import Pin
from cloud.parallel.searching.grouping.groups import grouped
from cloud.parallel.searching.holding.memory import curve, lives
from cloud.parallel.searching.options import assignments
from cloud.parallel.searching.question import Question, ask
from cloud.parallel.searching.search import LOOPS, RESERVE, plans, search, usable
from cloud.parallel.searching.work import work
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.staged.inside import unsplit
from cloud.parallel.topology import PRESETS, Level, Topology
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.steps import mlp, transformer

LINE = Mesh((8,), (0,))


def links(bandwidth: float, latency: float = 1e-9) -> Topology:
    """Eight slow devices on links of this speed."""
    base = PRESETS["cpu8"]
    device = replace(base.device, flops={"float32": 1e9}, bandwidth=1e9, launch=1e-9)
    return replace(base, levels=(Level(8, latency, bandwidth),), device=device)


@pytest.fixture(scope="module")
def wide() -> Graph:
    """Few rows, large weights."""
    return trace(*mlp(layers=3, d=512, rows=8))


@pytest.fixture(scope="module")
def tall() -> Graph:
    """Many rows, small weights."""
    return trace(*mlp(layers=2, d=64, rows=4096))


def batch_of(graph: Graph, plan: Plan) -> list[object]:
    return [split for v, split in zip(graph.entering, plan.entering, strict=True) if graph.values[v].kind == "batch"]


def test_many_rows_are_split_and_few_are_not(wide: Graph, tall: Graph) -> None:
    topology = links(1e9)
    by_rows = search(tall, topology, meshes=[LINE])
    assert batch_of(tall, by_rows) == [((0,), ())] * 2
    moved = sum(c.bytes for c in search(wide, topology, meshes=[LINE]).estimate.collectives)
    weights = sum(wide.values[v].bytes for v in wide.entering if wide.values[v].name.endswith(".w"))
    assert moved < weights / 12  # activations, not gradients; weights and two moments


def test_links_so_slow_that_nothing_is_worth_moving(tall: Graph) -> None:
    alone = search(tall, links(1e3, latency=10.0), meshes=[LINE])
    assert alone.estimate.collectives == ()


def test_less_memory_spreads_the_state(wide: Graph) -> None:
    topology = links(1e12)
    free = search(wide, topology, meshes=[LINE], expert="dp")
    least = min(plan.estimate.peak_bytes for plan in plans(wide, topology, meshes=[LINE], expert="fsdp"))
    between = (free.estimate.peak_bytes + least) / 2 / (1 - RESERVE)
    tight = search(wide, topology, meshes=[LINE], memory=between)
    assert tight.estimate.peak_bytes <= between * (1 - RESERVE) < free.estimate.peak_bytes
    assert tight.estimate.state_bytes < free.estimate.state_bytes


def test_what_cannot_fit_says_the_least_that_would(wide: Graph) -> None:
    topology = links(1e9)
    with pytest.raises(Infeasible, match=r"KiB per device.*least") as short:
        search(wide, topology, meshes=[LINE], memory=1e5)
    assert short.value.least > 1e5
    fits = search(wide, topology, meshes=[LINE], memory=short.value.least * 1.1)
    assert fits.estimate.peak_bytes <= short.value.least * 1.1


def test_slots_are_sharded_as_their_update_while_parameters_stay_whole(wide: Graph) -> None:
    whole = [Pin("params.*.w", ((), ())), Pin("batch.*", ((0,), ()))]
    plan = search(wide, links(1e12), meshes=[LINE], pins=whole, memory=14e6)
    lies = {wide.values[v].name: split for v, split in zip(wide.entering, plan.entering, strict=True)}
    assert lies["params.1.w"] == ((), ())
    assert sum(bool(axes) for axes in lies["slots.0.mu.1.w"]) == 1
    assert any(c.kind == "all-gather" and "back to its sharding" in c.why for c in plan.estimate.collectives)


def test_pins_are_kept_and_bad_ones_refused(tall: Graph) -> None:
    topology = links(1e9)
    pinned = search(tall, topology, meshes=[LINE], pins=[Pin("params.0.w", ((), (0,)))])
    lies = {tall.values[v].name: split for v, split in zip(tall.entering, pinned.entering, strict=True)}
    assert lies["params.0.w"] == ((), (0,))
    with pytest.raises(PlanError, match=r"no input or operator of that name; inputs: batch\.x"):
        search(tall, topology, meshes=[LINE], pins=[Pin("weights*", ((),))])
    with pytest.raises(PlanError, match="expected a split of 2 dimensions for"):
        search(tall, topology, meshes=[LINE], pins=[Pin("params.0.w", ((),))])
    with pytest.raises(PlanError, match=r"no way to split 'params\.0\.w'"):
        search(trace(*mlp(d=12)), topology, meshes=[LINE], pins=[Pin("params.0.w", ((), (0,)))])
    with pytest.raises(PlanError, match="unknown expert 'zero'; known: dp"):
        search(tall, topology, expert="zero")


def test_folding_costs_little() -> None:
    graph = trace(*transformer(layers=2, d=32, rows=8, length=4))
    topology = links(1e8)
    together, apart = (search(graph, topology, meshes=[LINE], fold=fold) for fold in (True, False))
    assert apart.estimate.step_seconds <= together.estimate.step_seconds * (1 + 1e-3)
    assert together.estimate.step_seconds <= apart.estimate.step_seconds * 1.05


def test_the_memory_curve_holds_the_state_and_peaks_where_the_estimate_says(tall: Graph) -> None:
    plan = search(tall, links(1e9), meshes=[LINE])
    held = curve(tall, plan, links(1e9))
    assert held.max() == plan.estimate.peak_bytes
    assert np.all(held >= plan.estimate.state_bytes)


def test_equal_inputs_give_equal_plans(tall: Graph) -> None:
    assert search(tall, links(1e9)) == search(tall, links(1e9))


def test_every_way_to_split_an_operator_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of seven loops on two axes has hundreds."""
    asked: list[Question] = []

    def noted(*about: Any) -> Question:
        asked.append(ask(*about))
        return asked[-1]

    def step(state: Any, batch: Any) -> Any:
        return state, jnp.einsum("abcxy,xyde->abcde", batch, state)

    graph = trace(step, jnp.ones((4, 4, 4, 4)), jnp.ones((4, 4, 4, 4, 4)))
    monkeypatch.setattr(module, "ask", noted)
    mesh = Mesh((2, 2), (0, 0))
    search(graph, PRESETS["cpu8"], meshes=[mesh], seconds=5)
    (k,) = (k for k, op in enumerate(graph.ops) if op.primitive == "dot_general")
    every = list(assignments(graph.ops[k], [graph.values[v].shape for v in graph.ops[k].outputs], mesh))
    (node,) = (node for node in asked[0].nodes if k in node.group.ops)
    assert len(every) > 200 and {*node.leads} >= {*every}


def test_what_reads_its_own_sums_reads_the_data_twice() -> None:
    """A softmax in memory: one kernel for its sums and one for what it stores; a sum alone needs one."""
    x, device = jnp.ones((512, 512)), replace(links(1.0).device, flops={"float32": 1e15})

    def seconds(function: Any) -> float:
        graph = trace(lambda s, b: (jnp.tanh(function(s @ b)) @ b, None), x, x)
        nothing = unsplit(graph, Mesh((1,), (0,)))
        chosen = dict(enumerate(nothing.ops))
        stored = lives(graph, True).spans
        return sum(work(graph, group, chosen, stored, nothing.mesh, device) for group in grouped(graph))

    plain, softmax = seconds(lambda y: 2 * y), seconds(lambda y: y / jnp.exp(y).sum(-1, keepdims=True))
    assert softmax - plain == pytest.approx(x.nbytes / device.bandwidth, rel=0.02)


def test_a_search_for_which_nothing_fits_ends_in_time(wide: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the seconds, neither other meshes nor finer parts are begun."""
    begun: list[tuple[Any, ...]] = []
    plan = module._Search.plan

    def noted(self: Any, *about: Any) -> Plan:
        begun.append(about)
        return plan(self, *about)

    monkeypatch.setattr(module._Search, "plan", noted)
    with pytest.raises(Infeasible):
        plans(wide, links(1e12), memory=1e5, seconds=1e-3)
    assert {about[0] for about in begun} == {begun[0][0]}
    assert {number for about in begun for number in about[4:5]} == {1}


def test_memory_is_kept_back_for_loops_unless_programs_are_read(wide: Graph) -> None:
    loop = trace(lambda s, b: (s, jax.lax.scan(lambda c, x: (c + x @ s, None), b[0], b)[0]), jnp.ones((8, 8)),
                 jnp.ones((4, 8, 8)))  # fmt: skip
    assert usable(wide, 100.0, False) == usable(wide, 100.0, True) == usable(loop, 100.0, True) == 100 * (1 - RESERVE)
    assert usable(loop, 100.0, False) == pytest.approx(100 * (1 - RESERVE - LOOPS))
