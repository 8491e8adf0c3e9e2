from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from cloud.parallel.cost import TOGETHER, combine, compute, landing, local_bytes, reshard, route, seconds
from cloud.parallel.graph import Split
from cloud.parallel.plan import Mesh
from cloud.parallel.topology import PRESETS, Topology

FAST = PRESETS["cpu8"]
SLOW = PRESETS["2x4-slow"]
MESHES = (Mesh((8,), (0,)), Mesh((2, 4), (0, 0)), Mesh((2, 2, 2), (0, 0, 0)))
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def splits(dims: int, axes: int) -> list[Split]:
    """Every split of an array of `dims` dimensions over `axes` axes, axes of a dimension ascending."""
    found = set()
    for places in itertools.product(range(dims + 1), repeat=axes):
        found.add(tuple(tuple(axis for axis in range(axes) if places[axis] == dim) for dim in range(dims)))
    return sorted(found)


def sharding(mesh: Mesh, split: Split) -> NamedSharding:
    names = tuple(f"m{axis}" for axis in range(len(mesh.sizes)))
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    devices = jax.sharding.Mesh(np.array(jax.devices()).reshape(mesh.sizes), names, axis_types=kinds)
    return NamedSharding(devices, PartitionSpec(*(tuple(names[a] for a in axes) or None for axes in split)))


def compiled(text: str) -> Counter[tuple[str, int]]:
    """(kind, result bytes) of the float32 collectives of a program for the CPU."""
    found: Counter[tuple[str, int]] = Counter()
    for result, kind in re.findall(rf"= (.*?) ({KINDS})\(", text):
        shapes = re.findall(r"f32\[([\d,]*)\]", result)
        found[kind, sum(4 * int(np.prod([int(d) for d in shape.split(",") if d])) for shape in shapes)] += 1
    return found


CASES = [
    (mesh, shape, made, wanted)
    for mesh, shape in zip(MESHES[1:], ((64, 64), (32, 32, 32)), strict=True)
    for made, wanted in itertools.permutations(splits(len(shape), len(mesh.sizes)), 2)
][::211]


@pytest.mark.parametrize(("mesh", "shape", "made", "wanted"), CASES)
def test_the_compiler_moves_what_reshard_says(mesh: Mesh, shape: tuple[int, ...], made: Split, wanted: Split) -> None:
    def through(array: jax.Array) -> jax.Array:
        array = jax.lax.with_sharding_constraint(array * 2, sharding(mesh, made))
        for stop in route(shape, 4, made, wanted, mesh, FAST):
            array = jax.lax.with_sharding_constraint(array, sharding(mesh, stop))
        return jnp.sin(array)

    given = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding(mesh, made))
    text = jax.jit(through, out_shardings=sharding(mesh, wanted)).lower(given).compile().as_text()
    moves, time = reshard(shape, 4, made, wanted, mesh, FAST)
    assert compiled(text) == Counter((move.kind, move.bytes) for move in moves)
    assert time == pytest.approx(sum(seconds(move.kind, move.bytes, move.axes, mesh, FAST) for move in moves))


@pytest.mark.parametrize(
    ("mesh", "partial", "result"),
    [
        (MESHES[0], (0,), ((), ())),
        (MESHES[0], (0,), ((), (0,))),
        (MESHES[1], (0,), ((0,), ())),
        (MESHES[1], (0,), ((1, 0), ())),
        (MESHES[1], (0,), ((0, 1), ())),
        (MESHES[1], (0, 1), ((), (0,))),
        (MESHES[1], (0, 1), ((1,), (0,))),
        (MESHES[2], (0, 1), ((1,), (2,))),
        (MESHES[2], (0, 1, 2), ((1,), (2,))),
    ],
)
def test_the_compiler_adds_up_what_combine_says(mesh: Mesh, partial: tuple[int, ...], result: Split) -> None:
    rows, columns = (tuple(axis for axis in axes if axis not in partial) for axes in result)
    given = [(rows, partial), (partial, columns)]

    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        out = left @ right
        for stop in landing((64, 64), 4, partial, result, mesh, FAST):
            out = jax.lax.with_sharding_constraint(out, sharding(mesh, stop))
        return jnp.sin(out)

    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=sharding(mesh, split)) for split in given]
    text = jax.jit(product, out_shardings=sharding(mesh, result)).lower(*shapes).compile().as_text()
    moves, _ = combine((64, 64), 4, partial, result, mesh, FAST, reduce_scatter=False)
    assert compiled(text) == Counter((move.kind, move.bytes) for move in moves)


