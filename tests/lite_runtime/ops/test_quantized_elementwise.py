"""QuantizeLinear and DequantizeLinear, alone and as members of elementwise chains: every bit is the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lite_runtime
from lite_runtime import bundle, reference
from lite_runtime.graph import Array, Graph, Node, Value, dtype_name
from lite_runtime.planning.stage import fold
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

TYPES = ("int8", "uint8", "int16", "uint16")
SHAPES = [(), (1,), (17,), (0, 3), (3, 5, 7), (2, 3, 1100), (1500,), (20000,)]


def floats(*shape: int, seed: int = 0, scale: float = 3.0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def integers(*shape: int, dtype: str = "int8", seed: int = 0) -> Array:
    ends = np.iinfo(dtype)
    return np.asarray(np.random.default_rng(seed).integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True))


def number(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


def exact(op: str, inputs: list[Array | None], attrs: dict[str, Any] | None = None, **more: Any) -> None:
    check(op, inputs, attrs, rtol=0, atol=0, **more)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("constants", [(1, 2), ()])
def test_one_scale(dtype: str, constants: tuple[int, ...]) -> None:
    ends = np.iinfo(dtype)
    for i, shape in enumerate(SHAPES):
        zero = number((ends.min, 0, ends.max, 7, 1)[i % 5], dtype)
        exact("DequantizeLinear", [integers(*shape, dtype=dtype), number(0.0173), zero], constants=constants)
        exact("QuantizeLinear", [floats(*shape), number(0.0173), zero], constants=constants)
    exact("QuantizeLinear", [floats(40), number(0.5)], constants=(1,))
    exact("DequantizeLinear", [integers(40, dtype=dtype), number(0.5)], constants=(1,))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("constants", [(1, 2), (1,), ()])
def test_a_scale_for_each_index_of_an_axis(dtype: str, constants: tuple[int, ...]) -> None:
    for axis in (0, 1, 2, -1):
        x = floats(3, 37, 5, seed=axis + 1)
        scales = np.abs(floats(x.shape[axis], scale=0.02)) + np.float32(1e-3)
        zeros = integers(x.shape[axis], dtype=dtype)
        exact("QuantizeLinear", [x, scales, zeros], {"axis": axis}, constants=constants)
        exact("DequantizeLinear", [integers(*x.shape, dtype=dtype), scales, zeros], {"axis": axis}, constants=constants)


def test_int32_is_dequantised_without_a_zero_point() -> None:
    big = integers(500, dtype="int32")
    exact("DequantizeLinear", [big, number(1e-4)], constants=(1,))
    exact("DequantizeLinear", [big, number(1e-4), number(0, "int32")], constants=(1, 2))
    exact("DequantizeLinear", [big, number(1e-4), number(5, "int32")], constants=(1, 2), native=False)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [0.1, 1 / 3, 1e-30, 1e30, 2.0**-126, 2.0**-140, 2.0**120, 3e38, 2.0**-100])
def test_quotients_are_those_of_a_division(dtype: str, scale: float) -> None:
    """Halfway cases and their neighbours, what saturates, what overflows, what is no number."""
    step = np.float32(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        ties = ((np.arange(-300, 300) + 0.5) * np.float64(step)).astype(np.float32)
        x = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
        wild = np.random.default_rng(0).integers(0, 1 << 32, 5000, dtype=np.uint32).view(np.float32)
        x = np.concatenate([x, wild, np.float32([np.inf, -np.inf, np.nan, 0, -0.0]), ties * np.float32(1e3)])
    for constants in ((1, 2), ()):
        exact("QuantizeLinear", [x, number(scale), number(5, dtype)], constants=constants)


def test_random_quotients() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        scale = np.float32(2.0 ** rng.uniform(-20, 4))
        near = (rng.integers(-40000, 40000, 20000) + 0.5) * np.float64(scale)
        exact("QuantizeLinear", [near.astype(np.float32), number(scale), number(0, "int16")], constants=(1, 2))


def test_types_without_kernels_take_the_reference() -> None:
    exact("QuantizeLinear", [floats(8), number(0.1)], {"output_dtype": 22}, constants=(1,), native=False)
    exact("DequantizeLinear", [integers(8), number(0.1, "float16")], constants=(1,), native=False)
    blocks = np.abs(floats(4, 3)) + np.float32(0.1)
    exact("DequantizeLinear", [integers(8, 3), blocks], {"axis": 0, "block_size": 2}, constants=(1,), native=False)


# -- chains -----------------------------------------------------------------------------------------------------------


def typed(nodes: list[Node], fed: dict[str, Array], outputs: list[str], constants: dict[str, Array]) -> Graph:
    """A graph whose outputs' types are those its reference gives."""
    inputs = tuple(Value(n, dtype_name(x.dtype), x.shape) for n, x in fed.items())
    untyped = Graph(inputs, tuple(Value(o, "float32") for o in outputs), tuple(nodes), constants)
    values = reference.run(untyped, fed)
    gives = tuple(Value(o, dtype_name(values[o].dtype), values[o].shape) for o in outputs)
    return Graph(inputs, gives, untyped.nodes, untyped.constants)


