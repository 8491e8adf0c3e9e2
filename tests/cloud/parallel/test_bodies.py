"""Loops planned inside: compiled programs move what was predicted in all trips, and compute what one device would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Report, check
from cloud.parallel.explaining.notes import notes, unsearched
from cloud.parallel.plan import Mesh
from cloud.parallel.running.apply import Applied, apply
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.search import Pin, search
from cloud.parallel.searching.walk import copies, lying
from cloud.parallel.topology import PRESETS, Device, Level, Topology
from cloud.parallel.tracing.bodies import CLOSE
from cloud.parallel.tracing.trace import trace, variants

CPU = PRESETS["cpu8"]
LINE, GRID = Mesh((8,), (0,)), Mesh((2, 4), (0, 0))
WIDTH, ROWS, LAYERS = 16, 16, 3
Loss = Callable[[Any, Any], Any]


def drawn(*shape: int, scale: float = 0.3) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) * scale, jnp.float32)


def trained(loss: Loss) -> Callable[[Any, Any], Any]:
    def step(state: Any, batch: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda w, slope: w - 0.1 * slope, state, slopes), {"loss": value}

    return step


def layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def stacked(**outer: Any) -> Any:
    blocks = {"up": drawn(LAYERS, WIDTH, 2 * WIDTH), "down": drawn(LAYERS, 2 * WIDTH, WIDTH)}
    return {"blocks": blocks, **outer}


def layers(again: bool = False, reverse: bool = False, backward: bool = False) -> Loss:
    def trip(x: Any, w: Any) -> Any:
        return layer(x, w), None

    def loss(state: Any, batch: Any) -> Any:
        x, _ = lax.scan(jax.checkpoint(trip) if again else trip, batch["x"], state["blocks"], reverse=reverse)
        return jnp.mean((x - batch["y"]) ** 2)

    return loss


def nested(state: Any, batch: Any) -> Any:
    """Three trips over three layers with the same weights; the mean of what each trip gives."""

    def outer(x: Any, place: Any) -> Any:
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x + place, state["blocks"])
        return x, x.mean(0)

    _, means = lax.scan(outer, batch["x"], state["places"])
    return jnp.mean((means - batch["y"].mean(0)) ** 2)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, slope: (jnp.clip(slope, -0.1, 0.1),))


def ruled(state: Any, batch: Any) -> Any:
    """A custom gradient inside."""
    x, _ = lax.scan(lambda x, w: (layer(clipped(x), w), None), batch["x"], state["blocks"])
    return jnp.mean((x - batch["y"]) ** 2)


def microbatches(state: Any, batch: Any) -> Any:
    """The gradient, added up over four microbatches in a carry."""
    apart = jax.tree.map(lambda x: x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1), batch)

    def trip(total: Any, rows: Any) -> Any:
        lost, slopes = jax.value_and_grad(layers())(state, rows)
        return jax.tree.map(jnp.add, total, (lost, slopes)), None

    (lost, slopes), _ = lax.scan(trip, (jnp.float32(0), jax.tree.map(jnp.zeros_like, state)), apart)
    return jax.tree.map(lambda w, slope: w - 0.025 * slope, state, slopes), {"loss": lost / 4}


def solved(state: Any, batch: Any) -> Any:
    """A loop that stops by a condition on its carry, whose trips nobody knows."""
    w = 0.1 * state["blocks"]["up"][0] @ state["blocks"]["down"][0]

    def trip(carry: Any) -> Any:
        x, count, _ = carry
        after = jnp.tanh(x @ w + batch["x"])
        return after, count + 1, jnp.abs(after - x).max()

    near = batch["y"][0, 0] * 0 + 1e-3
    found, count, _ = lax.while_loop(lambda c: c[2] > near, trip, (batch["x"], 0, jnp.float32(1)))
    change = jax.tree.map(lambda each: each * (1 - 1e-3 * jnp.mean(found)), state)
    return change, {"loss": jnp.mean((found - batch["y"]) ** 2) + count}


ROWS_OF = {"x": drawn(ROWS, WIDTH), "y": drawn(ROWS, WIDTH)}
STEPS: dict[str, tuple[Any, Any]] = {
    "layers": (trained(layers()), stacked()),
    "recomputed": (trained(layers(again=True)), stacked()),
    "reversed": (trained(layers(reverse=True)), stacked()),
    "nested": (trained(nested), stacked(places=drawn(3, WIDTH))),
    "custom gradient": (trained(ruled), stacked()),
    "microbatches": (microbatches, stacked()),
    "while": (solved, stacked()),
}
CASES = [("layers", "", GRID), ("layers", "fsdp", LINE), ("layers", "megatron", LINE), ("layers", "dp_tp", GRID),
         ("recomputed", "fsdp", LINE), ("reversed", "dp", LINE), ("nested", "fsdp", LINE), ("nested", "", GRID),
         ("custom gradient", "dp", LINE), ("microbatches", "dp", LINE), ("microbatches", "megatron", LINE),
         ("while", "dp", LINE)]  # fmt: skip


def applied(name: str, expert: str, mesh: Mesh, parts: int = 1) -> tuple[Applied, Report]:
    """The plan applied, and the comparison with its program; its losses are those of one device."""
    step, state = STEPS[name]
    graph = trace(step, state, ROWS_OF, parts=parts)
    plan = search(graph, CPU, expert=expert, meshes=[mesh], backend="cpu")
    about = (state, ROWS_OF), jax.eval_shape(step, state, ROWS_OF)
    made = apply(graph, plan, CPU, *about, devices=jax.devices()[:8])
    alone, here = jax.jit(step), made.place(state)
    for _ in range(3):
        state, expected = alone(state, ROWS_OF)
        here, got = made.step(here, made.place_batch(ROWS_OF))
        assert float(got["loss"]) == pytest.approx(float(expected["loss"]), abs=1e-5)
    return made, check(made, plan.estimate, plan.mesh, CPU, compilers.cpu(8))


@pytest.mark.parametrize(("name", "expert", "mesh"), CASES)
def test_bytes_of_all_trips_are_predicted(name: str, expert: str, mesh: Mesh) -> None:
    made, report = applied(name, expert, mesh)
    assert all(row.predicted == row.compiled for row in report.collectives), report.text()
    assert made.graph.bodies and not any(op.primitive in ("scan", "while") for op in made.graph.ops)


def test_megatron_splits_the_weights_of_every_layer() -> None:
    """Two sums of activations forward in each trip, and none of gradients."""
    made, report = applied("layers", "megatron", LINE)
    names = [value.name for value in made.graph.values]
    lies = lying(made.graph, made.plan)
    assert lies[names.index("blocks.up")] == ((), (), (0,)) and lies[names.index("blocks.down")] == ((), (0,), ())
    summed = [one for one in made.plan.estimate.collectives if one.times == LAYERS]
    assert {one.bytes for one in summed} == {ROWS * WIDTH * 4} and len(summed) == len(report.measured.collectives)


def test_microbatches_are_summed_over_devices_once() -> None:
    """In parts, each device keeps its own sum until the loop ends: a quarter of the bytes."""
    step, state = STEPS["microbatches"]
    assert list(variants(step, state, ROWS_OF, sizes=(4, 2))) == [1, 4, 2]
    mesh = Mesh((2, 2), (0, 0))  # four rows a microbatch
    moved = {}
    for parts in (1, 4):
        graph = trace(step, state, ROWS_OF, parts=parts)
        plan = search(graph, CPU, expert="dp", meshes=[mesh], backend="cpu")
        about = (state, ROWS_OF), jax.eval_shape(step, state, ROWS_OF)
        made = apply(graph, plan, CPU, *about, devices=jax.devices()[:4])
        report = check(made, plan.estimate, plan.mesh, CPU, compilers.cpu(4))
        assert all(row.predicted == row.compiled for row in report.collectives), report.text()
        moved[parts] = report.totals[0].compiled
        _, got = made.step(made.place(state), made.place_batch(ROWS_OF))
        assert float(got["loss"]) == pytest.approx(float(jax.jit(step)(state, ROWS_OF)[1]["loss"]), abs=1e-5)
    assert moved[1] > 3.9 * moved[4]


def test_gradients_of_layers_are_summed_over_devices_after_the_loop() -> None:
    """In parts, trips stack what each device has; without, each trip adds up its layer's gradients."""
    times = {}
    for parts in (1, 8):
        made, report = applied("layers", "dp", LINE, parts)
        assert all(row.predicted == row.compiled for row in report.collectives), report.text()
        times[parts] = {one.times for one in made.plan.estimate.collectives}
    assert times == {1: {1, LAYERS}, 8: {1}}


