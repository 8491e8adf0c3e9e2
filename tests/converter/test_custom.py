"""Operators that a program registers: in ONNX and TensorFlow Lite sources, in bundles, on the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import flatbuffers.flexbuffers as flexbuffers
import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import lite_runtime
from converter import convert
from converter.errors import UnsupportedOpError
from edge.cli.app import app
from lite_runtime import BundleError, CustomOperator, MsedgeError, ShapeError, Spec, custom, register
from tests.converter.frontends.tflite.builder import Builder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/custom/operators.py"
X = np.random.default_rng(3).standard_normal((2, 5)).astype(np.float32)


class Halves(CustomOperator):
    """The two halves of the last axis, scaled."""

    domain, name = "test", "Halves"
    outputs = (2, 2)
    attributes = "scale:f! shifts:F mode:s(up|down)"

    def infer(self, x: Spec, **attributes: object) -> list[Spec]:
        *batch, size = x.shape
        return [Spec(x.dtype, (*batch, size // 2)), Spec(x.dtype, (*batch, size - size // 2))]

    def compute(
        self, x: np.ndarray, *, scale: float, shifts: tuple[float, ...] = (), mode: str = "up"
    ) -> tuple[np.ndarray, ...]:
        middle = x.shape[-1] // 2
        y = x * np.float32(scale) + np.float32(sum(shifts))
        return (y[..., :middle], y[..., middle:]) if mode == "up" else (y[..., :middle] * 0, y[..., middle:] * 0)


class Positives(CustomOperator):
    """How many there are is known only when they are computed."""

    domain, name = "test", "Positives"

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x[x > 0]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No test's operators are left."""
    yield
    for operator in (Halves, Positives):
        custom.unregister(operator)
    assert not custom.registered()


def model(op: str = "Halves", size: object = "n", outputs: int = 2, **attrs: object) -> onnx.ModelProto:
    """op(Neg(x)), and Exp of each result."""
    names = [f"h{i}" for i in range(outputs)]
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node(op, ["a"], names, "mine", domain="test", **attrs)]
    nodes += [helper.make_node("Exp", [n], [f"y{i}"]) for i, n in enumerate(names)]
    results = [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(outputs)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [size, 5])], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("test", 1)])


def test_in_onnx() -> None:
    register(Halves)
    found = lite_runtime.load(convert(model(scale=0.5, shifts=[1.0, 0.25])).bundle)
    shapes = {value.name: value.shape for value in found.outputs()}
    assert shapes == {"y0": ("n", 2), "y1": ("n", 3)}
    want = np.exp(-X * 0.5 + 1.25)
    for rows in (1, 2):
        got = found.run({"x": X[:rows]})
        np.testing.assert_allclose(got["y0"], want[:rows, :2], rtol=1e-5)
        np.testing.assert_allclose(got["y1"], want[:rows, 2:], rtol=1e-5)


def test_types_known_only_when_computed() -> None:
    register(Positives)
    source = model("Positives", outputs=1)
    source.graph.value_info.append(helper.make_tensor_value_info("h0", 1, [None]))
    found = lite_runtime.load(convert(source).bundle)
    for x in (X, -np.abs(X)):
        np.testing.assert_allclose(found.run({"x": x})["y0"], np.exp((-x)[-x > 0]), rtol=1e-5)


