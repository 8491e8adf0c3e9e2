"""Recomputed activations: the same numbers for any choice of stored ones, and a smaller arena."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter import convert
from converter.training import Training
from converter.training.recompute import peak, recomputed
from lite_runtime import load, reference
from lite_runtime.graph import Graph, Node, Spec, Value
from tests.converter.training.models import batches, cnn

BINARY = ("Add", "Mul", "Sub", "Max")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, frozenset[str]]:
    """A forward part that ends in `loss`, operators beyond it that read forward values, and some names to keep."""
    names, nodes = ["x", "w"], []
    for i in range(draw(st.integers(1, 8))):
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        nodes.append(Node(draw(st.sampled_from(BINARY)), (a, b), (f"f{i}",), {}, f"f{i}"))
        names.append(f"f{i}")
    nodes.append(Node("ReduceSum", (names[-1],), ("loss",), {"keepdims": 0}, "loss"))
    outputs = [Value("loss", "float32", ())]
    for i in range(draw(st.integers(1, 6))):
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        nodes.append(Node(draw(st.sampled_from(BINARY)), (a, b), (f"b{i}",), {}, f"b{i}"))
        names.append(f"b{i}")
        outputs.append(Value(f"b{i}", "float32", (3,)))
    kept = draw(st.frozensets(st.sampled_from(names)))
    inputs = (Value("x", "float32", (3,)), Value("w", "float32", (3,)))
    return Graph(inputs, tuple(outputs), tuple(nodes), {}), kept


@settings(max_examples=60)
@given(graphs())
def test_whatever_is_kept_the_numbers_are_the_same(drawn: tuple[Graph, frozenset[str]]) -> None:
    graph, kept = drawn
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(3).astype(np.float32) for name in ("x", "w")}
    wanted, got = reference.run(graph, inputs), reference.run(recomputed(graph, "loss", kept, ["w"]), inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_peak_counts_values_from_maker_to_last_reader() -> None:
    nodes = (
        Node("Relu", ("x",), ("a",)),  # a
        Node("Relu", ("a",), ("b",)),  # a b
        Node("Add", ("a", "b"), ("c",)),  # a b c
        Node("Relu", ("c",), ("y",)),  # c y
    )
    value = Value("x", "float32", (4,))
    graph = Graph((value,), (Value("y", "float32", (4,)),), nodes, {})
    assert peak(graph, {name: Spec("float32", (4,)) for name in "xabcy"}) == 3 * 16


@pytest.mark.parametrize("share", [0.9, 0.0])
def test_a_budget_makes_the_arena_smaller_and_steps_the_same(share: float) -> None:
    model = cnn()
    plain = convert(model, trainable=Training("*", optimizer="sgd", batch_norm="train"))
    batch = batches(model, 4, 32, 1)[0]
    feed = {"x": batch[0], "labels": batch[1]}
    wanted = load(plain.bundle)
    before = wanted.cost(feed, "train_step").arena_bytes
    budget = max(1, int(before * share))
    conversion = convert(model, trainable=Training("*", optimizer="sgd", batch_norm="train", arena_budget=budget))
    got = load(conversion.bundle)
    after = got.cost(feed, "train_step").arena_bytes
    facts = conversion.report.training["arena"]
    assert after < before and facts == {"budget": budget, "before": before, "after": after, "nodes": facts["nodes"]}
    assert facts["nodes"] > 0 and (after <= budget) == (share > 0)
    assert got.run(feed, "train_step") == wanted.run(feed, "train_step")
    for name, value in wanted.state_dict().items():
        np.testing.assert_array_equal(got.state_dict()[name], value, err_msg=name)