def test_work_of_trips_is_counted() -> None:
    step, state = STEPS["nested"]
    graph = trace(step, state, ROWS_OF)
    assert sorted((body.trips, body.outer >= 0) for body in graph.bodies) == [(3, False)] * 2 + [(3, True)] * 2
    inner = [op for op in graph.ops if op.primitive == "dot_general"]
    assert {op.times for op in inner} == {9}
    alone = trace(step, state, ROWS_OF, unroll=True)
    products = [op for op in alone.ops if op.primitive == "dot_general"]
    assert sum(op.flops * op.times for op in inner) == sum(op.flops for op in products)


def test_a_loop_without_trips_is_its_start() -> None:
    def step(state: Any, batch: Any) -> Any:
        carry, made = lax.scan(lambda c, x: (c * 2 + x, c), state, batch[:0])
        return carry, (made, lax.fori_loop(3, 3, lambda i, c: c + 1, carry))

    graph = trace(step, jnp.ones(8), drawn(4, 8))
    assert not any(body.bounded for body in graph.bodies)
    made = prepare(step, jnp.ones(8), drawn(4, 8), topology=CPU, devices=jax.devices()[:8], seconds=5)
    carry, (stack, after) = made.step(made.place(jnp.ones(8)), made.place_batch(drawn(4, 8)))
    assert stack.shape == (0, 8)
    np.testing.assert_array_equal([carry, after], np.ones((2, 8)))


