"""Linear models and features of ai.onnx.ml, as ONNX's operators, against ONNX Runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import lite_runtime
from converter import convert, to_ir

ROWS, WIDTH = 40, 3
RANDOM = np.random.default_rng(3)


def numbers(*shape: int) -> tuple[float, ...]:
    return tuple(RANDOM.normal(size=shape).astype(np.float32).ravel().tolist())


def built(op: str, attrs: dict[str, Any], dtype: int = 1, outputs: int = 1, columns: Any = None) -> onnx.ModelProto:
    inputs = ["x"] if columns is None else ["x", "columns"]
    node = helper.make_node(op, inputs, [f"y{i}" for i in range(outputs)], domain="ai.onnx.ml", **attrs)
    held = [] if columns is None else [onnx.numpy_helper.from_array(np.array(columns), "columns")]
    ends = [onnx.ValueInfoProto(name=name) for name in node.output]
    x = helper.make_tensor_value_info("x", dtype, ["n", WIDTH])
    graph = helper.make_graph([node], "g", [x], ends, held)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def typed(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x})
    for value, array in zip(model.graph.output, found, strict=True):
        kind = onnx.TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = ["n", *array.shape[1:]]
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    return list(found)


def agree(op: str, attrs: dict[str, Any], x: np.ndarray | None = None, **options: Any) -> None:
    """The converted model has no operator of ai.onnx.ml and gives ONNX Runtime's results."""
    x = RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32) if x is None else x
    model = built(op, attrs, helper.np_dtype_to_tensor_dtype(x.dtype), **options)
    wanted = typed(model, x)
    assert "ai.onnx.ml" not in {node.domain for node in to_ir(model).graph}
    made = convert(model)
    text = any(array.dtype == object for array in wanted)
    assert text or not made.report.reference_ops
    found = lite_runtime.load(made.bundle).run({"x": x})
    for name, one in zip(found, wanted, strict=True):
        assert found[name].shape == one.shape
        if one.dtype.kind == "f":
            np.testing.assert_allclose(found[name], one, rtol=1e-4, atol=1e-5)
        else:
            assert found[name].tolist() == one.tolist()


@pytest.mark.parametrize("targets", (1, 2))
def test_linear_regressor(targets: int) -> None:
    attrs = {"coefficients": numbers(targets, WIDTH), "intercepts": numbers(targets), "targets": targets}
    agree("LinearRegressor", attrs)


@pytest.mark.parametrize("transform", ("NONE", "LOGISTIC", "SOFTMAX"))
@pytest.mark.parametrize("labels", ({"classlabels_ints": (4, 0, 9)}, {"classlabels_strings": ("a", "b", "c")}), ids=str)
def test_linear_classifier(transform: str, labels: dict[str, Any]) -> None:
    attrs = {"coefficients": numbers(3, WIDTH), "intercepts": numbers(3), "post_transform": transform, **labels}
    agree("LinearClassifier", attrs, outputs=2)


@pytest.mark.parametrize("dtype", ("float32", "int64"))
def test_linear_classifier_of_numbers(dtype: str) -> None:
    attrs = {"coefficients": numbers(2, WIDTH), "intercepts": numbers(2), "classlabels_ints": (0, 1)}
    agree("LinearClassifier", attrs, RANDOM.integers(-5, 5, (ROWS, WIDTH)).astype(dtype), outputs=2)


@pytest.mark.parametrize("transform", ("NONE", "LOGISTIC", "SOFTMAX"))
def test_linear_classifier_of_one_score(transform: str) -> None:
    attrs = {"coefficients": numbers(WIDTH), "intercepts": numbers(1), "classlabels_ints": (3, 5)}
    agree("LinearClassifier", {**attrs, "post_transform": transform}, outputs=2)


