"""If, Loop and Scan inside a native program: the same results as ONNX Runtime's, with every buffer and worker count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.random import Generator, default_rng
from onnx import TensorProto, helper

import lite_runtime
from converter import convert
from lite_runtime.errors import InputError, MsedgeError

Arrays = Mapping[str, np.ndarray]
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'

PROGRAMS: dict[str, str] = {
    "a branch": """
        g (float[3,4] x, bool c) => (float[3,4] y, float[3,4] z) {
            h = Tanh (x)
            y, z = If (c) <
                then_branch = t () => (float[3,4] a, float[3,4] b) { a = Add (h, x)  b = Identity (h) },
                else_branch = e () => (float[3,4] a, float[3,4] b) { s = Sub (x, h)  a = Mul (s, s)  b = Neg (a) }
            >
        }""",
    "branches in a branch": """
        g (float[3,4] x, bool c, bool d) => (float[3,4] y) {
            h = Exp (x)
            i = If (c) <
                then_branch = t () => (float[3,4] o) {
                    k = Add (h, x)
                    o = If (d) <
                        then_branch = tt () => (float[3,4] u) { u = Mul (k, h) },
                        else_branch = te () => (float[3,4] u) { u = Sub (k, x) }
                    >
                },
                else_branch = e () => (float[3,4] o) { o = Identity (x) }
            >
            y = Add (i, h)
        }""",
    "a loop that a value ends": """
        g (float[4] x, int64 n, float limit) => (float[4] y, float[4] before) {
            yes = Constant <value = bool {1}> ()
            y, before = Loop (n, yes, x, x) <
                body = b (int64 i, bool c, float[4] v, float[4] w) => (bool more, float[4] vn, float[4] old) {
                    vn = Add (v, x)
                    old = Identity (v)
                    s = ReduceMax <keepdims = 0> (vn)
                    more = Less (s, limit)
                }
            >
        }""",
    "carried values that change places": """
        g (float[4] x, float[4] y, int64 n) => (float[4] a, float[4] b, int64[1] turns) {
            zero = Constant <value = int64[1] {0}> ()
            a, b, turns = Loop (n, , x, y, zero) <
                body = b (int64 i, bool c, float[4] v, float[4] w, int64[1] k)
                    => (bool c, float[4] w, float[4] v, int64[1] kn) {
                    one = Constant <value = int64[1] {1}> ()
                    kn = Add (k, one)
                }
            >
        }""",
    "rows of a loop that a value ends": """
        g (float[4] x, int64 n, float limit) => (float[4] y, float[S,4] rows, int64[S] turns) {
            yes = Constant <value = bool {1}> ()
            y, rows, turns = Loop (n, yes, x) <
                body = b (int64 i, bool c, float[4] v) => (bool more, float[4] vn, float[4] row, int64 k) {
                    h = Tanh (v)
                    vn = Add (h, x)
                    row = Sub (vn, v)
                    k = Mul (i, i)
                    s = ReduceMax <keepdims = 0> (vn)
                    more = Less (s, limit)
                }
            >
        }""",
    "rows of a loop whose number of turns is an input": """
        g (float[4] x, int64 n) => (float[S,4] rows) {
            y, rows = Loop (n, , x) <
                body = b (int64 i, bool c, float[4] v) => (bool c, float[4] vn, float[4] vn) {
                    h = Tanh (v)
                    vn = Add (h, x)
                }
            >
        }""",
    "a loop in a loop": """
        g (float[4,4] x, int64 n, int64 m) => (float[4,4] y) {
            y = Loop (n, , x) <
                body = b (int64 i, bool c, float[4,4] v) => (bool c, float[4,4] vn) {
                    u = Tanh (v)
                    w = Loop (m, , u) <
                        body = bb (int64 j, bool d, float[4,4] p) => (bool d, float[4,4] pn) {
                            q = MatMul (p, x)
                            f = Cast <to = 1> (i)
                            r = Add (q, f)
                            pn = Tanh (r)
                        }
                    >
                    vn = Sub (w, u)
                }
            >
        }""",
    "a branch in a loop": """
        g (float[4] x, int64 n) => (float[4] y) {
            y = Loop (n, , x) <
                body = b (int64 i, bool c, float[4] v) => (bool c, float[4] vn) {
                    two = Constant <value = int64 {2}> ()
                    zero = Constant <value = int64 {0}> ()
                    r = Mod (i, two)
                    even = Equal (r, zero)
                    vn = If (even) <
                        then_branch = t () => (float[4] o) { o = Add (v, x) },
                        else_branch = e () => (float[4] o) { h = Mul (v, x)  o = Tanh (h) }
                    >
                }
            >
        }""",
    "a loop in a branch": """
        g (float[4] x, int64 n, bool c) => (float[4] y) {
            y = If (c) <
                then_branch = t () => (float[4] o) {
                    o = Loop (n, , x) <
                        body = b (int64 i, bool k, float[4] v) => (bool k, float[4] vn) { h = Tanh (v) vn = Add (h, x) }
                    >
                },
                else_branch = e () => (float[4] o) { o = Neg (x) }
            >
        }""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    model = onnx.parser.parse_model(HEAD + PROGRAMS[name])
    rng = default_rng(0)
    for turns in (0, 1, 64, 65, 200) if "rows" in name else (0, 1, 2, 7):
        for _ in range(3):
            inputs = {entry.name: _value(rng, entry, turns) for entry in model.graph.input}
            if "limit" in inputs:  # ONNX Runtime has no value to give where a loop's M is 0
                inputs["limit"] = np.array(rng.uniform(0, 4), np.float32)
            check(model, inputs)