def test_carries_of_every_kind() -> None:
    """Random keys, integers, flags and numbers written into the program."""

    def step(state: Any, batch: Any) -> Any:
        def trip(carry: Any, x: Any) -> Any:
            key, h, i, total, seen = carry
            key, drop = jax.random.split(key)
            h = jnp.where(jax.random.bernoulli(drop, 0.9, h.shape), jnp.tanh(h @ state + x), 0.0)
            return (key, h, i + 1, total + h.sum(), seen | (h > 0)), (h.mean(), 1.0, i)

        start = jax.random.key(1), jnp.zeros((ROWS, 8)), 0, 0.0, jnp.zeros((ROWS, 8), bool)
        (_, h, _, total, seen), made = lax.scan(trip, start, batch)
        return state + h.mean(), {"loss": total + seen.sum() + sum(each.sum() for each in made)}

    about = drawn(8, 8), drawn(5, ROWS, 8)
    made = prepare(step, *about, topology=CPU, devices=jax.devices()[:8], seconds=5)
    _, got = made.step(made.place(about[0]), made.place_batch(about[1]))
    assert float(got["loss"]) == pytest.approx(float(jax.jit(step)(*about)[1]["loss"]), rel=1e-5)


EAGER = Topology("eager", (Level(8, 1e-7, 1e12),), 1e9, Device({"float32": 1e10}, 1e11, 1e-8))
"""Links that cost little, so that values are split and moved often."""


@jax.checkpoint
def remembered_not(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def mapped(x: Any, w: Any) -> Any:
    """A part that the user splits by hand."""
    over = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("i",))
    rows = jax.sharding.PartitionSpec("i")
    hand: Any = jax.shard_map(jnp.tanh, mesh=over, in_specs=rows, out_specs=rows)
    return hand(x @ w)