def test_a_reduce_scatter_takes_one_dimension() -> None:
    def kinds(partial: Sequence[int], result: Split) -> list[tuple[str, int]]:
        moves, _ = combine((64, 64), 4, partial, result, MESHES[1], FAST, reduce_scatter=True)
        return [(move.kind, move.bytes) for move in moves]

    assert kinds((0, 1), ((0, 1), ())) == [("reduce-scatter", 2048)]
    assert kinds((0,), ((1, 0), ())) == [("reduce-scatter", 2048)]
    assert kinds((0, 1), ((0,), (1,))) == [("all-reduce", 16384)]
    assert kinds((0, 1), ((1,), ())) == [("all-reduce", 16384)]
    assert kinds((), ((1,), ())) == []


def test_one_device_moves_nothing() -> None:
    one, alone = Topology.named("cpu8"), Mesh((1,), (0,))
    assert reshard((4, 4), 4, ((0,), ()), ((), (0,)), alone, one) == ((), 0.0)
    assert combine((4, 4), 4, (0,), ((), ()), alone, one, reduce_scatter=True) == ((), 0.0)


def test_formulas() -> None:
    mesh, link = MESHES[0], FAST.levels[0]
    for kind, factor in {"all-gather": 7 / 8, "reduce-scatter": 7, "all-reduce": 14 / 8, "all-to-all": 7 / 2}.items():
        assert seconds(kind, 1e6, (0,), mesh, FAST) == pytest.approx(link.latency + factor * 1e6 / link.bandwidth)
    assert seconds("collective-permute", 1e6, (0,), mesh, FAST) == pytest.approx(link.latency + 1e6 / link.bandwidth)
    assert seconds("all-reduce", 1e6, (), mesh, FAST) == 0


def test_combined_collectives_share_their_latency() -> None:
    mesh, line = Mesh((8,), (0,)), PRESETS["h100x8"]
    start = seconds("all-reduce", 0, (0,), mesh, line)
    assert seconds("all-reduce", 0, (0,), mesh, line, loose=True) == 0
    for bytes_, paid in ((1 << 10, (1 << 10) / TOGETHER), (TOGETHER, 1), (4 * TOGETHER, 1)):
        alone, among = (seconds("all-reduce", bytes_, (0,), mesh, line, loose=loose) for loose in (False, True))
        assert alone - among == pytest.approx(start * (1 - paid), abs=1e-12)


def test_slow_links_carry_what_remains_after_fast_ones() -> None:
    mesh, (slow, fast) = Mesh((2, 4), (0, 1)), SLOW.levels
    expected = fast.latency + 0.75e6 / fast.bandwidth + slow.latency + 0.5 * 0.25e6 / slow.bandwidth
    assert seconds("all-gather", 1e6, (0, 1), mesh, SLOW) == pytest.approx(expected)


def test_two_axes_of_one_level_are_one_ring() -> None:
    for kind in ("all-gather", "all-reduce", "reduce-scatter"):
        one, two = seconds(kind, 1e6, (0,), MESHES[0], FAST), seconds(kind, 1e6, (0, 1, 2), MESHES[2], FAST)
        assert one == pytest.approx(two)


def test_computing_takes_the_longest_of_three() -> None:
    device = PRESETS["h100x8"].device
    assert compute(1e3, 1e3, "float32", device) == device.launch
    assert compute(989e12, 1e3, "bfloat16", device) == 1.0
    assert compute(1e3, 3.35e12, "float32", device) == 1.0


@st.composite
def moved(draw: st.DrawFn) -> tuple[Mesh, tuple[int, ...], Split, Split]:
    mesh = draw(st.sampled_from([*MESHES[1:], Mesh((2, 2, 4), (0, 1, 1))]))
    shape = tuple(draw(st.lists(st.sampled_from([16, 48, 512]), min_size=1, max_size=3)))
    pair = st.sampled_from(splits(len(shape), len(mesh.sizes)))
    return mesh, shape, draw(pair), draw(pair)


@given(moved(), st.sampled_from([FAST, SLOW]))
def test_routes_arrive_and_are_no_dearer_than_gathering_all(
    case: tuple[Mesh, tuple[int, ...], Split, Split], on: Topology
) -> None:
    mesh, shape, made, wanted = case
    assume(max(mesh.levels) < len(on.levels))
    stops = route(shape, 4, made, wanted, mesh, on)
    moves, time = reshard(shape, 4, made, wanted, mesh, on)
    assert (stops[-1] if stops else made) == wanted
    assert len(set(stops)) == len(stops)
    for stop in stops:
        parts = np.prod([mesh.sizes[axis] for axes in stop for axis in axes])
        assert local_bytes(shape, 4, stop, mesh) * parts == 4 * np.prod(shape)
    whole: Split = ((),) * len(shape)
    # Routes are chosen at the nearest power of two: at most a factor of sqrt(2) from what they were chosen for.
    assert time <= reshard(shape, 4, made, whole, mesh, on)[1] * 1.42 + 1e-12
    assert bool(moves) == (time > 0)