@pytest.mark.parametrize("back", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (2, 1)])
def test_a_scan_of_many_elements(back: tuple[int, int], axes: tuple[int, int]) -> None:
    """Too many turns to be unrolled."""
    shapes = [3, 4], [3, 4]
    for shape, axis in zip(shapes, axes, strict=True):
        shape.insert(axis, 900)
    body = onnx.parser.parse_graph("""
        b (float[3,4] h, float[3,4] x) => (float[3,4] hn, float[3,4] y) { s = Add (h, x) hn = Tanh (s) y = Mul (hn, x) }
    """)
    node = helper.make_node(
        "Scan", ["h", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_axes=[axes[0]],
        scan_output_axes=[axes[1]], scan_input_directions=[back[0]], scan_output_directions=[back[1]],
    )  # fmt: skip
    ends = [_info("h", [3, 4]), _info("x", shapes[0])], [_info("last", [3, 4]), _info("y", shapes[1])]
    rng = default_rng(1)
    inputs = {entry.name: _value(rng, entry, 0) for entry in ends[0]}
    check(_model([node], *ends), inputs)


@pytest.mark.parametrize("seed", range(24))
def test_any_program(seed: int) -> None:
    """Random bodies: values from outside that are used first or last inside, results handed on, nested loops and
    branches."""
    rng = default_rng(seed)
    made = _Random(rng)
    nodes, pool = made.nodes(["x", "y"], depth=2, count=6)
    outputs = [str(name) for name in rng.choice(pool, 2, replace=False)]
    nodes += [helper.make_node("Identity", [name], [f"out{i}"]) for i, name in enumerate(outputs)]
    ends = [_info("x", [5]), _info("y", [5]), _info("n", [], TensorProto.INT64)]
    model = _model(nodes, ends, [_info("out0", [5]), _info("out1", [5])])
    for turns in (0, 3):
        check(model, {entry.name: _value(rng, entry, turns) for entry in ends})


class _Random:
    """Random nodes over vectors of five, all of the same range."""

    def __init__(self, rng: Generator) -> None:
        self._rng, self._count = rng, 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def nodes(self, pool: list[str], depth: int, count: int) -> tuple[list[onnx.NodeProto], list[str]]:
        """Nodes that read from the pool; the pool with what they make."""
        made: list[onnx.NodeProto] = []
        for _ in range(count):
            kind = int(self._rng.integers(5 if depth else 3))
            made += self.loop(pool, depth) if kind == 3 else self.branch(pool, depth) if kind == 4 else self.plain(pool)
            pool = [*pool, made[-1].output[0]]
        return made, pool

    def plain(self, pool: list[str]) -> list[onnx.NodeProto]:
        a, b = self._rng.choice(pool, 2)
        mid, out = self.name(), self.name()
        op = str(self._rng.choice(["Add", "Sub", "Mul"]))
        return [helper.make_node(op, [a, b], [mid]), helper.make_node("Tanh", [mid], [out])]

    def loop(self, pool: list[str], depth: int) -> list[onnx.NodeProto]:
        start = [str(name) for name in self._rng.choice(pool, 2)]
        i, c, more, v, w = (self.name() for _ in range(5))
        inner, known = self.nodes([*pool, v, w], depth - 1, 3)
        again = [helper.make_node("Identity", [c], [more])]
        results = [str(name) for name in self._rng.choice(known[-4:], 2)]
        ends = [self.name(), self.name()]
        copies = [helper.make_node("Identity", [a], [b]) for a, b in zip(results, ends, strict=True)]
        body = helper.make_graph(
            [*inner, *again, *copies], "body",
            [_info(i, [], TensorProto.INT64), _info(c, [], TensorProto.BOOL), _info(v, [5]), _info(w, [5])],
            [_info(more, [], TensorProto.BOOL), *(_info(name, [5]) for name in ends)],
        )  # fmt: skip
        return [helper.make_node("Loop", ["n", "", *start], [self.name(), self.name()], body=body)]

    def branch(self, pool: list[str], depth: int) -> list[onnx.NodeProto]:
        a, b = self._rng.choice(pool, 2)
        total, other, condition = self.name(), self.name(), self.name()
        before = [
            helper.make_node("ReduceSum", [a], [total], keepdims=0),
            helper.make_node("ReduceSum", [b], [other], keepdims=0),
            helper.make_node("LessOrEqual", [total, other], [condition]),
        ]
        sides = []
        for _ in range(2):
            inner, known = self.nodes(pool, depth - 1, 2)
            end = self.name()
            inner.append(helper.make_node("Identity", [str(self._rng.choice(known[-3:]))], [end]))
            sides.append(helper.make_graph(inner, "side", [], [_info(end, [5])]))
        return [
            *before,
            helper.make_node("If", [condition], [self.name()], then_branch=sides[0], else_branch=sides[1]),
        ]


def test_a_branch_that_is_invalid_for_these_shapes_fails_only_if_it_is_taken() -> None:
    """A model for two input sizes has a branch for each."""
    model = onnx.parser.parse_model(
        HEAD
        + """
        g (float[N] x, bool c) => (float[1] y) {
            y = If (c) <
                then_branch = t () => (float[1] o) <float[3] w = {1, 2, 3}> { p = Mul (x, w) o = ReduceMax (p) },
                else_branch = e () => (float[1] o) <float[4] w = {1, 2, 3, 4}> { p = Mul (x, w) o = ReduceMax (p) }
            >
        }"""
    )
    loaded = lite_runtime.load(convert(model).bundle)
    for size in (3, 4):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(loaded.run({"x": x, "c": np.array(size == 3)})["y"], [max(x * (x + 1))])
        assert not loaded.cost({"x": x, "c": np.array(size == 3)}).reference
        for _ in range(2):
            with pytest.raises(InputError, match=r"If .*the branch for this condition: Mul .*broadcast, got \([34],\)"):
                loaded.run({"x": x, "c": np.array(size == 4)})


@pytest.mark.parametrize("inner", [False, True])
def test_a_loop_without_end_is_stopped(inner: bool) -> None:
    model = onnx.parser.parse_model(HEAD + PROGRAMS["a loop in a loop" if inner else "a branch in a loop"])
    loaded = lite_runtime.load(convert(model).bundle, iterations=50)
    inputs = {entry.name: _value(default_rng(0), entry, 7) for entry in model.graph.input}
    if inner:  # 7 turns, and 7 in each
        inputs["m"] = np.array(6, np.int64)
        loaded.run(inputs)
        inputs["m"] = np.array(7, np.int64)
    else:
        inputs["n"] = np.array(50, np.int64)
        loaded.run(inputs)
        inputs["n"] = np.array(1 << 62, np.int64)
    for _ in range(2):
        with pytest.raises(MsedgeError, match=r"Loop .*: not finished after 50 iterations in this run; if this is int"):
            loaded.run(inputs)


def test_a_profile_counts_turns_and_leaves_out_what_was_not_run() -> None:
    model = onnx.parser.parse_model(HEAD + PROGRAMS["a loop in a branch"])
    loaded = lite_runtime.load(convert(model).bundle, threads=2)
    x, n = np.ones(4, np.float32), np.array(2000, np.int64)
    long = {r.kernel: r.seconds for r in loaded.profile({"x": x, "n": n, "c": np.array(True)})}
    short = {r.kernel: r.seconds for r in loaded.profile({"x": x, "n": n, "c": np.array(False)})}
    assert "control.turn" in long and "control.turn" not in short and all(s >= 0 for s in short.values())
    assert sum(long.values()) > sum(short.values())
    assert loaded.trace({"x": x, "n": n, "c": np.array(True)})


# -- the oracle --------------------------------------------------------------------------------------------------------


def check(model: onnx.ModelProto, inputs: Arrays) -> None:
    """ONNX Runtime's results, natively with one worker and two, next to guard pages, and by reference."""
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(inputs))
    bundle = convert(model).bundle
    first: dict[str, Any] = {}
    for settings in ({}, {"threads": 2}, {"backend": "guard"}, {"backend": "guard", "threads": 2}):
        loaded = lite_runtime.load(bundle, **settings)  # type: ignore[arg-type]
        assert not loaded.cost(inputs).reference
        for _ in range(2):
            got = loaded.run(inputs)
            for output, want in zip(model.graph.output, expected, strict=True):
                assert got[output.name].shape == want.shape and got[output.name].dtype == want.dtype
                np.testing.assert_allclose(got[output.name], want, rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(got[output.name], first.setdefault(output.name, got[output.name]))
    slow = lite_runtime.load(bundle, backend="reference").run(inputs)
    for name, array in first.items():
        np.testing.assert_allclose(array, slow[name], rtol=1e-4, atol=1e-5)


def _info(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _value(rng: Generator, entry: onnx.ValueInfoProto, turns: int) -> np.ndarray:
    shape = [d.dim_value for d in entry.type.tensor_type.shape.dim]
    kind = entry.type.tensor_type.elem_type
    if kind == TensorProto.INT64:
        return np.array(turns, np.int64)
    return np.array(rng.integers(2), bool) if kind == TensorProto.BOOL else rng.normal(size=shape).astype(np.float32)