def stepped(trip: Any) -> Any:
    """One step of gradient descent with scanned layers of that kind."""

    def loss(state: Any, batch: Any) -> Any:
        x, _ = lax.scan(lambda x, w: (trip(x, w), None), batch, state)
        return jnp.sum(x**2)

    def step(state: Any, batch: Any) -> Any:
        lost, slope = jax.value_and_grad(loss)(state, batch)
        return state - 0.1 * slope, {"loss": lost}

    return step


@pytest.mark.parametrize("trip", [remembered_not, mapped, lambda x, w: clipped(x @ w)], ids=["remat", "map", "custom"])
def test_what_users_write_inside_loops_computes_the_same(trip: Any) -> None:
    step, about = stepped(trip), (drawn(4, 32, 32) / 8, drawn(16, 32))
    made = prepare(step, *about, topology=EAGER, devices=jax.devices()[:8], seconds=5, compiled=0)
    assert made.graph.bodies and made.plan.mesh.sizes != (1,)
    got = made.step(made.place(about[0]), made.place_batch(about[1]))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(*about)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_carry_needed_in_another_split_is_moved_in_every_trip() -> None:
    """The trip splits columns, and its product needs rows that are whole: not those of the initial carry."""
    step, about = stepped(remembered_not), (drawn(4, 32, 32) / 8, drawn(16, 32))
    graph = trace(step, *about)
    pins = [Pin("batch", ((), (0,))), Pin("state", ((), (), (0,)))]
    plan = search(graph, EAGER, meshes=[LINE], backend="cpu", pins=pins)
    carried = {op.inputs[1] for op in graph.ops if op.primitive == CLOSE}
    moved = [one for one in copies(graph, plan, {}) if one.value in carried]
    assert moved, "no carry is moved: this test needs a plan with one"
    made = apply(graph, plan, EAGER, about, jax.eval_shape(step, *about), jax.devices()[:8])
    report = check(made, plan.estimate, plan.mesh, EAGER, compilers.cpu(8))
    assert all(row.predicted == row.compiled for row in report.collectives), report.text()
    got = made.step(made.place(about[0]), made.place_batch(about[1]))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(*about)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_map_over_other_devices_is_refused() -> None:
    over = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("i",))
    rows = jax.sharding.PartitionSpec("i")
    hand: Any = jax.shard_map(jnp.tanh, mesh=over, in_specs=rows, out_specs=rows)
    with pytest.raises(PlanError, match=r"shard_map over 4 devices \(cpu\) at .*test_bodies.py.*for 8"):
        step = stepped(lambda x, w: hand(x @ w))
        prepare(step, drawn(2, 8, 8), drawn(8, 8), topology=EAGER, devices=jax.devices()[:8], seconds=5, compiled=0)


def test_loops_with_side_effects_stay_whole_and_are_named() -> None:
    def step(state: Any, batch: Any) -> Any:
        def trip(carry: Any, x: Any) -> Any:
            jax.debug.callback(lambda total: None, carry.sum())
            return jnp.tanh(x @ carry), None

        return lax.scan(trip, state, batch)[0], {}

    graph = trace(step, drawn(8, 8), drawn(4, 8, 8))
    assert not graph.bodies and unsearched(graph) > 0.9
    (note,) = (note for note in notes(graph, search(graph, CPU, meshes=[LINE])) if "not searched" in note)
    assert "scan at test_bodies.py" in note


def test_a_plan_belongs_to_its_topology() -> None:
    step, state = STEPS["layers"]
    plan = search(trace(step, state, ROWS_OF), PRESETS["2x4-slow"], meshes=[Mesh((2, 4), (0, 1))])
    with pytest.raises(PlanError, match="made for another topology"):
        prepare(step, state, ROWS_OF, plan=plan, devices=jax.devices()[:8])