def same_bits(nodes: list[Node], fed: dict[str, Array], outputs: list[str], constants: dict[str, Array]) -> int:
    """Native results are the reference's, by 1 and 3 workers, but for the sign of a float zero, which Relu's maximum
    leaves open; how many steps computed them."""
    graph = typed(nodes, fed, outputs, constants)
    want, data = reference.run(graph, fed), bundle.write(None, {"predict": graph})
    for workers in (1, 3):
        model = lite_runtime.load(data, backend="guard", threads=workers)
        got, cost = model.run(fed), model.cost(fed)
        assert not cost.reference
        for name in outputs:
            assert got[name].dtype == want[name].dtype, name
            np.testing.assert_array_equal(got[name], want[name], name)
    return cost.steps


SCALES: dict[str, Array] = {
    **{f"{t}.zero": number({"int8": -9, "uint8": 131, "int16": 0, "uint16": 32000}[t], t) for t in TYPES},
    **{f"{t}.scale": number({"int8": 0.031, "uint8": 0.017, "int16": 1e-4, "uint16": 1.3e-4}[t]) for t in TYPES},
    "low": number(-0.7),
    "high": number(2.3),
    "three": number(3.0),
}


def dequantised(x: str, dtype: str, y: str) -> Node:
    return Node("DequantizeLinear", (x, f"{dtype}.scale", f"{dtype}.zero"), (y,))


def quantised(x: str, dtype: str, y: str) -> Node:
    return Node("QuantizeLinear", (x, f"{dtype}.scale", f"{dtype}.zero"), (y,))


UNARY: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("Relu", (), {}),
    ("Clip", ("low", "high"), {}),
    ("LeakyRelu", (), {"alpha": 0.13}),
    ("HardSwish", (), {}),
    ("HardSigmoid", (), {"alpha": 0.3, "beta": 0.41}),
    ("Abs", (), {}),
    ("Mul", ("three",), {}),
    ("Add", ("three",), {}),
    ("Div", ("three",), {}),
    ("Sqrt", (), {}),
    ("Floor", (), {}),
    ("ThresholdedRelu", (), {"alpha": 0.4}),
]
BINARY = "Add Sub Mul Div Max Min PRelu".split()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", BINARY)
def test_two_operands_in_one_step(op: str, dtype: str) -> None:
    nodes = [dequantised("a", dtype, "fa"), dequantised("b", dtype, "fb")]
    nodes += [Node(op, ("fa", "fb"), ("f",)), quantised("f", dtype, "y")]
    for shape in ((1,), (3, 37), (1000, 21), (0, 4)):
        fed = {"a": integers(*shape, dtype=dtype), "b": integers(*shape, dtype=dtype, seed=1)}
        steps = same_bits(nodes, fed, ["y"], SCALES)
        assert steps == (1 if 0 not in shape else 0)


@pytest.mark.parametrize(("op", "operands", "attrs"), UNARY)
def test_one_operand_in_one_step(op: str, operands: tuple[str, ...], attrs: dict[str, Any]) -> None:
    for dtype in TYPES:
        nodes = [dequantised("a", dtype, "f"), Node(op, ("f", *operands), ("g",), attrs), quantised("g", "int8", "y")]
        assert same_bits(nodes, {"a": integers(777, dtype=dtype)}, ["y"], SCALES) == 1


