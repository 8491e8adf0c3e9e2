"""Records are true: facts about ONNX are checked against ONNX, traits against the references."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node, Spec
from lite_runtime.kernels import _opcodes
from lite_runtime.operators import FAMILIES, OPERATORS, attributes, epilogues, family, having
from lite_runtime.operators.record import parsed
from lite_runtime.reference import activation

ROOT = Path(__file__).parents[3]
OURS = {"msedge", "com.microsoft"}
"""Domains whose operators ONNX does not describe."""


def names(*families: str) -> set[str]:
    return {record.name for name in families for record in family(name)}


# -- facts ------------------------------------------------------------------------------------------------------------


def test_domains_and_versions_are_onnxs() -> None:
    defs = pytest.importorskip("onnx.defs")
    first: dict[tuple[str, str], int] = {}
    for schema in defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        first[key] = min(schema.since_version, first.get(key, schema.since_version))
    known = {name for domain, name in first if domain in ("", "ai.onnx.ml")}
    for op, record in OPERATORS.items():
        if record.domain in OURS:
            assert op not in known, op
        else:
            assert first[record.domain, op] == record.since, op


def test_defaults_are_those_of_the_definitions() -> None:
    import inspect

    for op in OPERATORS:
        defaults = {name: a.default for name, a in attributes(op).items() if a.default is not None}
        if defaults:
            parameters = inspect.signature(reference.DEFINITIONS[op]).parameters
            assert defaults == {name: parameters[name].default for name in defaults}, op


def test_defaults_are_onnxs() -> None:
    onnx = pytest.importorskip("onnx")
    for op, record in OPERATORS.items():
        for name, attribute in attributes(op).items():
            if attribute.default is not None and record.domain not in OURS:
                theirs = onnx.helper.get_attribute_value(
                    onnx.defs.get_schema(op, domain=record.domain).attributes[name].default_value
                )
                assert np.float32(theirs) == np.float32(attribute.default), (op, name)


def test_families_are_the_files() -> None:
    files = {path.stem for path in (ROOT / "lite_runtime/operators").glob("*.py")}
    assert set(FAMILIES) == files - {"__init__", "record"}
    assert len(OPERATORS) == sum(len(family(name)) for name in FAMILIES)


def test_a_name_reads_no_more_families_than_it_needs() -> None:
    code = "import sys; from lite_runtime.operators import OPERATORS as o; o['Relu']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    read = {name.rpartition(".")[2] for name in done.stdout.split() if name.startswith("lite_runtime.operators.")}
    assert read == {"record", "elementwise", "activation"}


@pytest.mark.parametrize("text", ["alpha", "alpha:x", "alpha:f!!", "alpha:f=1 :i", "2a:i", "mode:s(a|b)c"])
def test_attributes_that_follow_no_rule_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an attribute as name:kind"):
        parsed(text)


def test_epilogues_are_the_references() -> None:
    wanted = {name: defaults for name, (_, defaults) in activation.ACTIVATIONS.items() if name}
    assert wanted == {n: {a: value for a, _, value in row.parameters} for n, row in epilogues().items()}
    assert [row.code for row in epilogues().values()] == list(range(1, 1 + len(wanted)))


def test_instructions_have_the_kernels_order() -> None:
    """The kernels' file says it again, because kept kernels are known by it."""
    tree = ast.parse((ROOT / "lite_runtime/kernels/elementwise.py").read_bytes())
    tables = {
        node.targets[0].id: [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    assert tables["_FLOAT_TABLE"] == list(_opcodes.FLOAT_OPS)
    assert tables["_INT_TABLE"] == list(_opcodes.INT_OPS)


def test_what_an_operator_runs_as_has_its_attributes() -> None:
    for op, record in OPERATORS.items():
        if record.runs_as:
            other = OPERATORS[record.runs_as]
            assert other.f32 >= 0 and other.inputs == record.inputs, op
            assert set(attributes(op)) == set(attributes(record.runs_as)), op


# -- traits -----------------------------------------------------------------------------------------------------------

_SPECIAL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "Gelu": (("float32",), {}),
    "SwiGLU": (("float32", "float32"), {}),
    "PRelu": (("float32", "float32"), {}),
    "Clip": (("float32",), {}),
    "Pow": (("float32", "float32"), {}),
    "BitShift": (("uint8", "uint8"), {"direction": "LEFT"}),
    "Where": (("bool", "float32", "float32"), {}),
    "Cast": (("float32",), {"to": 6}),
    "CastLike": (("float32", "int32"), {}),
    "Identity": (("float32",), {}),
}
"""Operand types and attributes of elementwise operators whose record has no element types."""


def operands(op: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    record = OPERATORS[op]
    if record.types is None:
        return _SPECIAL[op]
    attrs = {"alpha": 0.25} if op == "LeakyRelu" else {}  # a number that float32 has
    dtype = "float32" if not record.types or "float32" in record.types else record.types[0]
    return (dtype,) * min(max(record.inputs[0], 2 if record.inputs[1] > 1 else 1), 3), attrs


def drawn(dtype: str, *shape: int, seed: int = 0, low: float = -3.0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("float"):
        return rng.uniform(low, 3.0, shape).astype(dtype)
    return rng.integers(0, 7, shape).astype(dtype)


def made(op: str, given: list[Array], attrs: dict[str, Any]) -> Array:
    node = Node(op, tuple(f"x{i}" for i in range(len(given))), ("y",), attrs)
    return np.asarray(reference.evaluate(node, given)[0])


def test_elementwise_operators_are_those_of_two_files() -> None:
    assert having("elementwise") == names("elementwise", "activation") | {"Identity"}


@pytest.mark.parametrize("op", sorted(having("elementwise")))
def test_elementwise_operators_treat_every_element_alike(op: str) -> None:
    types, attrs = operands(op)
    given = [drawn(dtype, 24, seed=i) for i, dtype in enumerate(types)]
    order = np.random.default_rng(1).permutation(24)
    np.testing.assert_array_equal(made(op, [x[order] for x in given], attrs), made(op, given, attrs)[order])


def spread(op: str) -> tuple[int, ...] | None:
    """The shape inferred for operands (3, 1), (1, 4) and (1, 1); None where they are refused."""
    from lite_runtime.ops.registry import INFERS, Inference

    types, attrs = operands(op)
    specs = [Spec(dtype, shape) for dtype, shape in zip(types, ((3, 1), (1, 4), (1, 1)), strict=False)]
    node = Node(op, tuple(f"x{i}" for i in range(len(specs))), ("y",), attrs)
    try:
        return INFERS[op](Inference(node, specs, [None] * len(specs)))[0].shape
    except ShapeError:
        return None


def test_operators_that_broadcast_say_so() -> None:
    import lite_runtime.ops  # noqa: F401  # fills the table

    several = {op for op in having("elementwise") if len(operands(op)[0]) > 1}
    assert {op for op in several if spread(op) == (3, 4)} == having("broadcasts")


def wraps(op: str) -> bool:
    """Whether results in 8 bits are others than in 64."""
    count = len(operands(op)[0])
    attrs = {"direction": "LEFT"} if op == "BitShift" else {}
    if op in ("Cast", "CastLike"):
        attrs = {"to": 3} if op == "Cast" else {}
        like = [np.zeros(2, np.int8)] if op == "CastLike" else []
        return bool((made(op, [np.array([300, 5]), *like], attrs) != [300, 5]).any())
    types = OPERATORS[op].types or ("int8", "uint8")
    for dtype, values in (("int8", (-128, -1, 1, 3, 127)), ("uint8", (0, 1, 3, 200, 255))):
        if dtype in types:
            right = (1, 2, 3) if op in ("Pow", "BitShift") else [v for v in values if v]
            grid = np.meshgrid(values, right)[:count] if count > 1 else [np.array(values)]
            wide = [x.ravel().astype(np.int64) for x in grid]
            if (made(op, [x.astype(dtype) for x in wide], attrs) != made(op, wide, attrs)).any():
                return True
    return False


def test_operators_whose_integers_may_overflow_say_so() -> None:
    integer = {op for op in having("elementwise") if OPERATORS[op].i64 >= 0 and OPERATORS[op].types != ("bool",)}
    integer |= {"Pow", "BitShift", "Cast", "CastLike"}
    integer -= {"Where", "Equal", "Less", "LessOrEqual"}  # which choose or compare
    assert {op for op in integer if wraps(op)} == having("wraps")


def rounded_once(op: str) -> bool:
    """Whether float32 results are the float64 ones, rounded."""
    types, attrs = operands(op)
    count = min(len(types), 2) if OPERATORS[op].inputs[1] > 3 else len(types)
    given = [drawn(dtype, 4096, seed=i, low=0.01 if op == "Pow" else -3.0) for i, dtype in enumerate(types[:count])]
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in given]
    with np.errstate(all="ignore"):
        wanted = made(op, wide, attrs)
    got = made(op, given, attrs)
    return bool(np.array_equal(got, wanted.astype(got.dtype), equal_nan=got.dtype.kind == "f"))


def test_operators_that_arithmetic_defines_to_the_last_bit_say_so() -> None:
    ops = having("elementwise") - {"Erf"}  # which the reference computes in float64
    assert {op for op in ops if rounded_once(op)} == having("elementwise", "exact")
    assert having("scaled") <= having("exact")  # the references of these are exact: see test_qelementwise.py


def scales_along(op: str) -> bool:
    types, attrs = operands(op)
    given = [drawn(dtype, 256, seed=i) for i, dtype in enumerate(types)]
    result = made(op, given, attrs)
    return all(
        np.array_equal(made(op, [given[0] * np.float32(s), *given[1:]], attrs), result * np.float32(s))
        for s in (2.0, 0.25)
    )


def test_homogeneous_operators_say_so() -> None:
    floats = {op for op in having("elementwise") if operands(op)[0][0] == "float32" and not OPERATORS[op].result}
    one = {op for op in floats if OPERATORS[op].unary} | {"PRelu"}
    assert {op for op in one if op != "Cast" and scales_along(op)} == having("homogeneous")


_ON_IMAGES: dict[str, Callable[[Array], tuple[list[Array], dict[str, Any]]]] = {
    **{
        op: lambda x: ([x, np.array([2], np.int64)], {})
        for op in sorted(OPERATORS)
        if op.startswith("Reduce") and op != "ReduceLogSum"
    },
    "ReduceLogSum": lambda x: ([np.abs(x), np.array([2], np.int64)], {}),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), lambda x: ([x], {})),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), lambda x: ([x], {"kernel_shape": (2, 2)})),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean", "Add", "Mul", "Sub"), lambda x: ([x, x[::-1] * np.float32(0.7)], {})),
    "CumSum": lambda x: ([x, np.array(1)], {}),
}


