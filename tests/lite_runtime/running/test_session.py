"""Models: loading, all kinds of wrong inputs, dynamic shapes, shapes that depend on values, nested graphs."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.errors import BundleError, InputError, MsedgeError
from lite_runtime.graph import Array, Graph, Node, Value

RNG = np.random.default_rng(21)
BACKENDS = ["native", "reference", "guard"]


def _f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _mlp() -> bytes:
    """relu(x w + b) over any number of rows."""
    node = Node("MatMul", ("x", "w", "b"), ("y",), {"activation": "Relu"}, "dense")
    constants = {"w": _f(4, 3), "b": _f(3)}
    graph = Graph((Value("x", "float32", ("n", 4)),), (Value("y", "float32", ("n", 3)),), (node,), constants)
    return bundle.write(None, {"predict": graph})


def _model(
    nodes: list[Node], inputs: dict[str, tuple[str, Any]], outputs: dict[str, tuple[str, Any]], **constants: Array
) -> bytes:
    given = tuple(Value(name, dtype, shape) for name, (dtype, shape) in inputs.items())
    gives = tuple(Value(name, dtype, shape) for name, (dtype, shape) in outputs.items())
    return bundle.write(None, {"predict": Graph(given, gives, tuple(nodes), constants)})


def test_sources(tmp_path: Path) -> None:
    """A path, its text and the bytes open the same model."""
    path = tmp_path / "m.mslite"
    path.write_bytes(_mlp())
    x = {"x": _f(2, 4)}
    results = [lite_runtime.load(s).run(x)["y"] for s in (path, str(path), path.read_bytes())]
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_rows(backend: str) -> None:
    model = lite_runtime.load(_mlp(), backend=backend)
    weights, bias = (model.bundle.signatures["predict"].constants[n] for n in "wb")
    for rows in (1, 5, 0, 64, 5):
        x = _f(rows, 4)
        np.testing.assert_allclose(model.run({"x": x})["y"], np.maximum(x @ weights + bias, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "missing x"),
        ({"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)}, "unknown z"),
        ({"x": np.zeros((1, 4))}, "float64"),
        ({"x": np.zeros(4, np.float32)}, "rank 2"),
        ({"x": np.zeros((1, 5), np.float32)}, r"\[1, 5\]"),
        ({"x": "text"}, "string"),
        ({"x": None}, "x"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        lite_runtime.load(_mlp()).run(inputs)


def test_inputs_in_any_memory() -> None:
    """Strided, reversed, read-only, big-endian and unaligned arrays all mean their values."""
    model, x = lite_runtime.load(_mlp()), _f(6, 4)
    want = model.run({"x": x})["y"].tobytes()
    locked = x.copy()
    locked.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1).reshape(x.shape)
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    for same in (locked, unaligned, wide, x[::-1].copy()[::-1], np.asfortranarray(x), x.astype(">f4")):
        for _ in range(2):
            assert model.run({"x": same})["y"].tobytes() == want


def test_outputs_are_the_callers_own() -> None:
    model = lite_runtime.load(_mlp())
    first = model.run({"x": _f(3, 4)})["y"]
    held = first.copy()
    model.run({"x": _f(3, 4)})
    assert first.tobytes() == held.tobytes() and first.flags.writeable


def test_nan_and_infinity_pass() -> None:
    x = np.array([[np.nan, 0, 0, 0], [np.inf, 0, 0, 0]], np.float32)
    y = lite_runtime.load(_mlp()).run({"x": x})["y"]
    assert np.isnan(y[0]).all() and set(y[1]) <= {0.0, np.inf}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_and_a_constant_may_be_outputs(backend: str) -> None:
    data = _model(
        [Node("Reshape", ("x", "s"), ("y",))],
        {"x": ("float32", (2, 3))},
        {"x": ("float32", (2, 3)), "s": ("int64", (1,)), "y": ("float32", (6,))},
        s=np.array([6]),
    )
    x = _f(2, 3)
    out = lite_runtime.load(data, backend=backend).run({"x": x})
    assert out["x"].tobytes() == x.tobytes() and out["s"].tolist() == [6] and out["y"].tobytes() == x.tobytes()
    out["x"][:] = 0
    assert x.any(), "an output must not be the caller's input"


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_that_depend_on_values(backend: str) -> None:
    """NonZero ends a stage; what follows is planned when its size is known."""
    data = _model(
        [
            Node("Relu", ("x",), ("r",)),
            Node("NonZero", ("r",), ("i",)),
            Node("Shape", ("i",), ("s",)),
            Node("Neg", ("r",), ("y",)),
        ],
        {"x": ("float32", ("n",))},
        {"s": ("int64", (2,)), "y": ("float32", ("n",)), "i": ("int64", (1, None))},
    )
    model = lite_runtime.load(data, backend=backend)
    for n in (5, 9, 5):
        x = _f(n)
        out = model.run({"x": x})
        assert out["s"].tolist() == [1, int((x > 0).sum())]
        assert out["i"].tolist() == [np.nonzero(x > 0)[0].tolist()]
        assert (out["y"] == -np.maximum(x, 0)).all()


def _counting(limit: int) -> bytes:
    """Adds x to itself while i < limit."""
    body = Graph(
        (Value("i", "int64", ()), Value("go", "bool", ()), Value("v", "float32", (2,))),
        (Value("on", "bool", ()), Value("w", "float32", (2,))),
        (Node("Less", ("i", "most"), ("on",)), Node("Add", ("v", "x"), ("w",))),
        {"most": np.array(limit, np.int64)},
    )
    loop = Node("Loop", ("", "yes", "x"), ("y",), {"body": body})
    return _model([loop], {"x": ("float32", (2,))}, {"y": ("float32", (2,))}, yes=np.array(True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_with_a_capture(backend: str) -> None:
    y = lite_runtime.load(_counting(4), backend=backend).run({"x": np.ones(2, np.float32)})["y"]
    assert y.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loops_limit_and_condition_of_any_shape(backend: str) -> None:
    """No elements mean that it is left out; several are an error."""
    body = Graph(
        (Value("i", "int64", ()), Value("go", "bool", ()), Value("v", "float32", None, "sequence")),
        (Value("go", "bool", ()), Value("w", "float32", None, "sequence")),
        (Node("SequenceInsert", ("v", "x"), ("w",)),),
        {},
    )
    nodes = [
        Node("SequenceConstruct", ("x",), ("start",)),
        Node("Loop", ("n", "c", "start"), ("s",), {"body": body}),
        Node("SequenceLength", ("s",), ("y",)),
    ]
    data = _model(
        nodes, {"x": ("float32", (2,)), "n": ("int64", (None,)), "c": ("bool", (None,))}, {"y": ("int64", ())}
    )
    model, x, n = lite_runtime.load(data, backend=backend), np.ones(2, np.float32), np.array([3])
    assert model.run({"x": x, "n": n, "c": np.zeros(0, bool)})["y"] == 4
    assert model.run({"x": x, "n": n, "c": np.zeros(1, bool)})["y"] == 1
    with pytest.raises(MsedgeError, match=r"Loop .*expected cond to hold one element"):
        model.run({"x": x, "n": n, "c": np.ones(2, bool)})
    with pytest.raises(MsedgeError, match=r"Loop .*expected M to hold one element"):
        model.run({"x": x, "n": np.array([1, 2]), "c": np.ones(1, bool)})


def test_a_loop_without_end_is_stopped() -> None:
    model = lite_runtime.load(_counting(1 << 62), iterations=50)
    with pytest.raises(MsedgeError, match="50 iterations"):
        model.run({"x": np.ones(2, np.float32)})


def test_an_index_out_of_range_is_named() -> None:
    data = _model(
        [Node("Gather", ("x", "i"), ("y",), {"axis": 0}, "pick")],
        {"x": ("float32", (4, 2)), "i": ("int64", (3,))},
        {"y": ("float32", (3, 2))},
    )
    for backend in BACKENDS:
        model = lite_runtime.load(data, backend=backend)
        with pytest.raises(MsedgeError, match="pick"):
            model.run({"x": _f(4, 2), "i": np.array([0, 9, 1])})
        assert model.run({"x": _f(4, 2), "i": np.array([0, -4, 3])})["y"].shape == (3, 2)


def test_results_beyond_the_limit_are_refused() -> None:
    data = _model([Node("ConstantOfShape", ("n",), ("y",))], {"n": ("int64", (2,))}, {"y": ("float32", (None, None))})
    for backend in BACKENDS:
        with pytest.raises(MsedgeError):
            lite_runtime.load(data, backend=backend, limit=1 << 20).run({"n": np.array([1 << 20, 1 << 20])})


def test_unknown_signature_backend_and_threads() -> None:
    with pytest.raises(InputError, match="predict"):
        lite_runtime.load(_mlp()).run({"x": _f(1, 4)}, "train_step")
    with pytest.raises(InputError, match="backend"):
        lite_runtime.load(_mlp(), backend="gpu")
    for threads in (0, -1, 1000, 1.5):
        with pytest.raises(InputError, match="threads"):
            lite_runtime.load(_mlp(), threads=threads)  # type: ignore[arg-type]


def test_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="msedge convert"):
        lite_runtime.load(b"\x08\x07onnx")
    with pytest.raises(BundleError):
        lite_runtime.load(tmp_path / "nothing.mslite")


@pytest.mark.parametrize("threads", [1, 2])
def test_profile_names_every_piece(threads: int) -> None:
    rows = lite_runtime.load(_mlp(), threads=threads).profile({"x": _f(9, 4)}, repeats=3)
    assert [(r.node, r.kernel) for r in rows] == [("MatMul dense", "gemm.f32_gemm")] and rows[0].seconds > 0
    assert rows[0].operations == 2 * 9 * 3 * 4 and rows[0].bytes >= 4 * (9 * 4 + 4 * 3 + 3 + 9 * 3)


def test_profile_and_trace_hold_references_and_later_parts() -> None:
    data = _model(
        [Node("Relu", ("x",), ("r",)), Node("NonZero", ("r",), ("i",)), Node("Neg", ("i",), ("y",))],
        {"x": ("float32", ("n",))},
        {"y": ("int64", (1, None))},
    )
    model = lite_runtime.load(data)
    rows = model.profile({"x": _f(50)}, repeats=2)
    assert [r.node.split()[0] for r in rows] == ["Relu", "NonZero", "Neg"]
    assert [r.kernel == "reference" for r in rows] == [False, True, False]
    assert [r.operations for r in rows] == [50, 0, rows[2].operations]
    spans = model.trace({"x": _f(50)})
    assert [s.node.split()[0] for s in spans] == ["Relu", "NonZero", "Neg"]
    assert spans[0].start == 0 and all(0 <= a.start <= a.end <= b.start for a, b in pairwise(spans))


def test_trace_shows_every_worker() -> None:
    w = {f"w{i}": _f(96, 96) for i in range(2)}
    nodes = [Node("MatMul", ("x", "w0"), ("h",), {}, "one"), Node("MatMul", ("h", "w1"), ("y",), {}, "two")]
    data = _model(nodes, {"x": ("float32", (400, 96))}, {"y": ("float32", (400, 96))}, **w)
    model = lite_runtime.load(data, threads=2)
    workers = model._executor("predict").bound({"x": _f(400, 96)}).workers
    spans = model.trace({"x": _f(400, 96)})
    everyone = [(f"MatMul {name}", worker) for name in ("one", "two") for worker in range(workers)]
    assert sorted((s.node, s.worker) for s in spans) == everyone


def test_inputs_and_outputs_of_any_size_keep_their_order() -> None:
    """Small arrays are copied, of large ones only the address changes hands: neither shows."""
    names = [f"x{i}" for i in range(4)]
    shapes: list[tuple[int, ...]] = [(3,), (100, 90), (), (70, 80)]
    nodes = [Node("Neg", (n,), (n.replace("x", "y"),)) for n in names]
    data = _model(
        nodes,
        {n: ("float32", s) for n, s in zip(names, shapes, strict=True)},
        {n.replace("x", "y"): ("float32", s) for n, s in zip(names, shapes, strict=True)},
    )
    model = lite_runtime.load(data)
    for _ in range(3):
        x = {n: _f(*s) for n, s in zip(names, shapes, strict=True)}
        x["x1"] = x["x1"].T.copy().T
        x["x3"].flags.writeable = False
        out = model.run(x)
        assert list(out) == ["y0", "y1", "y2", "y3"]
        assert all(type(out[n.replace("x", "y")]) is np.ndarray for n in names)
        assert all((out[n.replace("x", "y")] == -x[n]).all() for n in names)


def test_shapes_in_turn() -> None:
    """Plans for inputs seen before are found again; what does not fit is named then too."""
    model = lite_runtime.load(_mlp())
    for rows in (2, 9, 2, 9, 3000, 2):
        assert model.run({"x": _f(rows, 4)})["y"].shape == (rows, 3)
        with pytest.raises(InputError):
            model.run({"x": _f(rows, 5)})
        with pytest.raises(InputError, match="unknown z"):
            model.run({"x": _f(rows, 4), "z": _f(1)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_bound_arrays(backend: str) -> None:
    model = lite_runtime.load(_mlp(), backend=backend)
    bound = model.bind({"x": (5, 4)})
    assert bound.inputs["x"].shape == (5, 4) and not bound.inputs["x"].any()
    for _ in range(3):
        x = bound.inputs["x"][...] = _f(5, 4)
        bound()
        held = bound.outputs["y"].copy()
        assert held.tobytes() == model.run({"x": x})["y"].tobytes()
        model.run({"x": _f(5, 4)})
        assert bound.outputs["y"].tobytes() == held.tobytes(), "a run must not write a binding's arrays"
    other = model.bind({"x": (5, 4)})
    other.inputs["x"][...] = 1
    other()
    assert bound.outputs["y"].tobytes() == held.tobytes()
    assert model.bind().inputs["x"].shape == (1, 4)
    with pytest.raises(InputError, match="rank 2"):
        model.bind({"x": (5,)})


def test_bound_arrays_and_an_index_out_of_range() -> None:
    data = _model(
        [Node("Gather", ("x", "i"), ("y",), {"axis": 0}, "pick")],
        {"x": ("float32", (4, 2)), "i": ("int64", (3,))},
        {"y": ("float32", (3, 2))},
    )
    bound = lite_runtime.load(data).bind()
    bound.inputs["i"][1] = 9
    for _ in range(2):
        with pytest.raises(InputError, match="pick"):
            bound()
    bound.inputs["i"][1] = 3
    bound()


def test_bound_arrays_of_a_model_with_sizes_known_at_run_time() -> None:
    data = _model([Node("NonZero", ("x",), ("i",))], {"x": ("float32", (4,))}, {"i": ("int64", (1, None))})
    bound = lite_runtime.load(data).bind()
    for n in (0, 2, 4):
        bound.inputs["x"][...] = np.arange(4) < n
        bound()
        assert bound.outputs["i"].shape == (1, n)


def test_callers_from_many_threads() -> None:
    model, x = lite_runtime.load(_mlp(), threads=2), _f(50, 4)
    want, wrong = model.run({"x": x})["y"].tobytes(), list[int]()

    def call() -> None:
        wrong.extend(1 for _ in range(50) if model.run({"x": x})["y"].tobytes() != want)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