def test_normalised_by_channel_with_every_product_rounded() -> None:
    """x * factor + shift is rounded twice on every target."""
    channels = {n: np.abs(floats(8, seed=i)) + np.float32(0.1) for i, n in enumerate(("s", "b", "m", "v"))}
    nodes = [Node("BatchNormalization", ("f", "s", "b", "m", "v"), ("y",))]
    x = floats(2, 8, 31)
    got = lite_runtime.load(bundle.write(None, {"predict": typed(nodes, {"f": x}, ["y"], channels)})).run({"f": x})["y"]
    wide = {n: a.astype(np.float64).reshape(1, 8, 1) for n, a in channels.items()}
    factor = wide["s"] / np.sqrt(wide["v"] + 1e-5)
    shift = (wide["b"] - wide["m"] * factor).astype(np.float32)
    np.testing.assert_array_equal(got, x * factor.astype(np.float32) + shift)


def test_broadcasting_and_a_mask() -> None:
    nodes = [
        dequantised("a", "int8", "fa"),
        dequantised("row", "uint8", "fr"),
        Node("Mul", ("fa", "fr"), ("p",)),
        Node("Where", ("mask", "p", "fa"), ("w",)),
        quantised("w", "int8", "y"),
    ]
    fed = {
        "a": integers(2, 9, 33),
        "row": integers(9, 1, dtype="uint8"),
        "mask": np.random.default_rng(0).random((2, 9, 33)) < 0.5,
    }
    same_bits(nodes, fed, ["y"], SCALES)


def test_quantised_between_and_read_twice() -> None:
    nodes = [
        dequantised("a", "int8", "f"),
        Node("HardSwish", ("f",), ("g",)),
        quantised("g", "uint8", "q"),
        dequantised("q", "uint8", "h"),
        Node("Add", ("h", "x"), ("i",)),
        quantised("i", "int16", "r"),
        Node("Cast", ("r",), ("c",), {"to": 1}),
    ]
    fed = {"a": integers(5, 301), "x": floats(5, 301)}
    assert same_bits(nodes, fed, ["c"], SCALES) == 1
    assert same_bits(nodes, fed, ["q", "c"], SCALES) == 2
    assert same_bits(nodes, fed, ["g", "q", "r"], SCALES) == 3


def test_a_long_chain_of_many_scales_is_one_step() -> None:
    constants = {f"s{i}": number(0.02 + 0.001 * i) for i in range(12)} | {f"z{i}": number(i, "int8") for i in range(12)}
    nodes = [Node("DequantizeLinear", ("a", "s0", "z0"), ("v0",))]
    for i in range(1, 12):
        nodes += [
            Node("Abs" if i % 3 else "HardSwish", (f"v{i - 1}",), (f"w{i}",)),
            Node("QuantizeLinear", (f"w{i}", f"s{i}", f"z{i}"), (f"q{i}",)),
            Node("DequantizeLinear", (f"q{i}", f"s{i}", f"z{i}"), (f"v{i}",)),
        ]
    assert same_bits(nodes, {"a": integers(900)}, ["v11"], constants) == 1


def test_what_is_dequantised_for_several_readers_is_read_as_integers() -> None:
    """Each chain that reads it dequantises it anew; it is stored only for readers that are in no chain."""
    nodes = [
        dequantised("a", "int8", "f"),
        Node("Sigmoid", ("f",), ("g",)),
        Node("Mul", ("f", "g"), ("h",)),
        quantised("h", "uint8", "q"),
        dequantised("q", "uint8", "r"),
        Node("Relu", ("r",), ("s",)),
        quantised("s", "int8", "y"),
        Node("Neg", ("r",), ("z",)),
    ]
    fed = {"a": integers(4, 77)}
    graph = typed(nodes, fed, ["y", "z"], SCALES)
    model = lite_runtime.load(bundle.write(None, {"predict": graph}), backend="guard")
    assert model.cost(fed).steps == 3
    assert np.abs(model.run(fed)["y"].astype(int) - reference.run(graph, fed)["y"]).max() <= 1
    assert same_bits([*nodes[:1], *exact_swish(), *nodes[3:]], fed, ["y", "z"], SCALES) == 3
    summed = Node("ReduceSum", ("f",), ("t",), {"keepdims": 0})
    graph = typed([*nodes, summed], fed, ["y", "z", "t"], SCALES)
    model = lite_runtime.load(bundle.write(None, {"predict": graph}), backend="guard")
    assert model.cost(fed).steps >= 5
    np.testing.assert_allclose(model.run(fed)["t"], reference.run(graph, fed)["t"], rtol=1e-4)


