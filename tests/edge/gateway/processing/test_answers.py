from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge.gateway.processing import Processing
from lite_runtime.graph import Array
from tests.edge.gateway.processing.files import port, ports

RNG = np.random.default_rng(2)
CLASSES = ["cat", "dog", "emu", "fox", "gnu"]


def answer(arrays_: dict[str, Array], names: list[str], *steps: dict[str, Any]) -> dict[str, Array]:
    """What the steps make of a model's outputs; shapes and types are as the ports say."""
    outer = [port(name, str(a.dtype), "n", *a.shape[1:]) for name, a in arrays_.items()]
    doc = {"version": 1, "outputs": [{"names": names, "of": list(arrays_), "steps": list(steps)}]}
    processing = Processing(doc, ports([port("x", "float32", "n", 2)], outer))
    made = processing.after(arrays_)
    assert list(made) == list(processing.ports.outputs)
    for name, array in made.items():
        found = processing.ports.outputs[name]
        assert array.dtype == found.dtype and array.shape[1:] == (found.shape or ())[1:], name
    return made


def of(array: Array, *steps: dict[str, Any]) -> Array:
    return answer({"y": array}, ["out"], *steps)["out"]


REALS = arrays(np.float32, (3, 5), elements=st.floats(-200, 200, width=32))


@given(REALS)
@settings(max_examples=50, deadline=None)
def test_softmax_and_sigmoid(logits: Array) -> None:
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(
        of(logits, {"step": "softmax"}), powers / powers.sum(1, keepdims=True), rtol=1e-6, atol=1e-45
    )
    np.testing.assert_allclose(of(logits, {"step": "sigmoid"}), 1 / (1 + np.exp(-wide)), rtol=1e-6, atol=1e-45)


@given(arrays(np.float32, (3, 5), elements=st.integers(-2, 2)), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_the_best_few(scores: Array, k: int) -> None:
    made = answer({"y": scores}, ["values", "which"], {"step": "top_k", "k": k})
    for row, values, which in zip(scores.tolist(), made["values"].tolist(), made["which"].tolist(), strict=True):
        order = sorted(range(5), key=lambda i: (-row[i], i))[:k]
        assert which == order and values == [row[i] for i in order]
    named = answer({"y": scores}, ["values", "which"], {"step": "top_k", "k": k, "labels": CLASSES})
    assert named["which"].tolist() == [[CLASSES[i] for i in row] for row in made["which"].tolist()]
    assert of(scores, {"step": "argmax"}).tolist() == scores.argmax(1).tolist()
    assert of(scores, {"step": "argmax", "labels": CLASSES}).tolist() == [CLASSES[i] for i in scores.argmax(1)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "uint64", "float16", "float64"])
def test_the_best_of_other_types(dtype: str) -> None:
    low, high = (0, 2**64 - 1) if dtype == "uint64" else (-100, 100) if dtype != "uint8" else (0, 255)
    values = np.array([[low, high, low, 7, high]], dtype)
    assert answer({"y": values}, ["v", "i"], {"step": "top_k", "k": 5})["i"].tolist() == [[1, 4, 3, 0, 2]]


def test_nan_is_never_the_best() -> None:
    scores = np.array([[np.nan, 1, np.nan, 3, -np.inf]], np.float32)
    assert answer({"y": scores}, ["v", "i"], {"step": "top_k", "k": 5})["i"].tolist() == [[3, 1, 4, 0, 2]]
    assert np.isnan(of(scores, {"step": "softmax"})).all()


def test_threshold_and_dequantize() -> None:
    made = of(np.array([[0, 128, 255]], np.uint8), {"step": "dequantize", "scale": 0.5, "zero_point": 128})
    np.testing.assert_array_equal(made, [[-64, 0, 63.5]])
    made = of(
        np.array([[0, 128, 255]], np.uint8),
        {"step": "dequantize", "scale": 0.5, "zero_point": 128},
        {"step": "threshold", "value": 0},
    )
    assert made.tolist() == [[False, True, True]]


# boxes