@pytest.mark.parametrize("kernel", ("LINEAR", "POLY", "SIGMOID"))
@pytest.mark.parametrize("one_class", (0, 1))
def test_support_vector_regressor(kernel: str, one_class: int) -> None:
    attrs = {"coefficients": numbers(4), "support_vectors": numbers(4, WIDTH), "n_supports": 4, "rho": (0.3,)}
    params = (0.4, 0.2, 2.0)
    agree("SVMRegressor", {**attrs, "kernel_type": kernel, "kernel_params": params, "one_class": one_class})


@pytest.mark.parametrize("kernel", ("LINEAR", "POLY", "SIGMOID"))
@pytest.mark.parametrize("per_class", ((2, 3), (2, 0, 3), (1, 2, 1, 2)), ids=str)
@pytest.mark.parametrize("transform", ("NONE", "LOGISTIC", "SOFTMAX"))
def test_support_vector_classifier(kernel: str, per_class: tuple[int, ...], transform: str) -> None:
    count, total = len(per_class), sum(per_class)
    attrs = {
        "coefficients": numbers(count - 1, total), "support_vectors": numbers(total, WIDTH), "kernel_type": kernel,
        "kernel_params": (0.4, 0.2, 2.0), "rho": numbers(count * (count - 1) // 2), "vectors_per_class": per_class,
        "classlabels_ints": tuple(range(10, 10 + count)), "post_transform": transform,
    }  # fmt: skip
    agree("SVMClassifier", attrs, outputs=2)


def test_machines_that_stay_by_reference() -> None:
    attrs = {"coefficients": numbers(4), "support_vectors": numbers(4, WIDTH), "n_supports": 4, "rho": (0.3,)}
    model = built("SVMRegressor", {**attrs, "kernel_type": "RBF", "kernel_params": (0.4, 0.0, 0.0)})
    (wanted,) = typed(model, x := RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32))
    made = convert(model)
    assert made.report.reference_ops == {"SVMRegressor": 1}
    np.testing.assert_allclose(lite_runtime.load(made.bundle).run({"x": x})["y0"], wanted, rtol=1e-4, atol=1e-5)


NAN = float("nan")


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Scaler", {"offset": numbers(WIDTH), "scale": numbers(WIDTH)}),
        ("Scaler", {"offset": numbers(1), "scale": numbers(1)}),
        *(("Normalizer", {"norm": norm}) for norm in ("L1", "L2")),
        ("Binarizer", {"threshold": 0.3}),
        ("Imputer", {"imputed_value_floats": numbers(WIDTH), "replaced_value_float": NAN}),
        ("Imputer", {"imputed_value_floats": numbers(1), "replaced_value_float": 0.0}),
    ],
    ids=str,
)
def test_features(op: str, attrs: dict[str, Any]) -> None:
    x = RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32)
    x[0] = 0
    if op == "Imputer":
        x[1] = attrs["replaced_value_float"]
    agree(op, attrs, x)


def test_normalizer_of_largest_elements() -> None:
    agree("Normalizer", {"norm": "MAX"}, RANDOM.random((ROWS, WIDTH)).astype(np.float32))


@pytest.mark.parametrize("dtype", ("float32", "int64"))
def test_columns(dtype: str) -> None:
    x = RANDOM.integers(-9, 9, (ROWS, WIDTH)).astype(dtype)
    agree("ArrayFeatureExtractor", {}, x, columns=[[2, 0]])


def test_a_chain_becomes_native_as_a_whole() -> None:
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        helper.make_node("Imputer", ["s"], ["i"], domain="ai.onnx.ml", imputed_value_floats=[1.0],
                         replaced_value_float=NAN),
        helper.make_node("LinearRegressor", ["i"], ["y0"], domain="ai.onnx.ml", coefficients=numbers(WIDTH)),
    ]  # fmt: skip
    model = built("Scaler", {})
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (wanted,) = typed(model, x := np.array([[1, NAN, 2], [3, 4, 5]], np.float32))
    made = convert(model)
    assert not made.report.reference_ops
    np.testing.assert_allclose(lite_runtime.load(made.bundle).run({"x": x})["y0"], wanted, rtol=1e-5)
