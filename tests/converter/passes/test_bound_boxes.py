"""Non-maximum suppression in models: natively up to the rows that are meant, and back as ONNX's own operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import convert
from tests import oracles
from tests.converter.support import Builder


def crowd(n: int, classes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    low = rng.uniform(0, 3, (1, n, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.2, 1.5, (1, n, 2))], -1).astype(np.float32)
    return {"boxes": boxes, "scores": rng.permuted(np.linspace(0, 1, classes * n, dtype=np.float32)).reshape(1, -1, n)}


def theirs(model: bytes, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = oracles.session(onnx.load_from_string(model), optimised=False)
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, given), strict=True))


@pytest.mark.parametrize("open_sizes", [False, True])
def test_only_the_slice_waits_for_the_number_of_rows(open_sizes: bool) -> None:
    b = Builder(20)
    n, classes = ("n", "c") if open_sizes else (60, 3)
    boxes, scores = b.input("boxes", [1, n, 4]), b.input("scores", [1, classes, n])
    limits = [b.const([v], np.float32) for v in (0.3, 0.4)]
    rows = b("NonMaxSuppression", boxes, scores, b.const([7], np.int64), *limits)
    score = b("GatherND", scores, rows)  # what follows is planned for the number of rows found
    model = b.model(rows, score)
    loaded = lite_runtime.load(convert(model).bundle)
    for n in (60, 60) if not open_sizes else (60, 2, 25):
        given = crowd(n, 3)
        got = loaded.run(given)
        for name, wanted in theirs(model.SerializeToString(), given).items():
            np.testing.assert_array_equal(got[name], wanted)
        assert loaded.cost(given).reference == ("Slice",)


def test_nothing_is_planned_for_a_number_of_rows_that_nothing_follows() -> None:
    b = Builder(20)
    boxes, scores = b.input("boxes", [1, 40, 4]), b.input("scores", [1, 2, 40])
    rows = b("NonMaxSuppression", boxes, scores, b.const([9], np.int64), b.const([0.3], np.float32))
    model = b.model(rows)
    loaded = lite_runtime.load(convert(model).bundle)
    runs = [crowd(40, 2), {name: array[:, ::-1].copy() for name, array in crowd(40, 2).items()}]
    runs[1]["boxes"][...] = [0, 0, 1, 1]  # one row for each class
    got = [loaded.run(given)[rows] for given in runs]
    for given, found in zip(runs, got, strict=True):  # the second run does not change the first one's result
        np.testing.assert_array_equal(found, theirs(model.SerializeToString(), given)[rows])
    assert len(got[0]) > len(got[1])
    assert loaded.cost(runs[0]).reference == ("Slice",)
    bound = loaded._executor("predict").bound(runs[0])
    assert bound.rest is not None and not bound.rest._plans


def test_a_computed_number_of_boxes_stays_with_the_reference() -> None:
    b = Builder(20)
    most = b.input("most", [1], np.int64)
    rows = b("NonMaxSuppression", b.input("boxes", [1, 20, 4]), b.input("scores", [1, 2, 20]), most)
    model = b.model(rows)
    given = {**crowd(20, 2), "most": np.array([3])}
    (wanted,) = theirs(model.SerializeToString(), given).values()
    np.testing.assert_array_equal(lite_runtime.load(convert(model).bundle).run(given)[rows], wanted)


@pytest.mark.parametrize("least", [0.2, 2.0])
def test_export(least: float) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("NonMaxSuppressionPadded", ["boxes", "scores", "m", "o", "l"], ["rows", "count"],
                            domain="msedge")  # fmt: skip
    limits = {"m": np.array([5]), "o": np.array([0.3], np.float32), "l": np.array([least], np.float32)}
    graph = helper.make_graph(
        [node],
        "g",
        [value("boxes", TensorProto.FLOAT, [1, 30, 4]), value("scores", TensorProto.FLOAT, [1, 2, 30])],
        [value("rows", TensorProto.INT64, [10, 3]), value("count", TensorProto.INT64, [1])],
        [numpy_helper.from_array(array, name) for name, array in limits.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("msedge", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    given = crowd(30, 2)
    wanted = lite_runtime.load(convert(model).bundle).run(given)
    for name, array in theirs(convert(model, to="onnx").bundle, given).items():
        np.testing.assert_array_equal(array, wanted[name])
    assert bool(wanted["count"][0]) == (least < 1)
