"""Stages' values in flat vectors, their devices, and the chosen schedule."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud._jax import shaped
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.checking.hlo import Branch, Branching, Program, Work
from cloud.parallel.plan import Mesh
from cloud.parallel.staged.inside import restricted, unsplit
from cloud.parallel.staged.layouts import layouts
from cloud.parallel.staged.packing import Pack, largest
from cloud.parallel.staged.schedule import schedule
from cloud.parallel.staged.staging import in_turns, pipelines
from cloud.parallel.staged.ticks import PASSES
from cloud.parallel.topology import Device, Level, Topology
from cloud.train.stepping.step import StepOptions, TrainState
from tests.cloud.parallel.two_layers import step_graph

WIDTH = 2


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    count = draw(st.integers(1, 5))
    shapes = [tuple(draw(st.lists(st.sampled_from((1, 2, 4, 6)), max_size=3))) for _ in range(count)]
    dims = [draw(st.sampled_from([None, *(d for d, n in enumerate(shape) if n % WIDTH == 0)])) for shape in shapes]
    return Pack.of([shaped(shape, draw(st.sampled_from(("float32", "int32")))) for shape in shapes], dims, WIDTH)


@given(st.lists(packs(), min_size=1, max_size=3))
def test_vectors_give_back_what_was_packed(all_packs: list[Pack]) -> None:
    sizes = largest(all_packs)
    for pack in all_packs:
        arrays = [np.arange(math.prod(shape), dtype=dtype).reshape(shape) for shape, dtype in pack.leaves]
        vectors = pack.pack(arrays, sizes, np)
        assert {key: v.shape[-1] for key, v in vectors.items()} == sizes
        for array, back in zip(arrays, pack.unpack(vectors, np), strict=True):
            np.testing.assert_array_equal(array, back)


def test_a_row_of_a_vector_is_one_device_s_part() -> None:
    matrix = np.arange(16, dtype=np.float32).reshape(4, 4)
    for dim, part in ((0, matrix[:2]), (1, matrix[:, :2])):
        pack = Pack.of([matrix], [dim], WIDTH)
        (vector,) = pack.pack([matrix], pack.sizes, np).values()
        np.testing.assert_array_equal(vector[0].reshape(part.shape), part)


@pytest.mark.parametrize("name", ["h100x8", "h100x2x8", "2x4-slow", "l4x4"])
def test_devices_of_a_replica_have_the_fastest_links(name: str) -> None:
    topology = Topology.named(name)
    found = list(layouts(topology))
    assert {one.tensor for one in found} > {1}
    for one in found:
        assert one.stages * one.replicas * one.tensor == topology.size == math.prod(one.mesh.sizes)
        assert all(one.mesh.levels[axis] == len(topology.levels) - 1 for axis in one.axes[2])
        assert sum(one.axes, ()) == tuple(range(len(one.mesh.sizes)))  # stages are the major axes


def test_fewer_results_need_less() -> None:
    graph = step_graph()
    loss = len(graph.leaving) - 1
    cut, _ = restricted(graph, unsplit(graph, Mesh((1,), (0,))), [loss])
    assert 0 < len(cut.ops) < len(graph.ops) / 2
    values = [np.full(v.aval.shape, 0.1, v.aval.dtype) for v in graph.jaxpr.jaxpr.invars]
    expected = jax.core.eval_jaxpr(graph.jaxpr.jaxpr, graph.jaxpr.consts, *values)[loss]
    assert jax.core.eval_jaxpr(cut.jaxpr.jaxpr, cut.jaxpr.consts, *values) == [expected]


def test_ticks_of_a_program_take_as_long_as_their_slowest_stage() -> None:
    """Two stages and two microbatches in four ticks; only work in branches depends on the tick."""
    device = Device({"float32": 1.0}, 1.0, 0.0)
    topology = Topology("two", (Level(2, 1.0, 1.0),), 1e9, device)
    table, mesh = schedule("1f1b", 2, 2), Mesh((2,), (0,))
    branches = {"forward": (3.0, 0.0, 0.0), "backward": (5.0, 7.0, 1.0)}  # of the first stage, the last, and idle

    def work(seconds: float, times: int) -> Work:
        return Work(seconds, 0.0, "float32", times, "")

    def branching(name: str) -> Branching:
        own = tuple(Branch((work(one, table.ticks),), ()) for one in branches[name])
        return Branching(f"while/body/{name}/cond", table.ticks, own, max(range(3), key=branches[name].__getitem__))

    always = (work(3.0 + 7.0, table.ticks), work(100.0, 1))
    program = Program((), always, (), tuple(map(branching, branches)))
    found = in_turns(Measured(program, 1, 10.0 * table.ticks + 100.0, 0.0, 0.0), table, (0, 1), mesh, topology)
    ticks = sum(
        max((3.0 if f[0] >= 0 else 0.0) + (5.0 if b[0] >= 0 else 1.0), 7.0 if b[1] >= 0 else 1.0)
        for f, b in zip(table.forward, table.backward, strict=True)
    )
    assert found.compute_seconds == pytest.approx(ticks + 100.0) and found.peak_bytes == 1
    assert table.seconds([3.0, 0.0], [5.0, 7.0], 1.0) == pytest.approx(ticks)


HERE = pytest.mark.skipif(not compilers.has_gpu(), reason=f"no compiler for GPUs: see {compilers.FOLDER}")


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=HERE, id="gpus")])
def test_stages_share_their_work_over_fast_links_as_predicted(backend: str) -> None:
    """Stages are for the slow links, and the memory is too small for replicas."""

    def loss(params: Any, state: Any, batch: Any, key: Any) -> tuple[dict[str, Any], Any]:
        x = batch["x"]
        for layer in params:
            x = jnp.tanh(x @ layer)
        return {"examples": jnp.float32(len(x)), "loss": jnp.sum(x**2)}, state

    optimizer, params = optax.adam(1e-3), [shaped((64, 64), jnp.float32)] * 4
    state = TrainState(params, {}, jax.eval_shape(optimizer.init, params), shaped((), jnp.int32))
    batch = {"x": shaped((16, 64), jnp.float32)}
    device = Device({"float32": 1e9}, 1e10, 0.0)
    topology = Topology("2x2", (Level(2, 1e-5, 1e7), Level(2, 1e-6, 1e10)), 180e3, device)
    found = pipelines(loss, state, batch, topology, backend=backend)
    assert [one.estimate.step_seconds for one in found] == sorted(one.estimate.step_seconds for one in found)
    assert all(one.estimate.peak_bytes <= topology.memory for one in found)
    best = found[0]
    assert (len(best.stages) + 1, best.replicas, best.tensor) == (2, 1, 2)
    compiler = compilers.cpu(4) if backend == "cpu" else compilers.gpu(replace(topology, memory=8e10))
    step = best.pipelined(loss, optimizer, StepOptions(), state, batch, compiler.devices)
    read = best.measured(step, compiler, topology)
    told: Counter[Any] = Counter()
    for one in best.estimate.collectives:
        told[one.kind, one.axes] += one.bytes * one.times
    assert read.bytes == told
    busy = measure(compiler.compile(step.lower()), best.mesh, topology)  # as if every tick were the dearest one
    assert read.peak_bytes == busy.peak_bytes and read.step_seconds < 0.9 * busy.step_seconds
    assert {name for one in busy.program.branchings for name in PASSES if f"/{name}/" in one.where} == {*PASSES}
    with pytest.raises(PlanError, match="the same freeze"):
        best.pipelined(loss, optimizer, StepOptions(freeze=["0"]), state, batch, compiler.devices)
    roomy = pipelines(loss, state, batch, topology, backend=backend, memory=1e9)
    assert roomy[0].estimate.step_seconds <= best.estimate.step_seconds
