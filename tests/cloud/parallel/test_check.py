"""Predictions compared with compiled programs; the compilers; the models on which plans are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.parallel.models import MODELS
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import check, compare, footprint, measure
from cloud.parallel.cost import seconds
from cloud.parallel.plan import Collective, Estimate, Mesh
from cloud.parallel.running.apply import apply
from cloud.parallel.searching.predict import predict
from cloud.parallel.searching.search import search
from cloud.parallel.topology import PRESETS, Device, Topology
from cloud.parallel.tracing.trace import trace

MESH, TOPOLOGY = Mesh((8,), (0,)), PRESETS["cpu8"]
ROWS, WIDTH = 64, 32


class Regression:
    """A step of least squares on rows shared out to 8 devices, as `Applied` is: the gradient is summed over all."""

    def __init__(self, devices: tuple[Any, ...]) -> None:
        self.mesh = jax.sharding.Mesh(np.array(devices), ("m0",), axis_types=(AxisType.Auto,))

    def lower(self) -> Any:
        def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            loss, gradient = jax.value_and_grad(lambda w: jnp.square(x @ w).sum())(w)
            return w - gradient, loss

        whole, rows = NamedSharding(self.mesh, PartitionSpec()), NamedSharding(self.mesh, PartitionSpec("m0"))
        w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=whole)
        x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=rows)
        return jax.jit(step, donate_argnums=0, out_shardings=(whole, whole)).lower(w, x)


GRADIENT = Collective("all-reduce", 4 * WIDTH * WIDTH, (0,), 8, why="the gradient")
LOSS = Collective("all-reduce", 4, (0,), 8, why="the loss")
RIGHT = Estimate(1e-5, 1e-4, 1e-4, 4 * (2 * WIDTH * WIDTH + 2 * ROWS // 8 * WIDTH), 4 * WIDTH * WIDTH, (GRADIENT, LOSS))


@pytest.fixture(scope="module")
def program() -> Any:
    return compilers.cpu(8).compile(Regression(compilers.cpu(8).devices).lower())


def test_a_right_prediction_agrees() -> None:
    compiler = compilers.cpu(8)
    report = check(Regression(compiler.devices), RIGHT, MESH, TOPOLOGY, compiler)
    assert [(row.what, row.gap, row.notes) for row in report.collectives] == [("all-reduce over m0", 0.0, ())]
    assert report.agrees(bytes=0.0, peak=0.5)
    assert report.fits
    assert report.measured.flops == 2 * 2 * ROWS // 8 * WIDTH * WIDTH


def test_differences_name_the_value(program: Any) -> None:
    measured = measure(program, MESH, TOPOLOGY)
    gathered = Collective("all-gather", 512, (0,), 8, times=3, why="x for dot at a.py:1")
    wrong = replace(RIGHT, collectives=(LOSS, gathered))
    report = compare(wrong, measured, TOPOLOGY)
    rows = {row.what: row for row in report.collectives}
    assert rows["all-gather over m0"].notes == ("predicted, not compiled: 3 x 512 B, x for dot at a.py:1",)
    (note,) = rows["all-reduce over m0"].notes
    assert note.startswith(f"compiled, not predicted: 1 x {GRADIENT.bytes:,} B, jit(step)/")
    assert not report.agrees()
    assert note in report.text()
    assert json.loads(json.dumps(report.to_dict()))["collectives"][0]["predicted"] == 3 * 512


def test_seconds_are_those_of_the_planner(program: Any) -> None:
    """A device that needs no time for computing leaves the collectives; half of them hidden is half of their time."""
    device = Device({"float32": 1e30}, 1e30, 1e-30)
    topology = Topology("wire", TOPOLOGY.levels, 1e9, device)
    measured = measure(program, MESH, topology)
    (one,) = measured.collectives
    assert measured.step_seconds == pytest.approx(seconds("all-reduce", one.bytes, (0,), MESH, topology))
    assert measure(program, MESH, replace(topology, overlap=0.5)).exposed_seconds == measured.exposed_seconds / 2


def test_what_a_device_holds(program: Any) -> None:
    """The weights once, as they are replaced in place; the rows; the loss; and what is in between."""
    least = 4 * (WIDTH * WIDTH + ROWS // 8 * WIDTH + 1)
    assert least < footprint(program) < least + 4 * (3 * WIDTH * WIDTH + 4 * ROWS // 8 * WIDTH)
    small = compare(RIGHT, measure(program, MESH, TOPOLOGY), replace(TOPOLOGY, memory=1000.0))
    assert not small.fits


def test_too_few_cpus() -> None:
    with pytest.raises(PlanError, match="xla_force_host_platform_device_count=4096"):
        compilers.cpu(4096)


@pytest.fixture
def unloaded() -> Iterator[None]:
    compilers._load.cache_clear()
    yield
    compilers._load.cache_clear()


def test_no_compiler_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unloaded: None) -> None:
    monkeypatch.setenv(compilers.FOLDER, str(tmp_path))
    monkeypatch.setattr(compilers._jax, "knows_platform", lambda name: False)
    assert not compilers.has_gpu()
    with pytest.raises(PlanError, match=r"benchmarks\.parallel\.install_compiler"):
        compilers.gpu(PRESETS["h100x8"])


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("a100x8", ("major: 8 minor: 0", "core_count: 108")),
        ("l4x4", ("major: 8 minor: 9", "device_memory_size: 24000000000")),
    ],
)
def test_targets(name: str, fields: tuple[str, ...]) -> None:
    assert all(field in compilers.target(PRESETS[name]) for field in fields)


def test_an_unknown_device_is_an_h100_with_its_own_memory() -> None:
    text = compilers.target(replace(TOPOLOGY, memory=5e9))
    assert "core_count: 132" in text
    assert "device_memory_size: 5000000000" in text


@pytest.mark.skipif(not compilers.has_gpu(), reason=f"no compiler for GPUs: see {compilers.FOLDER}")
@pytest.mark.parametrize("name", ["h100x8", "2x4-slow"])
def test_the_compiler_for_gpus(name: str) -> None:
    topology = PRESETS[name]
    compiler = compilers.gpu(topology)
    mesh = Mesh((8,), (0,))
    assert [device.process_index for device in compiler.devices] == [i // topology.levels[-1].size for i in range(8)]
    report = check(Regression(compiler.devices), RIGHT, mesh, replace(topology, levels=topology.levels[-1:]), compiler)
    assert report.collectives[0].gap == 0
    assert report.measured.flops == 2 * 2 * ROWS // 8 * WIDTH * WIDTH


@pytest.mark.parametrize("name", MODELS)
def test_models_carry_their_state(name: str) -> None:
    model = MODELS[name](small=True)
    state, metrics = jax.eval_shape(model.step, model.state, model.batch)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), model.state
    )
    assert metrics["loss"].shape == ()
    assert model.fields["x"].shape[0] % 8 == 0


def test_a_model_learns() -> None:
    model = MODELS["mlp"](small=True, bfloat16=True)
    state, batch = model.make(seed=1)
    step, losses = jax.jit(model.step), []
    for _ in range(8):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]


def test_gradients_of_a_weight_used_twice_are_summed_once() -> None:
    """The embedding's and the head's: the GPU's compiler adds their parts first."""

    def step(w: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.square(jnp.tanh(batch["x"] @ w) @ w).sum()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, value

    shapes = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32), {"x": jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)}
    graph = trace(step, *shapes)
    plan = search(graph, TOPOLOGY, expert="dp", meshes=[MESH], backend="cpu")
    moved = [one.bytes for one in predict(graph, plan, TOPOLOGY).collectives]
    twice = [one.bytes for one in predict(graph, plan, TOPOLOGY, reduce_scatter=False).collectives]
    assert sorted(moved) == [4, GRADIENT.bytes]
    assert sorted(twice) == [4, GRADIENT.bytes, GRADIENT.bytes]
    if compilers.has_gpu():
        compiler = compilers.gpu(PRESETS["h100x8"])
        applied = apply(graph, plan, TOPOLOGY, shapes, jax.eval_shape(step, *shapes), devices=compiler.devices)
        found = measure(compiler.compile(applied.lower()), MESH, TOPOLOGY).collectives
        assert sum(one.bytes for one in found) == sum(moved)
