"""The registry, and the evaluation of nodes and graphs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from lite_runtime import reference
from lite_runtime.errors import InputError, ShapeError, UnsupportedOpError
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.operators import OPERATORS
from lite_runtime.reference import DEFINITIONS, evaluate, run
from tests.lite_runtime.reference.oracle import floats, ours

FOLDER = Path(inspect.getfile(reference)).parent
LOWERED = {
    *("Scatter", "Upsample"),  # deprecated; the converter upgrades them
    "Gradient",  # differentiation is the converter's work
}


def test_records_name_the_file_that_defines_their_operator() -> None:
    for op, function in DEFINITIONS.items():
        module = inspect.unwrap(function).__module__
        assert module == f"lite_runtime.reference.{OPERATORS[op].reference}", op


def test_every_onnx_operator_has_a_definition() -> None:
    names = {s.name for s in onnx.defs.get_all_schemas() if not s.domain.startswith("com.")}
    assert names - set(DEFINITIONS) <= LOWERED


@pytest.mark.parametrize("schema", onnx.defs.get_all_schemas(), ids=lambda s: s.name)
def test_definitions_take_onnxs_attributes_with_its_defaults(schema: onnx.defs.OpSchema) -> None:
    if schema.name not in DEFINITIONS or schema.name == "Constant":
        return
    parameters = inspect.signature(DEFINITIONS[schema.name]).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and schema.name not in {"Conv", "MatMul"}:
        return
    for name, attribute in schema.attributes.items():
        assert name in parameters, name
        if attribute.default_value.name and not attribute.required:
            default = _plain(onnx.helper.get_attribute_value(attribute.default_value))
            wanted = pytest.approx(default) if isinstance(default, float) else default
            assert parameters[name].default == wanted, name


def _plain(value: object) -> object:
    if isinstance(value, list):
        return tuple(_plain(v) for v in value)
    return value.decode() if isinstance(value, bytes) else value


def test_importing_needs_numpy_alone_and_loads_no_family() -> None:
    code = "import sys, lite_runtime.reference; print(*(m for m in sys.modules if 'reference.' in m or m == 'onnx'))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER.parents[1]
    )
    assert set(out.stdout.split()) == {"lite_runtime.reference.registry"}


def test_files_import_nothing_beyond_numpy_and_the_package() -> None:
    allowed = {"__future__", "numpy", "lite_runtime", *sys.stdlib_module_names}
    for path in FOLDER.glob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith(("import ", "from ")):
                assert line.split()[1].split(".")[0] in allowed, f"{path.name}: {line}"


def values(*names: str, dtype: str = "float32") -> tuple[Value, ...]:
    return tuple(Value(name, dtype, (2,)) for name in names)


CHAIN = Graph(
    values("x"),
    values("x", "z"),
    (Node("Add", ("x", "one"), ("y",)), Node("Relu", ("y",), ("z",))),
    {"one": np.ones(2, np.float32)},
    "chain",
)


def test_run() -> None:
    x = floats(2)
    results = run(CHAIN, {"x": x})
    assert list(results) == ["x", "z"]
    np.testing.assert_array_equal(results["z"], np.maximum(x + 1, 0))


def test_an_input_that_is_a_constant_may_be_left_out_or_overridden() -> None:
    graph = Graph((*CHAIN.inputs, *values("one")), CHAIN.outputs, CHAIN.nodes, CHAIN.constants)
    x = floats(2)
    np.testing.assert_array_equal(run(graph, {"x": x})["z"], run(CHAIN, {"x": x})["z"])
    np.testing.assert_array_equal(run(graph, {"x": x, "one": -x})["z"], [0, 0])


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "'x' is missing"),
        ({"x": floats(2), "w": floats(2)}, r"got also \['w'\]"),
        ({"x": floats(2, dtype=np.float64)}, "expected float32, got float64"),
        ({"x": floats(3)}, r"expected shape \(2,\), got \(3,\)"),
        ({"x": [1.0, 2.0]}, "expected a NumPy array, got list"),
    ],
)
def test_wrong_inputs_are_refused(inputs: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        run(CHAIN, inputs)


def test_graphs_that_do_not_hang_together_are_refused() -> None:
    with pytest.raises(ShapeError, match="a value named 'nowhere'"):
        run(Graph((), values("y"), (Node("Relu", ("nowhere",), ("y",)),), {}), {})
    with pytest.raises(ShapeError, match=r"got none for \['y'\]"):
        run(Graph((), values("y"), (), {}), {})


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="no operator 'Frobnicate'"):
        ours("Frobnicate", [floats(2)])


def test_counts_of_inputs_and_outputs_are_checked() -> None:
    with pytest.raises(ShapeError, match="at least 2 inputs, got none for b"):
        ours("Add", [floats(2)])
    with pytest.raises(ShapeError, match="at most 1 inputs, got 2"):
        ours("Relu", [floats(2), floats(2)])
    with pytest.raises(ShapeError, match="at most 1 outputs, got 2"):
        ours("Relu", [floats(2)], outputs=2)


def test_results_are_arrays_even_of_rank_zero() -> None:
    (y,) = evaluate(Node("Add", ("a", "b"), ("c",)), [np.float32(1), np.float32(2)])
    assert isinstance(y, np.ndarray)
    assert (y.shape, y.dtype) == ((), np.float32)


def test_inputs_are_never_written_to() -> None:
    for op, inputs in (
        ("ScatterND", [floats(4), np.array([[1]]), floats(1)]),
        ("ReverseSequence", [floats(3, 2), np.array([2, 3])]),
        ("TensorScatter", [floats(1, 1, 4, 2), floats(1, 1, 2, 2)]),
        ("CumSum", [floats(4), np.array(0)]),
    ):
        before = [x.copy() for x in inputs]
        for x in inputs:
            x.flags.writeable = False
        ours(op, inputs)
        for x, old in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(x, old)


def test_a_sequence_where_a_tensor_belongs_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"Add 'it'.*a list"):
        ours("Add", [[floats(1)], floats(1)])


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("Conv", [(0, 3, 5, 5), (4, 3, 3, 3)], {}),
        ("ConvTranspose", [(0, 3, 5, 5), (3, 4, 3, 3)], {}),
        ("MaxPool", [(0, 3, 5, 5)], {"kernel_shape": (2, 2)}),
        ("GroupNormalization", [(0, 4, 5), (4,), (4,)], {"num_groups": 2}),
        ("Attention", [(0, 5, 8)] * 3, {"q_num_heads": 2, "kv_num_heads": 2}),
        ("ReduceMean", [(0, 3)], {}),
        ("Softmax", [(0, 3)], {}),
        ("LSTM", [(4, 0, 3), (1, 8, 3), (1, 8, 2)], {}),
        ("Resize", [(0, 3, 4, 4), (0,), (4,)], {}),
    ],
)
def test_empty_batches(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, object]) -> None:
    inputs = [floats(*s, low=1) for s in shapes]
    if op == "Resize":
        inputs[2] = np.array([1, 1, 2, 2], np.float32)
    (y,) = ours(op, inputs, attrs)
    assert y.dtype == np.float32
    assert 0 in y.shape or op == "ReduceMean"
