"""Constants in fewer bytes: which are packed, which are not, and that NumPy alone runs the result."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lite_runtime
from converter.lowering import pack_narrow
from lite_runtime import bundle, reference
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.planning.stage import fold
from lite_runtime.reference.narrow import pack4

ROOT = Path(__file__).parents[3]


def weight_only(
    rng: np.random.Generator, rows: int, columns: int, block: int = 32, kind: str = "int4", axis: int = 0
) -> Graph:
    """y = x @ DequantizeLinear(4-bit weights, a scale a block, zero points where unsigned)."""
    dtype = np.dtype(getattr(ml_dtypes, kind))
    low, high = (-8, 8) if kind == "int4" else (0, 16)
    shape = (rows, columns)
    blocks = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
    constants: dict[str, np.ndarray] = {
        "w": rng.integers(low, high, shape).astype(dtype),
        "s": rng.uniform(0.01, 0.1, blocks).astype(np.float32),
    }
    operands = ["w", "s"]
    if kind == "uint4":
        constants["z"] = rng.integers(low, high, blocks).astype(dtype)
        operands.append("z")
    dequantize = Node("DequantizeLinear", tuple(operands), ("d",), {"axis": axis, "block_size": block}, "dq")
    nodes = (dequantize, Node("MatMul", ("x", "d"), ("y",), {}, "mm"))
    given, gives = Value("x", "float32", (3, rows)), Value("y", "float32", (3, columns))
    return Graph((given,), (gives,), nodes, constants)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (1,), (), (0, 3), (1025,)])
def test_packing_and_unpacking(shape: tuple[int, ...], kind: str) -> None:
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int2": (-2, 2), "uint2": (0, 4)}[kind]
    values = np.asarray(np.random.default_rng(0).integers(low, high, shape)).astype(getattr(ml_dtypes, kind))
    packed = pack4(values)
    assert packed.dtype == np.uint8 and packed.shape == (-(-values.size // 2),)
    signed = int(kind.startswith("int"))
    (got,) = reference.evaluate(Node("Unpack4", ("p",), ("y",), {"shape": shape, "signed": signed}), [packed])
    assert got.dtype == (np.int8 if signed else np.uint8) and got.shape == shape
    np.testing.assert_array_equal(got, values.astype(np.int8))


def test_the_first_value_is_in_the_low_half() -> None:
    assert pack4(np.array([1, -2, 7], np.int8)).tolist() == [0xE1, 0x07]


@pytest.mark.parametrize(("axis", "block"), [(0, 32), (1, 32), (0, 7), (1, 64), (0, 1)])
@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_the_result_is_the_same_bit_for_bit(kind: str, axis: int, block: int) -> None:
    graph = weight_only(np.random.default_rng(1), 65, 33, block, kind, axis)
    packed = pack_narrow(graph)
    x = {"x": np.random.default_rng(2).normal(size=(3, 65)).astype(np.float32)}
    want = reference.run(graph, x)["y"]
    np.testing.assert_array_equal(reference.run(packed, x)["y"], want)
    outputs = [lite_runtime.load(bundle.write(None, {"predict": g})).run(x)["y"] for g in (graph, packed)]
    np.testing.assert_array_equal(*outputs)
    np.testing.assert_allclose(outputs[0], want, rtol=1e-4, atol=1e-4)


def test_two_values_take_a_byte() -> None:
    graph = weight_only(np.random.default_rng(0), 512, 256)
    plain, packed = (len(bundle.write(None, {"predict": g})) for g in (graph, pack_narrow(graph)))
    assert plain - packed == pytest.approx(512 * 256 / 2, abs=512)


def test_weights_with_other_readers_stay() -> None:
    int4 = ml_dtypes.int4
    constants: dict[str, np.ndarray] = {name: np.ones(4, int4) for name in ("cast", "out", "alone", "half")}
    constants |= {"zero": np.zeros(4, int4), "scale": np.ones(4, np.float32), "asked": np.ones(4, int4)}
    nodes = (
        Node("DequantizeLinear", ("cast", "scale"), ("a",), {"axis": 0}),
        Node("Cast", ("cast",), ("b",), {"to": 1}),
        Node("DequantizeLinear", ("alone", "scale"), ("c",), {"axis": 0}),
        Node("QuantizeLinear", ("c", "scale", "zero"), ("q",), {"axis": 0}),
        Node("DequantizeLinear", ("half", "scale", "zero"), ("d",), {"axis": 0}),
        Node("DequantizeLinear", ("q", "scale", "asked"), ("e",), {"axis": 0}),
    )
    outputs = (*(Value(n, "float32", (4,)) for n in "abcde"), Value("out", "int4", (4,)))
    packed = pack_narrow(Graph((), outputs, nodes, constants))
    assert {name for name, c in packed.constants.items() if c.dtype == int4} == {"cast", "out", "zero", "half", "asked"}
    assert [node.outputs for node in packed.nodes if node.op == "Unpack4"] == [("alone",)]
    assert set(reference.run(packed, {})) == {*"abcde", "out"}


def test_subgraphs_have_their_own_packed() -> None:
    inner = Graph(
        (),
        (Value("v", "float32", (3,)),),
        (Node("DequantizeLinear", ("k", "s"), ("v",)),),
        {"k": np.array([1, -8, 7], ml_dtypes.int4), "s": np.array(2, np.float32)},
    )
    branches = Node("If", ("c",), ("y",), {"then_branch": inner, "else_branch": inner})
    graph = Graph((Value("c", "bool", ()),), (Value("y", "float32", (3,)),), (branches,), {})
    packed = pack_narrow(graph)
    assert all(c.dtype != ml_dtypes.int4 for n in packed.nodes for g in n.attrs.values() for c in g.constants.values())
    assert reference.run(packed, {"c": np.array(True)})["y"].tolist() == [2, -16, 14]


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_numpy_alone_runs_it(tmp_path: Path, kind: str) -> None:
    graph = weight_only(np.random.default_rng(4), 96, 10, kind=kind)
    x = np.random.default_rng(5).normal(size=(3, 96)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "plain").write_bytes(bundle.write(None, {"predict": graph}))
    (tmp_path / "packed").write_bytes(bundle.write(None, {"predict": pack_narrow(graph)}))
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import numpy, lite_runtime\n"
        "for backend in ('native', 'reference'):\n"
        "    model = lite_runtime.load(sys.argv[1], backend=backend)\n"
        "    numpy.save(backend + '.npy', model.run({'x': numpy.load('x.npy')})['y'])\n"
    )
    run = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*run, "packed"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    want = reference.run(graph, {"x": x})["y"]
    for backend in ("native", "reference"):
        np.testing.assert_allclose(np.load(tmp_path / f"{backend}.npy"), want, rtol=1e-4, atol=1e-4)
    done = subprocess.run([*run, "plain"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "needs the package ml_dtypes" in done.stderr


@pytest.mark.parametrize("axis", [0, 1])
def test_large_weights_are_prepared_without_full_copies(axis: int) -> None:
    """2 M weights: packed bytes, then int8, then float32, and little more."""
    graph = pack_narrow(weight_only(np.random.default_rng(0), 2048, 1024, axis=axis))
    count = 2048 * 1024
    fold(pack_narrow(weight_only(np.random.default_rng(0), 64, 32, axis=axis)), 1 << 30)  # imports what it needs
    tracemalloc.start()
    try:
        folded = fold(graph, 1 << 30)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [node.op for node in folded.nodes] == ["MatMul"] and set(folded.constants) == {"d"}
    assert kept < 4.2 * count and peak < 5.2 * count
