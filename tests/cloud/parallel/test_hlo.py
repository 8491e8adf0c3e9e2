"""Analysis of compiled programs: groups, shapes, loop trips, FLOPs, and collectives that can overlap with computing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from cloud.errors import PlanError
from cloud.parallel.checking.hlo import Program, parse, read_program
from cloud.parallel.checking.hlo.groups import axes_of, chains, read_groups
from cloud.parallel.checking.hlo.text import Array, arrays, shape_bytes
from cloud.parallel.plan import Mesh

MESH = Mesh((2, 4), (0, 0))
ROWS, WIDTH, TRIPS = 16, 64, 3


@pytest.mark.parametrize(
    ("text", "groups", "axes"),
    [
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),), (0, 1)),
        ("{{0,1,2,3},{4,5,6,7}}", ((0, 1, 2, 3), (4, 5, 6, 7)), (1,)),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7)), (0,)),
        ("[1,8]<=[8]", ((0, 1, 2, 3, 4, 5, 6, 7),), (0, 1)),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7)), (1,)),
        ("mesh['a'=2,'b'=1,'c'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7)), (0,)),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7)), (1,)),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ((0, 4), (1, 5), (2, 6), (3, 7)), (0,)),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3)), (1,)),
    ],
)
def test_four_ways_to_write_groups(text: str, groups: Any, axes: tuple[int, ...]) -> None:
    assert read_groups(text, 8) == groups
    assert axes_of(groups, MESH.sizes) == axes


def test_permutations_run_along_the_axis_of_their_chain() -> None:
    assert axes_of(chains("{{0,4},{1,5},{2,6},{3,7}}"), MESH.sizes) == (0,)
    assert chains("{{0,1},{1,2},{2,3}}") == ((0, 1, 2, 3),)


def test_unknown_groups_are_refused() -> None:
    with pytest.raises(PlanError, match="replica groups"):
        read_groups("<<0,1>>", 2)


@given(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3), st.data())
def test_rows_of_a_mesh_are_its_axes(sizes: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1))
    order = [axis for axis in range(len(sizes)) if axis not in axes] + sorted(axes)
    inside = math.prod(sizes[axis] for axis in axes)
    text = f"[{math.prod(sizes) // inside},{inside}]<=[{','.join(map(str, sizes))}]T({','.join(map(str, order))})"
    named = ",".join(f"'a{i}'={size}" for i, size in enumerate(sizes))
    chosen = ",".join(f"'a{axis}'" for axis in sorted(axes))
    mesh = f"mesh[{named}] {{{chosen}}}"
    assert read_groups(text, 0) == read_groups(mesh, 0)
    assert axes_of(read_groups(text, 0), sizes) == tuple(sorted(axes))


def compiled(step: Any, *arguments: tuple[tuple[int, ...], tuple[str | None, ...]], out: Any = None) -> str:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("m0", "m1"), axis_types=(AxisType.Auto,) * 2)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
              for shape, spec in arguments]  # fmt: skip
    ends = None if out is None else NamedSharding(mesh, PartitionSpec(*out))
    with jax.set_mesh(mesh):
        return str(jax.jit(step, out_shardings=ends).lower(*shapes).compile().as_text())


@pytest.fixture(scope="module")
def layers() -> str:
    """Columns split over m1: each trip gathers the rows; the gradients of the weights are summed over m0."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jax.lax.with_sharding_constraint(jnp.tanh(h @ w), PartitionSpec("m0", "m1")), None

        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return weights - 0.1 * jax.grad(loss)(weights, x)

    given = ((TRIPS, WIDTH, WIDTH), (None, None, "m1")), ((ROWS, WIDTH), ("m0", "m1"))
    return compiled(step, *given, out=(None, None, "m1"))


