"""Gated products become one node, with the same results, where nothing else reads what is between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.lowering import gate_products, in_panels
from lite_runtime import bundle, load
from lite_runtime.graph import Array, Graph, Node, Value

K, N = 64, 96


def tables(seed: int, *, offsets: bool) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made = {"q": rng.integers(0, 256, (N, K // 32, 16)).astype(np.uint8)}
    made["scales"] = rng.uniform(-0.1, 0.1, (N, K // 32)).astype(np.float16)
    return made | ({"offsets": rng.normal(size=(N, K // 32)).astype(np.float16)} if offsets else {})


class Case:
    """Q(act(x G) * (x U)); the methods change one thing."""

    def __init__(self, *, offsets: bool = False, activation: str = "Silu", swapped: bool = False) -> None:
        attrs: dict[str, Any] = {"K": K, "N": N, "bits": 4, "block_size": 32, "zero_point": 0 if offsets else 8}
        self.constants: dict[str, Array] = {}
        for i, name in enumerate(("gate", "up")):
            self.constants |= {f"{name}.{key}": one for key, one in tables(i, offsets=offsets).items()}
        parts = ("q", "scales", "offsets" if offsets else "")

        def product(name: str) -> Node:
            inputs = ("a", *(f"{name}.{part}" if part else "" for part in parts), "s", "t")
            return Node("MatMulNBits", inputs, (name,), attrs, name)

        more = {"approximate": "tanh"} if activation == "Gelu" else {}
        self.nodes = {
            "a": Node("DynamicQuantizeBlocks", ("x",), ("a", "s", "t"), {"block_size": 32}, "a"),
            "gate": product("gate"),
            "up": product("up"),
            "active": Node(activation, ("gate",), ("active",), more, "active"),
            "gated": Node("Mul", ("up", "active") if swapped else ("active", "up"), ("gated",), {}, "gated"),
            "y": Node("DynamicQuantizeBlocks", ("gated",), ("y", "ys", "yt"), {"block_size": 32}, "y"),
        }
        self.outputs = [Value("y", "int8", None), Value("ys", "float32", None), Value("yt", "float32", None)]

    def changed(self, name: str, **change: Any) -> Case:
        attrs = {**self.nodes[name].attrs, **change.pop("attrs", {})}
        self.nodes[name] = self.nodes[name].replace(attrs=attrs, **change)
        return self

    def graphs(self) -> tuple[Graph, Graph]:
        """In panels, and gated."""
        given = (Value("x", "float32", (5, K)),)
        made = in_panels(Graph(given, tuple(self.outputs), tuple(self.nodes.values()), self.constants))
        return made, gate_products(made)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("activation", ["Silu", "Gelu"])
@pytest.mark.parametrize("offsets", [False, True])
def test_one_node(offsets: bool, activation: str, swapped: bool) -> None:
    graphs = Case(offsets=offsets, activation=activation, swapped=swapped).graphs()
    assert [node.op for node in graphs[1].nodes] == ["DynamicQuantizeBlocks", "GatedMatMulNBits"]
    assert gate_products(graphs[1]) == graphs[1]
    x = {"x": np.random.default_rng(2).normal(size=(5, K)).astype(np.float32)}
    one, other = (load(bundle.write(None, {"predict": g}), backend="reference").run(x) for g in graphs)
    for name, y in one.items():
        np.testing.assert_array_equal(y, other[name])


def read_elsewhere(case: Case) -> None:
    case.outputs.append(Value("gated", "float32", None))


def read_twice(case: Case) -> None:
    case.nodes["more"] = Node("Relu", ("up",), ("more",), {}, "more")
    case.outputs.append(Value("more", "float32", None))


def of_others(case: Case) -> None:
    case.nodes = {"b": Node("DynamicQuantizeBlocks", ("x",), ("b", "bs", "bt"), {"block_size": 32}, "b"), **case.nodes}
    case.changed("up", inputs=("b", "up.q", "up.scales", "", "bs", "bt"))


def with_a_bias(case: Case) -> None:
    case.constants["bias"] = np.zeros(N, np.float32)
    case.changed("up", inputs=(*case.nodes["up"].inputs, "bias"))


def of_other_formats(case: Case) -> None:
    case.changed("up", attrs={"zero_point": 7})


def in_smaller_blocks(case: Case) -> None:
    case.changed("y", attrs={"block_size": 16})


def by_another_activation(case: Case) -> None:
    case.changed("active", op="Relu")


def of_floats(case: Case) -> None:
    for name in ("gate", "up"):
        case.changed(name, inputs=("x", f"{name}.q", f"{name}.scales"))


def sum_instead(case: Case) -> None:
    case.changed("gated", op="Add")


@pytest.mark.parametrize(
    "change",
    [read_elsewhere, read_twice, of_others, with_a_bias, of_other_formats, in_smaller_blocks, by_another_activation,
     of_floats, sum_instead],
)  # fmt: skip
def test_what_is_not_one(change: Any) -> None:
    case = Case()
    change(case)
    graph, same = case.graphs()
    assert same == graph
