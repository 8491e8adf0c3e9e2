"""Groups: which operator follows which; options: which splits divide; classes: which operators are equal."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.parallel.graph import Graph, Loop, Op, Value
from cloud.parallel.plan import Assignment, Mesh
from cloud.parallel.searching.expert import EXPERTS, rows, weights
from cloud.parallel.searching.grouping.fold import folded
from cloud.parallel.searching.grouping.groups import derive, grouped
from cloud.parallel.searching.options import assignments, made, partial_axes, splits, wanted
from cloud.parallel.tracing.trace import trace
from tests.cloud.parallel.steps import mlp, transformer

MESH = Mesh((2, 4), (0, 0))
DOT = Op("dot_general", (0, 1), (2,), (Loop(8), Loop(8, "add"), Loop(16)), ((0, 1), (1, 2)), ((0, 2),), 2048.0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(*mlp())


@given(shape=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), max_size=3))
def test_every_split_divides_and_uses_an_axis_once(shape: list[int]) -> None:
    found = list(splits(shape, MESH))
    assert found[0] == ((),) * len(shape)
    assert len(set(found)) == len(found)
    for split in found:
        used = [axis for axes in split for axis in axes]
        assert len(set(used)) == len(used)
        assert all(size % prod(MESH.sizes[a] for a in axes) == 0 for size, axes in zip(shape, split, strict=True))


def test_partial_sums_end_reduced_or_scattered() -> None:
    found = [a for a in assignments(DOT, [(8, 16)], MESH) if a.loops == ((1,), (0,), ())]
    # Axis 0 is outside axis 1 in mesh order: results cannot be scattered by it over rows, which axis 1 already splits.
    assert {a.results[0] for a in found} == {((1,), ()), ((1,), (0,))}
    assert all(partial_axes(DOT, 0, a.loops) == (0,) for a in found)
    assert wanted(DOT, 0, found[0].loops) == ((1,), (0,))
    assert made(DOT, 0, found[0].loops) == ((1,), ())


def test_every_operator_is_in_one_group_and_after_what_decides_it(graph: Graph) -> None:
    groups = grouped(graph)
    members = [k for group in groups for k in group.ops]
    assert sorted(members) == list(range(len(graph.ops)))
    for group in groups:
        known = set(graph.ops[group.leader].outputs) if group.leader >= 0 else {group.value}
        settled = {group.leader}
        for member in group.members:
            op = graph.ops[member.op]
            assert op.inputs[member.operand] in known if member.operand >= 0 else member.reader[0] in settled
            known.update(op.outputs)
            settled.add(member.op)


def test_an_optimisers_chain_follows_the_gradient_and_a_bias_what_it_is_added_to(graph: Graph) -> None:
    home = {k: group for group in grouped(graph) for k in group.ops}
    makers = {v: k for k, op in enumerate(graph.ops) for v in op.outputs}
    for leaving, argument in zip(graph.leaving, graph.carried, strict=True):
        if argument is None or graph.values[leaving].shape != (64, 64):
            continue
        assert graph.ops[home[makers[leaving]].leader].primitive == "dot_general"
    grown = [k for k, op in enumerate(graph.ops) if op.primitive == "broadcast_in_dim" and op.outputs and graph.values[
        op.outputs[0]].shape == (32, 64)]  # fmt: skip
    assert grown and all(graph.ops[home[k].leader].primitive == "dot_general" for k in grown)


def test_operands_follow_the_split_of_the_result_if_it_divides() -> None:
    values = tuple(Value(shape, np.dtype("f4")) for shape in ((8, 8), (8, 16), (8, 16), (8, 2, 8), (8, 2, 8)))
    reshape = Op("reshape", (2,), (3,), (Loop(8), Loop(2)), ((0, 1),), ((0, 1, None),), follows=True)
    twice = Op("mul", (3, -1), (4,), (Loop(8), Loop(2), Loop(8)), ((0, 1, 2), ()), ((0, 1, 2),), follows=True)
    graph = Graph(values, (DOT, reshape, twice), (0, 1), (4,), (None,))
    (group,) = [group for group in grouped(graph) if group.leader >= 0]
    lead = Assignment(((), (), (0, 1)), (((), (0, 1)),))
    chosen = derive(graph, group, lead, MESH)
    assert chosen[1].loops == ((), (0,))  # two parts of the eight that the axes would make
    assert chosen[2].results == (((), (0,), ()),)


def test_blocks_between_the_ends_are_decided_once() -> None:
    few, many = (trace(*transformer(layers=layers, d=16)) for layers in (5, 6))
    classes = [len(folded(g, groups, [None] * len(groups), {}).classes) for g in (few, many) for groups in [grouped(g)]]
    assert classes[0] == classes[1]
    groups = grouped(many)
    found = folded(many, groups, [None] * len(groups), {})
    assert sorted(g for members in found.classes for g in members) == list(range(len(groups)))
    for members in found.classes:
        shapes = {tuple(many.ops[k].primitive for k in groups[g].ops) for g in members}
        assert len(shapes) == 1
    assert len(folded(many, groups, [None] * len(groups), {}, -1).classes) == len(groups)


def test_experts_find_rows_columns_and_examples_without_names() -> None:
    graph = trace(*transformer(layers=1, d=16, rows=24))
    named = {graph.values[v].name.rsplit(".", 1)[-1]: v for v in graph.entering}
    demands = EXPERTS["megatron"](graph, Mesh((8,), (0,)))
    assert demands is not None
    lies = {name: demands.entering.get(v) for name, v in named.items()}
    assert lies["qkv"] == ((), (), (0,), ())  # heads
    assert lies["out"] == ((0,), (), ())
    assert (lies["up"], lies["down"]) == (((), (0,)), ((0,), ()))
    assert {graph.values[v].name.rsplit(".", 1)[-1] for _, _, v in weights(graph)} >= {"qkv", "out", "up", "down"}
    assert {graph.values[v].shape[dim] for v, dim in rows(graph).items()} == {24}
    assert EXPERTS["ep"](graph, MESH) is None
    assert EXPERTS["dp_tp"](graph, Mesh((8,), (0,))) is None