def exact_swish() -> list[Node]:
    """f -> h, of operators that round one by one."""
    return [Node("HardSigmoid", ("f",), ("g",)), Node("Mul", ("f", "g"), ("h",))]


def test_scales_that_a_run_computes() -> None:
    nodes = [
        Node("DynamicQuantizeLinear", ("x",), ("q", "s", "z")),
        Node("DequantizeLinear", ("q", "s", "z"), ("f",)),
        Node("Mul", ("f", "f"), ("g",)),
        Node("QuantizeLinear", ("g", "s", "z"), ("y",)),
    ]
    same_bits(nodes, {"x": floats(3, 50)}, ["y"], {})


def test_weights_in_blocks_are_dequantised_once_when_loaded() -> None:
    w = integers(64, 48)
    blocks, zeros = np.abs(floats(4, 48)) + np.float32(0.01), integers(4, 48, seed=2)
    node = Node("DequantizeLinear", ("w", "s", "z"), ("f",), {"axis": 0, "block_size": 16})
    nodes = [node, Node("MatMul", ("x", "f"), ("y",))]
    graph = typed(nodes, {"x": floats(3, 64)}, ["y"], {"w": w, "s": blocks, "z": zeros})
    folded = fold(graph, 1 << 30)
    assert [n.op for n in folded.nodes] == ["MatMul"]
    np.testing.assert_array_equal(folded.constants["f"], reference.evaluate(node, [w, blocks, zeros])[0])


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Node], dict[str, Array], list[str]]:
    """A random graph over [6, 35] that quantises and dequantises in between, its operands, and a few outputs."""
    fed = {t: integers(6, 35, dtype=t, seed=i) for i, t in enumerate(TYPES)}
    nodes = [dequantised(t, t, f"f.{t}") for t in TYPES]
    names = [f"f.{t}" for t in TYPES]
    results = []
    for i in range(draw(st.integers(1, 14))):
        first = draw(st.sampled_from(names))
        kind = draw(st.sampled_from(["unary", "binary", "through"]))
        if kind == "unary":
            op, operands, attrs = draw(st.sampled_from(UNARY[:8]))
            nodes.append(Node(op, (first, *operands), (f"v{i}",), attrs))
        elif kind == "binary":
            op = draw(st.sampled_from(BINARY))
            nodes.append(Node(op, (first, draw(st.sampled_from(names))), (f"v{i}",)))
        else:
            dtype = draw(st.sampled_from(TYPES))
            nodes += [quantised(first, dtype, f"q{i}"), dequantised(f"q{i}", dtype, f"v{i}")]
            results.append(f"q{i}")
        names.append(f"v{i}")
    outputs = draw(st.lists(st.sampled_from([*results, names[-1]]), min_size=1, max_size=3, unique=True))
    return nodes, fed, outputs


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_chains(program: tuple[list[Node], dict[str, Array], list[str]]) -> None:
    nodes, fed, outputs = program
    same_bits(nodes, fed, outputs, SCALES)


def everything() -> None:
    """What one process shows of a target."""
    for dtype in TYPES:
        test_one_scale(dtype, (1, 2))
        test_a_scale_for_each_index_of_an_axis(dtype, (1, 2))
        test_quotients_are_those_of_a_division(dtype, 0.1)
        test_two_operands_in_one_step("Add", dtype)
        test_two_operands_in_one_step("Div", dtype)
    for row in UNARY:
        test_one_operand_in_one_step(*row)
    test_quantised_between_and_read_twice()
    test_random_quotients()


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, everything)
