"""Weights in blocks are turned to panels once, whoever shares what."""

from __future__ import annotations

import numpy as np

from converter.lowering import in_panels
from lite_runtime import bundle, load
from lite_runtime.graph import Array, Graph, Node, Value

K, N = 64, 20
RNG = np.random.default_rng(0)


def product(name: str, q: str, scales: str, offsets: str = "", bits: int = 4) -> Node:
    inputs = ("x", q, scales, offsets) if offsets else ("x", q, scales)
    block = 32 if bits == 4 else 16
    attrs = {"K": K if bits == 4 else K // 2, "N": N, "bits": bits, "block_size": block, "zero_point": 2 ** (bits - 1)}
    return Node("MatMulNBits", inputs, (name,), attrs, name)  # type: ignore[arg-type]


def integers() -> Array:
    return RNG.integers(0, 256, (N, K // 32, 16)).astype(np.uint8)


def table() -> Array:
    return RNG.standard_normal((N, K // 32)).astype(np.float32)


def check(nodes: list[Node], constants: dict[str, Array], turned: list[bool], depth: int = K) -> None:
    """The same results as before, and which nodes read panels."""
    outputs = tuple(Value(node.outputs[0], "float32", None) for node in nodes)
    graph = Graph((Value("x", "float32", (3, depth)),), outputs, tuple(nodes), constants)
    made = in_panels(graph)
    assert [node.attrs.get("layout", "") == "panels" for node in made.nodes] == turned
    assert in_panels(made) == made
    x = {"x": RNG.standard_normal((3, depth)).astype(np.float32)}
    one, other = (load(bundle.write(None, {"predict": g}), backend="reference").run(x) for g in (graph, made))
    for name, y in one.items():
        np.testing.assert_array_equal(y, other[name])


def test_tables_of_their_own() -> None:
    constants = {"q": integers(), "s": table(), "o": table(), "r": integers(), "t": table()}
    check([product("y", "q", "s", "o"), product("z", "r", "t")], constants, [True, True])


def test_one_matrix_for_two_readers() -> None:
    check([product("y", "q", "s"), product("z", "q", "s")], {"q": integers(), "s": table()}, [True, True])


def test_equal_parts_of_different_matrices() -> None:
    """Equal constants are merged: matrices may share scales, or integers."""
    constants = {"q": integers(), "r": integers(), "s": table(), "t": table()}
    nodes = [product("y", "q", "s"), product("z", "r", "s"), product("u", "q", "t"), product("v", "r", "t", "s")]
    check(nodes, constants, [True] * 4)


def test_a_table_that_something_else_reads() -> None:
    """It keeps its layout, and so does every matrix that shares a part of it."""
    constants = {"q": integers(), "r": integers(), "p": integers(), "s": table(), "t": table()}
    negated = Node("Neg", ("s",), ("n",), {}, "n")
    nodes = [product("y", "q", "s"), product("z", "r", "s"), product("u", "p", "t"), negated]
    check(nodes, constants, [False, False, True, False])


def test_the_same_bytes_of_different_widths() -> None:
    rows = {"s": table(), "q": integers()}
    nodes = [product("y", "q", "s", bits=8), product("z", "q", "s", bits=8)]
    check(nodes, rows, [True, True], K // 2)


def test_tables_that_are_computed() -> None:
    constants = {"q": integers(), "s": table()}
    nodes = [Node("Neg", ("s",), ("m",), {}, "m"), product("y", "q", "m")]
    check(nodes, constants, [False, False])