def test_collectives_count_once_a_trip(layers: str) -> None:
    found = {(one.kind, one.axes, one.bytes): one.times for one in read_program(layers, MESH).collectives}
    gathered = 4 * ROWS // 2 * WIDTH
    assert found["all-gather", (1,), gathered] == TRIPS
    assert found["all-reduce", (0,), 4 * WIDTH * WIDTH // 4] == TRIPS
    assert all(times == TRIPS for times in found.values())


def test_collectives_of_results_are_deferrable_and_needed_ones_are_not(layers: str) -> None:
    program = read_program(layers, MESH)
    waits = {one.collective.axes: one.deferrable for one in program.found if one.collective.kind == "all-reduce"}
    assert waits == {(0,): True, (1,): False}
    assert not any(one.prefetchable for one in program.found)


def test_flops_of_loops(layers: str) -> None:
    product = 2 * (ROWS // 2) * WIDTH * (WIDTH // 4)
    assert read_program(layers, MESH).flops == 3 * TRIPS * product


def test_trips_from_the_condition_where_the_compiler_does_not_say(layers: str) -> None:
    bare = "\n".join(line.split(", backend_config=")[0] for line in layers.splitlines())
    assert "known_trip_count" in layers
    assert "known_trip_count" not in bare
    assert read_program(bare, MESH).collectives == read_program(layers, MESH).collectives


def test_parameters_gathered_ahead() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        whole = jax.lax.with_sharding_constraint(w * 2, PartitionSpec())
        return jnp.tanh(x @ whole) @ whole.T

    text = compiled(step, ((WIDTH, WIDTH), ("m1",)), ((ROWS, WIDTH), ("m0",)), out=("m0",))
    (found,) = read_program(text, MESH).found
    assert found.prefetchable
    assert found.collective.bytes == 4 * WIDTH * WIDTH
    assert "with_sharding_constraint" in found.collective.why or "mul" in found.collective.why


CONVOLUTIONS = [
    ({"window_strides": (1, 1), "padding": "SAME"}, (3, 3, 4, 8)),
    ({"window_strides": (2, 2), "padding": [(3, 1), (0, 2)]}, (3, 5, 4, 8)),
    ({"window_strides": (1, 1), "padding": [(1, 1), (1, 1)], "lhs_dilation": (2, 3)}, (2, 2, 4, 8)),
    ({"window_strides": (1, 2), "padding": "VALID", "rhs_dilation": (2, 1)}, (3, 3, 4, 8)),
    ({"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 2}, (3, 3, 2, 8)),
]


@pytest.mark.parametrize(("how", "kernel"), CONVOLUTIONS)
def test_convolutions_count_only_taps_inside_the_input(how: dict[str, Any], kernel: tuple[int, ...]) -> None:
    """Ones convolved with ones: each output is the number of products that count."""
    x, w = jnp.ones((2, 9, 10, 4)), jnp.ones(kernel)
    how = {**how, "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    program = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, **how)).lower(x, w).compile()
    assert read_program(program.as_text(), Mesh((1,), (0,))).flops == 2 * float(program(x, w).sum())


# Written by hand after what the GPU's compiler prints: asynchronous collectives, library calls, a piece of a table.
GPU = (Path(__file__).parent / "gpu_program.txt").read_text()


@pytest.fixture(scope="module")
def gpu() -> Program:
    return read_program(GPU, MESH)


def test_results_of_asynchronous_collectives(gpu: Program) -> None:
    """Their starts give operands as well, which do not count."""
    assert [(one.kind, one.bytes, one.axes, one.group) for one in gpu.collectives] == [
        ("all-gather", 2 * (16 * 4 + 4 * 4), (0,), 2),
        ("reduce-scatter", 4 * 4, (1,), 4),
        ("all-to-all", 2 * 8 * 4, (1,), 4),
        ("collective-permute", 4 * 4, (1,), 4),
        ("all-reduce", 4 * (8 + 2), (0, 1), 8),
    ]
    assert gpu.found[0].prefetchable
    assert [bytes for bytes, _ in gpu.found[0].parts] == [128, 32]


def test_library_calls_and_pieces(gpu: Program) -> None:
    flops = {one.where: (one.flops, one.bytes, one.dtype) for one in gpu.work}
    assert flops["dot, {here"] == (2 * 16 * 4 * 4, 2 * (16 * 4 + 4 * 4 + 16 * 4), "bfloat16")
    met = (8 * 3 - 2) ** 2
    assert flops["weights"][0] == 2 * met * 2 * 8 * 8
    assert flops["row"][:2] == (0, 4 * (16 + 16 + 1))  # a row of the table, not the table


def test_shapes() -> None:
    module = parse(GPU)
    entry = module.computations[module.entry]
    assert list(arrays(entry.instructions["gather"].shape))[2] == Array("bf16", (16, 4))
    assert shape_bytes(entry.instructions["product"].shape) == 2 * 64 + (32 << 20)
    assert (Array("s4", (5,)).bytes, Array("pred", (5,)).bytes, Array("token", ()).bytes) == (3, 5, 0)
    assert entry.instructions["w"].where == "w[\\'a)\\']"
    assert entry.result.name == "last"


@pytest.mark.parametrize("kind", ["ragged-all-to-all", "collective-broadcast"])
def test_collectives_without_a_cost_rule_are_refused(kind: str) -> None:
    with pytest.raises(PlanError, match=kind):
        read_program(GPU.replace("collective-permute-start", kind), MESH)


def test_programs_for_more_devices_are_refused() -> None:
    with pytest.raises(PlanError, match="2 devices"):
        read_program(GPU, Mesh((2,), (0,)))


@pytest.mark.parametrize("text", ["", "module @jit_step {}", "HloModule m\n\n%f (x: f32[]) -> f32[] {\n}\n"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="HLO"):
        read_program(text, MESH)


def test_the_most_expensive_branch_counts() -> None:
    def step(x: jax.Array, which: jax.Array) -> jax.Array:
        return jax.lax.switch(which.astype(int), [lambda x: x, lambda x: x @ x, lambda x: x @ x @ x], x)

    text = jax.jit(step).lower(jnp.ones((WIDTH, WIDTH)), jnp.int32(0)).compile().as_text()
    assert read_program(text, Mesh((1,), (0,))).flops == 2 * 2 * WIDTH**3


def test_endless_loops_are_reported() -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda h: h.sum() < 1e3, lambda h: h @ h + 1, x)

    program = read_program(jax.jit(step).lower(jnp.ones((8, 8))).compile().as_text(), Mesh((1,), (0,)))
    assert len(program.unbounded) == 1
    assert program.flops == 2 * 8**3
