"""Planning is a pure function: the same graph and types give the same program, memory is shared where it may be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.ops.registry import Operand, Spec
from lite_runtime.planning.plan import Plan, _span, plan
from lite_runtime.planning.workspace import Workspace
from lite_runtime.steps.declaration import FLAGS
from lite_runtime.targets import PLAIN, TARGETS

RNG = np.random.default_rng(31)


def _pack(source: Operand, layout: str, make: Callable[[Array], Array]) -> Array:
    assert source.value is not None
    return make(source.value)


def _plan(nodes: list[Node], shape: tuple[int, ...], out: str = "y", native: bool = True, **constants: Array) -> Plan:
    graph = Graph((Value("x", "float32", shape),), (Value(out, "float32"),), tuple(nodes), constants)
    return plan(graph, {"x": Spec("float32", shape)}, pack=_pack, target=TARGETS[0], native=native)


def _square(n: int = 64) -> Array:
    return RNG.standard_normal((n, n)).astype(np.float32)


def _chain(length: int) -> list[Node]:
    names = ["x", *(f"v{i}" for i in range(1, length)), "y"]
    return [Node("MatMul", (a, "w"), (b,)) for a, b in pairwise(names)]


def test_the_same_graph_gives_the_same_words() -> None:
    w = _square()
    first, second = (_plan(_chain(4), (64, 64), w=w) for _ in range(2))
    assert first.program.tobytes() == second.program.tobytes() and first.kernels == second.kernels


def test_a_long_chain_lives_in_two_buffers() -> None:
    made = _plan(_chain(20), (64, 64), w=_square())
    assert made.arena_bytes == 2 * 64 * 64 * 4


def test_a_buffer_makes_room_after_the_last_record_that_reads_it() -> None:
    """A convolution copies its image into one with a border; its result may then take the image's place."""
    names = ["x", "a", "b", "c", "y"]
    attributes = {"layout": "NHWC", "pads": [2, 2, 2, 2]}
    nodes = [Node("Conv", (source, "w"), (to,), attributes) for source, to in pairwise(names)]
    made = _plan(nodes, (1, 20, 20, 16), w=RNG.standard_normal((16, 16, 5, 5)).astype(np.float32))
    assert set(made.kernels) == {"gemm.f32_pad", "gemm.f32_gemm"}
    assert made.arena_bytes == 4 * 16 * (24 * 24 + 20 * 20)


def test_outputs_are_written_in_place() -> None:
    made = _plan(_chain(1), (64, 64), w=_square())
    assert made.arena_bytes == 0 and list(made.outputs) == ["y"] and made.copies == ()


def test_shape_arithmetic_vanishes() -> None:
    """Reshape to a computed shape: Shape, Gather and Concat are evaluated while planning."""
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("Gather", ("s", "zero"), ("n",), {"axis": 0}),
        Node("Concat", ("n", "rest"), ("to",), {"axis": 0}),
        Node("Relu", ("x",), ("r",)),
        Node("Reshape", ("r", "to"), ("y",)),
    ]
    made = _plan(nodes, (6, 4, 5), zero=np.array([0]), rest=np.array([-1]))
    assert [n.op for unit in made.units for n in unit] == ["Relu", "Reshape"]
    assert len(made.records) == 1 and made.frontier == ()


def test_unused_nodes_are_dropped() -> None:
    made = _plan([Node("Neg", ("x",), ("unused",)), Node("Relu", ("x",), ("y",))], (8,))
    assert [n.op for unit in made.units for n in unit] == ["Relu"]


def test_without_native_code_every_node_is_a_step() -> None:
    made = _plan(_chain(3), (64, 64), native=False, w=_square())
    assert len(made.steps) == 3 and made.program.size == 0


def test_the_part_that_depends_on_values_is_planned_later() -> None:
    nodes = [
        Node("NonZero", ("x",), ("i",)),
        Node("Cast", ("i",), ("y",), {"to": "float32"}),
        Node("Relu", ("x",), ("r",)),
    ]
    made = _plan(nodes, (8,))
    assert [n.op for n in made.frontier] == ["NonZero"]
    assert made.rest is not None and [n.op for n in made.rest.nodes] == ["Cast"]


def test_small_steps_run_on_the_first_worker() -> None:
    """There is no barrier between steps of one worker; the others wait before they read its results."""
    nodes = [
        Node("MatMul", ("x", "w"), ("a",)),
        Node("Gather", ("a", "first"), ("b",), {"axis": 0}),
        Node("Softmax", ("b",), ("c",)),
        Node("LpNormalization", ("c",), ("d",)),
        Node("Add", ("a", "d"), ("y",)),
    ]
    graph = Graph(
        (Value("x", "float32", (400, 400)),),
        (Value("y", "float32"),),
        tuple(nodes),
        {"w": _square(400), "first": np.array([7])},
    )
    made, tested = (
        plan(graph, {"x": Spec("float32", (400, 400))}, pack=_pack, target=TARGETS[0], separate=separate)
        for separate in (False, True)
    )
    assert [r.shared for r in made.records] == [True, False, False, True]
    assert [r.meets for r in made.records] == [False, True, False, True]
    assert [int(made.program[r.begin + FLAGS]) & 3 for r in made.records] == [1, 2, 0, 3]
    assert all(r.shared for r in tested.records), "plans that test kernels share whatever can be shared"


def test_records_know_their_work() -> None:
    made = _plan(_chain(2), (32, 64), w=_square())
    assert [r.operations for r in made.records] == [2 * 32 * 64 * 64] * 2
    assert all(r.bytes >= 4 * (2 * 32 * 64 + 64 * 64) and r.seconds > 0 for r in made.records)


def test_steps_that_share_nothing_do_not_wait() -> None:
    """Two products of one input into two outputs: the second need not meet the first."""
    nodes = [Node("MatMul", ("x", "w"), ("y",)), Node("MatMul", ("x", "w"), ("z",))]
    graph = Graph(
        (Value("x", "float32", (64, 64)),),
        (Value("y", "float32"), Value("z", "float32")),
        tuple(nodes),
        {"w": _square()},
    )
    made = plan(graph, {"x": Spec("float32", (64, 64))}, pack=_pack, target=TARGETS[0])
    flags = [int(made.program[r.begin + FLAGS]) & 2 for r in made.records]
    assert flags == [0, 0]


@pytest.mark.parametrize(("scratch", "touched"), [(True, 1024), (False, 40)])
def test_a_step_touches_all_of_its_scratch(scratch: bool, touched: int) -> None:
    """One operand describes the scratch memory of all workers: a step that reuses the memory must wait for all of
    them."""
    space = Workspace(_pack, PLAIN, lambda ops, key, options: options[0])
    slot = space.slots[space.slot(1024)]
    slot.first, slot.last, slot.offset, slot.scratch = 4, 4, 512, scratch
    span = _span(space, Operand(Spec("float32", (10,)), 0), 4)
    assert (span.start, span.end, span.writes) == (512, 512 + touched, True)