def test_operators_that_select_say_so() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    cases = {op: make(x) for op, make in _ON_IMAGES.items()}
    chosen = {op for op, (given, attrs) in cases.items() if np.isin(made(op, given, attrs), np.concatenate(
        [g.ravel() for g in given if g.dtype == np.float32])).all()}  # fmt: skip
    assert chosen == having("selects")


def test_traits_that_follow_from_other_columns() -> None:
    kinds = {op: attributes(op) for op in OPERATORS}
    assert having("random") == {op for op, given in kinds.items() if "seed" in given} - {"Dropout"}
    graphs = {op for op, given in kinds.items() if any(a.kind == "G" and a.required for a in given.values())}
    assert having("control") == graphs
    assert having("optional_first") == having("control") - {"If"}
    assert having("recurrent") == names("recurrent")
    assert having("reduction") == {op for op in OPERATORS if op.startswith("Reduce")}
    statistics = names("normalize") - {"BatchNormalization", "Softmax", "LogSoftmax", "Hardmax"}
    assert having("normalizes") == statistics
    assert having("view") < having("movement") < having("idle")


def test_lists_that_only_the_records_have() -> None:
    """Removing one of these from a record changes what is planned or trained, and nothing else would notice."""
    assert having("shape_only") == {"Shape", "Size"}
    assert having("grows") == set("ConstantOfShape EyeLike Expand OneHot Pad Range Resize Tile".split())
    assert having("along_axis") == set("Softmax LogSoftmax Hardmax LpNormalization".split())
    assert having("idle") - having("movement") == set(
        "BitCast CenterCropPad Concat Constant ConstantOfShape Dropout EyeLike LookupTable OneHot Pad Range "
        "ScatterElements ScatterND Shape Size TensorScatter Trilu Unpack4 Where".split()
    )
    sums = having("reduction") - {"ReduceMax", "ReduceMin"}
    assert having("wide") == sums | having("normalizes") | having("recurrent") | set(
        "BatchNormalization CumSum DequantizeLinear DFT DynamicQuantizeLinear Erf Exp If Log LogSoftmax Loop Mean "
        "NegativeLogLikelihoodLoss Pow QuantizeLinear Reciprocal STFT Scan Softmax SoftmaxCrossEntropyLoss Softplus "
        "Sum".split()
    )