def onnx_nms(
    boxes: Array, scores: Array, form: int, detections: int, iou: float, score: float
) -> list[tuple[int, int, int]]:
    """(row, class, box) of ONNX's NonMaxSuppression; scores [n, classes, boxes]."""
    const = [onnx.numpy_helper.from_array(np.array([v], t), n) for n, v, t in
             (("m", detections, np.int64), ("i", iou, np.float32), ("s", score, np.float32))]  # fmt: skip
    node = onnx.helper.make_node("NonMaxSuppression", ["b", "c", "m", "i", "s"], ["y"], center_point_box=form)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [value("b", 1, boxes.shape), value("c", 1, scores.shape)], [value("y", 7, ["k", 3])], const
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [tuple(row) for row in session.run(None, {"b": boxes, "c": scores})[0].tolist()]


@pytest.mark.parametrize(("form", "number"), [("yxyx", 0), ("xyxy", 0), ("cxcywh", 1)])
@pytest.mark.parametrize("seed", range(6))
def test_kept_boxes_are_those_of_onnx_runtime(form: str, number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 10, (2, 60, 4)).astype(np.float32)
    scores = rng.permutation(2 * 3 * 60).reshape(2, 3, 60).astype(np.float32) / 360
    want = onnx_nms(boxes, scores, number, 60, 0.3, 0.4)
    step = {"step": "nms", "boxes": form, "iou": 0.3, "score": 0.4, "detections": 180, "classes_first": True}
    made = answer({"b": boxes, "s": scores}, ["boxes", "scores", "classes", "count"], step)
    for row in range(2):
        count = int(made["count"][row])
        found = [(-float(scores[row, c, b]), c, b) for r, c, b in want if r == row]
        assert count == len(found) > 5
        for i, (negative, c, b) in enumerate(sorted(found)):
            assert (made["scores"][row, i], made["classes"][row, i]) == (-negative, c)
            np.testing.assert_array_equal(made["boxes"][row, i], boxes[row, b])
        assert not made["boxes"][row, count:].any() and not made["scores"][row, count:].any()
    turned = answer(
        {"b": boxes, "s": np.ascontiguousarray(scores.swapaxes(1, 2))},
        ["boxes", "scores", "classes", "count"],
        step | {"classes_first": False},
    )
    assert all((turned[name] == made[name]).all() for name in made)


def test_boxes_by_hand() -> None:
    boxes = np.array([[[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [50, 50, 60, 60], [5, 5, 5, 5]]], np.float32)
    scores = np.array([[[0, 0.9], [0, 0.8], [0.95, 0.0], [0.1, 0.3], [0.1, 0.7]]], np.float32)
    names = ["boxes", "scores", "labels", "count"]
    step = {"step": "nms", "score": 0.2, "labels": ["a", "b"], "detections": 4}
    made = answer({"b": boxes, "s": scores}, names, step)
    assert made["count"].tolist() == [4]
    assert made["labels"].tolist() == [["a", "b", "b", "b"]]
    np.testing.assert_array_equal(made["scores"], np.array([[0.95, 0.9, 0.7, 0.3]], np.float32))
    without = answer({"b": boxes, "s": scores}, names, step | {"background": 0, "detections": 2})
    assert without["labels"].tolist() == [["b", "b"]] and without["scores"][0, 1] == np.float32(0.7)
    none = answer({"b": boxes, "s": scores}, names, step | {"score": 2})
    assert none["count"].tolist() == [0] and none["labels"].tolist() == [[""] * 4]


def test_unusual_boxes_cause_no_errors() -> None:
    boxes = np.array(
        [[[np.nan] * 4, [np.inf] * 4, [-np.inf, 0, np.inf, 5], [0, 0, 3e38, 3e38], [1, 1, 0, 0]]], np.float32
    )
    scores = np.array([[[0.9], [np.nan], [np.inf], [0.8], [0.7]]], np.float32)
    for form in ("xyxy", "cxcywh"):
        made = answer({"b": boxes, "s": scores}, ["a", "b", "c", "d"], {"step": "nms", "boxes": form})
        assert 1 <= made["d"][0] <= 4 and made["b"][0, 0] == np.inf


def test_only_candidates_are_examined() -> None:
    boxes = np.stack([np.arange(50) * 20.0, np.zeros(50), np.arange(50) * 20.0 + 10, np.full(50, 10)], 1)[None].astype(
        np.float32
    )
    scores = RNG.uniform(0.5, 1, (1, 50, 1)).astype(np.float32)
    made = answer({"b": boxes, "s": scores}, ["a", "b", "c", "d"], {"step": "nms", "candidates": 8})
    assert made["d"].tolist() == [8]
