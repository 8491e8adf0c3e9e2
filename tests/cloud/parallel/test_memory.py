"""Predicted memory of a device: when kernels run, what they need in addition to values, and real compilers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import footprint
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Assignment, Estimate, Mesh, Plan
from cloud.parallel.running.apply import _barriers, apply
from cloud.parallel.searching.demands import Demands
from cloud.parallel.searching.holding.memory import WORKSPACE, curve, held, lives
from cloud.parallel.searching.holding.rows import Moments
from cloud.parallel.searching.holding.schedule import hides
from cloud.parallel.searching.question import Question, ask
from cloud.parallel.searching.search import _Search, search
from cloud.parallel.topology import PRESETS
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.steps import mlp, transformer

H100, A100 = PRESETS["h100x8"], PRESETS["4-small"]
LINE = Mesh((8,), (0,))
MIB = 1 << 20
_Shape: Any = jax.ShapeDtypeStruct


def descended(loss: Callable[[Any, Any], Any], params: Any, batch: Any) -> tuple[Any, Any, Any]:
    """Step, state and batch of gradient descent, as shapes."""

    def step(state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradient), {"loss": value}

    return step, *(jax.tree.map(lambda shape: _Shape(shape, "float32"), tree,
                                is_leaf=lambda leaf: isinstance(leaf, tuple)) for tree in (params, batch))  # fmt: skip


def convolutions(layers: int, size: int, channels: int, pooled: bool = False) -> tuple[Any, Any, Any]:
    """3 x 3 convolutions with biases over 64 images, a pool after the first where `pooled`."""

    def loss(params: Any, x: Any) -> Any:
        for n, layer in enumerate(params):
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, layer["w"], (1, 1), "SAME", dimension_numbers=dims) + layer["b"]
            x = jax.nn.relu(x)
            if pooled and n == 0:
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return (x**2).mean()

    params = [{"w": (3, 3, channels, channels), "b": (channels,)} for _ in range(layers)]
    return descended(loss, params, (64, size, size, channels))


def tables(count: int, rows: int) -> tuple[Any, Any, Any]:
    """Lookups in tables of one size, 512 of each, and one product of what was found."""

    def loss(params: Any, batch: Any) -> Any:
        ids = batch.astype(jnp.int32)
        found = jnp.stack([table[ids[:, n]] for n, table in enumerate(params["tables"])], 1)
        return ((found.reshape(len(found), -1) @ params["w"]) ** 2).mean()

    return descended(loss, {"tables": [(rows, 64)] * count, "w": (64 * count, 64)}, (512, count))


def whole(graph: Graph, mesh: Mesh = LINE) -> Plan:
    """Nothing is split."""
    entering = tuple(((),) * len(graph.values[v].shape) for v in graph.entering)
    ops = tuple(
        Assignment(((),) * len(op.loops), tuple(((),) * len(graph.values[v].shape) for v in op.outputs))
        for op in graph.ops
    )
    return Plan(mesh, entering, ops, Estimate(0.0, 0.0, 0.0, 0, 0), "", "")


def asked(graph: Graph, mesh: Mesh = LINE) -> Question:
    one = _Search(graph, H100, 1e12, True, True)
    return ask(one.shape(tuple(Demands().mark(group) for group in one.groups), False), mesh, H100, Demands(), True)


STEPS: Mapping[str, tuple[Any, Any, Any]] = {
    "mlp": mlp(layers=3),
    "transformer": transformer(),
    "convolutions": convolutions(4, 16, 8, pooled=True),
    "tables": tables(3, 256),
}


@pytest.fixture(scope="module", params=STEPS)
def graph(request: pytest.FixtureRequest) -> Graph:
    return trace(*STEPS[request.param])


@pytest.mark.parametrize("turns", [False, True])
def test_whatever_is_read_has_been_made(graph: Graph, turns: bool) -> None:
    found = lives(graph, turns)
    for v, readers in found.readers.items():
        for k in readers:
            assert found.at[k] <= found.until[k] < found.steps
            if v in found.spans and graph.values[v].kind == "computed":
                first, last = found.spans[v]
                assert first <= found.until[k] <= last or last < first  # a replaced value needs no separate memory


def test_rows_say_what_the_curve_says(graph: Graph) -> None:
    question = asked(graph)
    moments = Moments(question)
    options = tuple(
        next(o for o, lead in enumerate(node.leads) if not np.any([*map(len, _axes(lead))])) for node in question.nodes
    )
    expected = curve(graph, whole(graph), H100)
    assert moments.curve(options) == pytest.approx(expected)
    peak = int(np.argmax(expected))
    row = moments.row(peak, 0.0)
    assert sum(bytes_[options[node]] for node, bytes_ in row.nodes.items()) - row.limit == pytest.approx(expected[peak])


def test_rows_never_promise_more_than_the_curve_keeps(graph: Graph) -> None:
    """A value that all want otherwise is dropped once it was moved; rows, which are linear, keep it."""
    question = asked(graph)
    draw = np.random.default_rng(0)
    for _ in range(5):
        options = tuple(int(draw.integers(len(node.leads))) for node in question.nodes)
        entering, ops = question.choices(options)
        plan = replace(whole(graph), entering=entering, ops=ops)
        said, there = Moments(question).curve(options), curve(graph, plan, H100)
        assert said.max() >= 0.99 * there.max()


def _axes(lead: Any) -> list[tuple[int, ...]]:
    splits = [lead] if isinstance(lead, tuple) else [lead.loops, *lead.results]
    return [axes for split in splits for axes in split]


def gradients_late(graph: Graph, turns: bool) -> float:
    """Of the moments between the first and the last kernel of the backward pass, the share that pass before half of the
    weights have their gradients."""
    at = lives(graph, turns).at
    back = [k for k, op in enumerate(graph.ops) if op.primitive == "conv_general_dilated" and "transpose" in op.where]
    weights = sorted(at[k] for k in back if len(graph.values[graph.ops[k].outputs[0]].shape) == 4
                     and graph.values[graph.ops[k].outputs[0]].shape[:2] == (3, 3))  # fmt: skip
    first, last = min(at[k] for k in back), max(at[k] for k in back)
    return (weights[len(weights) // 2] - first) / (last - first)


def test_gradients_of_weights_come_late_where_collectives_hide() -> None:
    graph = trace(*convolutions(12, 8, 8))
    assert gradients_late(graph, turns=True) > gradients_late(graph, turns=False) + 0.1
    assert hides(H100)
    assert not hides(A100)


def test_equal_tables_are_filled_together() -> None:
    graph = trace(*tables(4, 4096))
    table = 4096 * 64 * 4
    spans = lives(graph, True).spans
    made = [op.outputs[0] for op in graph.ops if op.primitive.startswith("scatter")]
    assert len(made) == 4
    assert len({spans[v][0] for v in made}) == 1
    step = curve(graph, whole(graph), H100)
    assert step.max() >= 8 * table + WORKSPACE  # the tables, and their gradients
    assert step.max() < 10 * table + WORKSPACE


@pytest.mark.parametrize("turns", [True, False])
def test_two_lookups_of_one_table_have_one_gradient(turns: bool) -> None:
    """Twice as many lookups of the same tables: the peak grows by what they move, not by tables."""

    def again(params: Any, batch: Any) -> Any:
        ids = batch.astype(jnp.int32)
        found = jnp.concatenate([params["table"][ids[:, 0]], params["table"][ids[:, 1]]], -1)
        return ((found @ params["w"]) ** 2).mean()

    graph = trace(*descended(again, {"table": (1 << 18, 64), "w": (128, 64)}, (512, 2)))
    table, plan = 64 * MIB, whole(graph)
    peak = curve(graph, plan, H100 if turns else A100, lives(graph, turns)).max()
    assert 2 * table < peak < 2.5 * table + WORKSPACE


def test_a_batch_of_one_is_not_copied_to_another_layout() -> None:
    def scored(params: Any, x: Any) -> Any:
        q, k = (jnp.einsum("bsd,dhe->bhse", x, params[name]) for name in "qk")
        return (jnp.einsum("bhse,bhte->bhst", q, k) ** 2).mean()

    graph = trace(*descended(scored, {"q": (16, 4, 8), "k": (16, 4, 8)}, (1, 64, 16)))
    batched = [k for k, op in enumerate(graph.ops) if op.primitive == "dot_general" and "bhse,bhte" in op.where]
    assert batched and not [one for one in lives(graph).scratch if one.op in batched and one.times]


def test_state_is_replaced_in_place() -> None:
    graph = trace(*mlp())
    state = sum(v.bytes for v in graph.values if v.kind == "state")
    found = [one for one in held(graph, whole(graph), H100, lives(graph, True)) if one.first <= one.last]
    replaced = {v for v, argument in zip(graph.leaving, graph.carried, strict=True) if argument is not None}
    assert not replaced & {one.value for one in found}
    assert sum(one.bytes for one in found if graph.values[one.value].kind == "state" and not one.copy) == state


def test_a_pool_remembers_where_its_results_came_from() -> None:
    graph = trace(*convolutions(2, 16, 8, pooled=True))
    (pool,) = [one for one in lives(graph).scratch if graph.ops[one.op].primitive == "select_and_scatter_add"]
    assert pool.times == 4  # an int32 for each of four dimensions, the result being float32
    assert pool.first < pool.last


def test_the_barriers_of_a_recomputed_segment_are_one() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(jax.checkpoint(lambda w: jnp.tanh(jnp.tanh(x @ w["a"]) @ w["b"]))(params) ** 2)

    graph = trace(*descended(loss, {"a": (8, 8), "b": (8, 8)}, (16, 8)))
    barriers = {k for k, op in enumerate(graph.ops) if op.primitive == "optimization_barrier"}
    (row,) = _barriers(graph)
    assert set(row) == barriers
    assert len(barriers) >= 3  # both weights, and the gradient that comes in


@pytest.mark.skipif(not compilers.has_gpu(), reason=f"no compiler for GPUs: see {compilers.FOLDER}")
@pytest.mark.parametrize(
    ("step", "expert"),
    [(convolutions(8, 64, 32), "dp"), (convolutions(4, 64, 32, pooled=True), "dp"), (tables(4, 1 << 19), "fsdp")],
    ids=["convolutions", "pool", "tables"],
)  # fmt: skip
def test_peaks_are_those_of_the_compiler(step: tuple[Any, Any, Any], expert: str) -> None:
    graph = trace(*step)
    plan = search(graph, H100, meshes=[LINE], expert=expert)
    compiler = compilers.gpu(H100)
    applied = apply(graph, plan, H100, step[1:], jax.eval_shape(*step), devices=compiler.devices)
    compiled = footprint(compiler.compile(applied.lower()))
    assert compiled > 16 * MIB
    assert 0.95 * compiled <= plan.estimate.peak_bytes <= 1.10 * compiled