def test_in_tensorflow_lite() -> None:
    """Options become attributes; or the operator asks for their bytes."""

    class Scaled(CustomOperator):
        domain, name = custom.TFLITE, "Scaled"
        attributes = "factor:f! flag:i sizes:I"

        def infer(self, x: Spec, **attributes: object) -> Spec:
            return x

        def compute(self, x: np.ndarray, *, factor: float, flag: int, sizes: tuple[int, ...]) -> np.ndarray:
            return x * np.float32(factor * flag + len(sizes))

    class Bytes(CustomOperator):
        domain, name = custom.TFLITE, "Bytes"
        attributes = "custom_options:T"

        def infer(self, x: Spec, *, custom_options: np.ndarray) -> Spec:
            return x

        def compute(self, x: np.ndarray, *, custom_options: np.ndarray) -> np.ndarray:
            return x + np.float32(custom_options.sum())

    builder = Builder()
    x = builder.input("x", (2, 5), "float32")
    options = bytes(flexbuffers.Dumps({"factor": 2.5, "flag": True, "sizes": [1, 2]}))
    x = builder.op("Scaled", [x], (2, 5), "float32", custom=options)
    builder.output(builder.op("Bytes", [x], (2, 5), "float32", custom=b"\1\2\3"))
    with pytest.raises(
        UnsupportedOpError, match=r"(?s)tflite.custom::Scaled.*tflite.custom::Bytes.*lite_runtime.custom"
    ):
        convert(builder.build())
    for operator in (Scaled, Bytes):
        register(operator)
    try:
        found = lite_runtime.load(convert(builder.build()).bundle)
        (got,) = found.run({"x": X}).values()
        np.testing.assert_allclose(got, X * 4.5 + 6, rtol=1e-6)
    finally:
        for operator in (Scaled, Bytes):
            custom.unregister(operator)


def test_absent() -> None:
    """Converter and runtime refuse by name, and say what to do; all nodes are listed."""
    with pytest.raises(UnsupportedOpError, match=r"(?s)test::Halves .*'mine'.*--custom MODULE"):
        convert(model(scale=1.0))
    register(Halves)
    bundle = convert(model(scale=1.0)).bundle
    custom.unregister(Halves)
    with pytest.raises(BundleError, match=r"(?s)test::Halves.*import the module that registers it.*--custom MODULE"):
        lite_runtime.load(bundle).run({"x": X})


def test_a_file_must_follow_the_record() -> None:
    """Attributes and numbers of operands are those that the program registered, not those of the file."""
    register(Halves)
    bundle = convert(model(scale=1.0)).bundle
    custom.unregister(Halves)

    class Other(Halves):
        attributes = "width:i"

    register(Other)
    with pytest.raises(BundleError, match="scale"):
        lite_runtime.load(bundle).run({"x": X})
    custom.unregister(Other)

    class Single(Halves):
        outputs = (1, 1)

    register(Single)
    with pytest.raises(BundleError, match="outputs"):
        lite_runtime.load(bundle).run({"x": X})


def failing(infer: object, compute: object) -> type[CustomOperator]:
    """Halves with these methods."""
    given = {"infer": infer, "compute": compute}
    return type("Failing", (Halves,), {name: fn for name, fn in given.items() if fn is not None})


WRONG = {
    "shape": (
        None,
        lambda self, x, **a: (x, x),
        r"result 0: expected float32\[2, 2\] as infer says, got float32\[2, 5\]",
    ),
    "type": (None, lambda self, x, **a: (x[:, :2].astype(np.float64), x[:, 2:]), r"expected float32.*got float64"),
    "count": (None, lambda self, x, **a: (x[:, :2],), "expected 2 results"),
    "nothing": (None, lambda self, x, **a: None, "expected 2 results"),
    "error": (None, lambda self, x, **a: 1 / 0, "compute of test::Halves failed: ZeroDivisionError"),
    "writes": (None, lambda self, x, **a: x.fill(0), "read-only"),
    "infer, error": (lambda self, x, **a: x.shape[9], None, "infer of test::Halves failed: IndexError"),
    "infer, no types": (lambda self, x, **a: [(2, 3), (4, 5)], None, r"expected Spec\(dtype, shape\)"),
    "infer, no size": (lambda self, x, **a: [Spec("float32", (-1,))] * 2, None, r"expected Spec\(dtype, shape\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_results_of_user_functions(case: str) -> None:
    """One error that names the operator and what it returned; nothing native runs with it."""
    infer, compute, words = WRONG[case]
    register(Halves)
    bundle = convert(model(scale=1.0)).bundle
    custom.unregister(Halves)
    register(failing(infer, compute))
    with pytest.raises(MsedgeError, match=words):
        lite_runtime.load(bundle).run({"x": X})


def test_a_result_may_be_the_input() -> None:
    """Memory of an operand is reused; a result that is a view of it keeps its values."""

    class Same(Halves):
        def compute(self, x: np.ndarray, **attributes: object) -> tuple[np.ndarray, ...]:
            return x[..., :2], x[..., 2:]

    register(Same)
    found = lite_runtime.load(convert(model(scale=1.0)).bundle)
    first = found.run({"x": X})
    kept = {name: y.copy() for name, y in first.items()}
    found.run({"x": X * 3})
    for name, y in first.items():
        np.testing.assert_array_equal(y, kept[name])
    np.testing.assert_allclose(first["y0"], np.exp(-X[:, :2]), rtol=1e-5)


def test_results_are_never_kept() -> None:
    """Not even for constants: what the operator computes belongs to the program that runs, not to a cached one."""
    register(Halves)
    source = model(scale=1.0, size=2)
    source.graph.initializer.append(onnx.numpy_helper.from_array(X, "x"))
    del source.graph.input[:]
    bundle = convert(source).bundle
    np.testing.assert_allclose(lite_runtime.load(bundle).run({})["y0"], np.exp(-X[:, :2]), rtol=1e-5)
    custom.unregister(Halves)

    class Zeros(Halves):
        def compute(self, x: np.ndarray, **attributes: object) -> tuple[np.ndarray, ...]:
            return np.zeros_like(x[..., :2]), np.zeros_like(x[..., 2:])

    register(Zeros)
    assert (lite_runtime.load(bundle).run({})["y0"] == 1).all()


def test_registration_is_checked() -> None:
    register(Halves)
    cases = (
        (Halves, "already"),
        (type("A", (Halves,), {"domain": ""}), "domain of your own"),
        (type("B", (Halves,), {"name": "a::b"}), "without '::'"),
        (type("C", (Halves,), {"name": "C", "attributes": "scale;f"}), "name:kind"),
        (type("D", (CustomOperator,), {"domain": "test", "name": "D"}), "method compute"),
        (type("E", (Halves,), {"domain": "com.microsoft", "name": "QuickGelu"}), "already"),
    )
    for operator, words in cases:
        with pytest.raises(MsedgeError, match=words):
            register(operator)


def test_wrong_operands_in_a_model() -> None:
    register(Halves)
    with pytest.raises((MsedgeError, ShapeError), match="scale"):
        lite_runtime.load(convert(model()).bundle).run({"x": X})


def test_example() -> None:
    found = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.strip() == "[[0.  0.5]]"


def test_command_line(tmp_path: Path) -> None:
    """convert, run, verify against the reference, and inspect with the module; without it, one error."""
    code = "import sys; sys.path.insert(0, 'examples/custom'); import onnx, operators as o; "
    code += "onnx.save(o.model(), sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path / "m.onnx"], cwd=ROOT, check=True)
    source, bundle = str(tmp_path / "m.onnx"), str(tmp_path / "m.mslite")
    say = [sys.executable, "-m", "edge.cli"]

    def msedge(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*say, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)

    flag = ["--custom", str(EXAMPLE)]
    refused = msedge("convert", source, "-o", bundle)
    assert refused.returncode and "example::SoftThreshold" in refused.stderr and "--custom" in refused.stderr
    assert not (tmp_path / "m.mslite").exists()
    assert msedge("convert", source, "-o", bundle, *flag).returncode == 0
    assert "y" in msedge("run", bundle, "--random", "0", *flag).stdout
    absent = msedge("run", bundle, "--random", "0")
    assert absent.returncode and "example::SoftThreshold" in absent.stderr and "Traceback" not in absent.stderr
    assert msedge("inspect", bundle, *flag).returncode == 0
    assert msedge("bench", bundle, "--json", *flag).returncode == 0
    assert msedge("verify", bundle, bundle, *flag).returncode == 0
    assert "compare two bundles instead" in msedge("verify", source, bundle, *flag).stderr


def test_a_module_that_fails(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise RuntimeError('as it is')\n")
    for name, words in (
        (str(tmp_path / "bad.py"), "as it is"),
        ("no_such_module", "no_such_module"),
        ("no.py", "no.py"),
    ):
        found = CliRunner().invoke(app, ["run", "x.mslite", "--custom", name])
        assert found.exit_code == 2 and words in found.output
