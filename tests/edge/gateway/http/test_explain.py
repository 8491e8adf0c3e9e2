"""`/v1/models/NAME:explain`: explanations through the model's queue, their limits, and what is refused."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
import msedge
from lite_runtime.explaining import explain, subject_of, wish_for
from tests.edge.gateway.live import Live, examples, live

WEIGHTS = np.array([[1, -1], [2, 0], [0, 3]], np.float32)
X = [1.0, 2.0, 3.0]


def model(softmax: bool) -> onnx.ModelProto:
    """(n, 3) to the scores of two classes: a matrix, and perhaps a softmax."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", size]) for n, size in (("x", 3), ("y", 2))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"])]
    nodes.append(helper.make_node("Softmax", ["z"], ["y"]) if softmax else helper.make_node("Identity", ["z"], ["y"]))
    graph = helper.make_graph(nodes, "model", ends[:1], ends[1:], [numpy_helper.from_array(WEIGHTS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("models")
    examples(there)
    msedge.convert(model(False), output=there / "plain.mslite")
    msedge.convert(model(True), output=there / "signed.mslite", explainable=True)
    return there


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Live]:
    with live(folder, explaining__rows=300) as there:
        yield there


def ask(gateway: Live, name: str, body: Any) -> tuple[int, Any]:
    url = f"{gateway.address}/v1/models/{name}:explain"
    request = urllib.request.Request(url, body if isinstance(body, bytes) else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def test_rows_are_explained_by_predictions(gateway: Live, folder: Path) -> None:
    status, reply = ask(gateway, "plain", {"instances": [X, [0.0, 0.0, 1.0]], "parameters": {"target": 0}})
    assert status == 200
    first, second = reply["explanations"]
    assert first["method"] == "kernel_shap" and first["target"] == 0
    assert first["attributions"] == pytest.approx([1, 4, 0], abs=1e-5)
    assert second["attributions"] == pytest.approx([0, 0, 0], abs=1e-5)
    assert (first["score"], first["base_score"]) == pytest.approx((5, 0)) and first["rows"] == 8
    subject = subject_of(lite_runtime.load(folder / "plain.mslite"))
    own = explain(subject, np.float32(X), "kernel_shap", wish_for(subject, np.float32(X)), 0)
    assert first["attributions"] == own.attributions.tolist()


def test_a_bundle_with_the_signature_is_explained_by_its_gradients(gateway: Live) -> None:
    status, reply = ask(gateway, "signed", {"instances": [X]})
    assert status == 200
    (found,) = reply["explanations"]
    assert found["method"] == "integrated_gradients" and found["target"] == 1
    assert found["attributions"] == pytest.approx([-1, 0, 9], abs=1e-4)
    assert found["score"] == pytest.approx(8) and abs(found["completeness_error"]) < 1e-4
    status, reply = ask(gateway, "signed", {"inputs": [X], "parameters": {"method": "saliency", "target": 0}})
    assert reply["explanations"][0]["attributions"] == pytest.approx([1, 2, 0], abs=1e-5)
    status, reply = ask(gateway, "signed", {"instances": [X], "parameters": {"method": "occlusion"}})
    assert status == 200 and reply["explanations"][0]["score"] == pytest.approx(0.95, abs=0.05)


@pytest.mark.parametrize(
    ("name", "body", "status", "words"),
    [
        ("plain", {"instances": [X], "parameters": {"method": "saliency"}}, 400, "occlusion, rise, kernel_shap remain"),
        ("plain", {"instances": [X], "parameters": {"method": "lrp"}}, 400, "expected one of saliency"),
        ("plain", {"instances": [X], "parameters": {"target": 2}}, 400, "from 0 to 1, got 2"),
        ("plain", {"instances": [X], "parameters": {"target": True}}, 400, "target: expected int, got 'True'"),
        ("plain", {"instances": [X], "parameters": {"budget": 2}}, 400, "expected some of method"),
        ("plain", {"instances": [X], "parameters": []}, 400, "parameters to be an object"),
        (
            "plain",
            {"instances": [X], "parameters": {"method": "rise", "samples": 301}},
            400,
            "and the limit leaves 299",
        ),
        ("signed", {"instances": [X], "parameters": {"steps": 10**8}}, 400, "at most 2000 for the rule"),
        (
            "signed",
            {"instances": [X], "parameters": {"method": "smoothgrad", "samples": 10**9}},
            400,
            "and the limit leaves",
        ),
        ("plain", {"instances": [X] * 80, "parameters": {"method": "occlusion"}}, 400, "limit"),
        ("plain", {"instances": [[1.0, 2.0]]}, 400, "expected"),
        ("plain", b"[]", 400, "JSON object"),
        ("plain", b"", 400, "empty"),
        ("none", {"instances": [X]}, 404, "none"),
        ("simple", {"instances": [{"INPUT0": [1] * 16, "INPUT1": [2] * 16}]}, 400, "expected one of INPUT0, INPUT1"),
    ],
)
def test_what_does_not_fit_is_refused(gateway: Live, name: str, body: Any, status: int, words: str) -> None:
    found, text = ask(gateway, name, body)
    assert found == status and words in text


def test_integers_with_another_input_that_stays(gateway: Live) -> None:
    row = {"INPUT0": list(range(16)), "INPUT1": [2] * 16}
    given = {"method": "occlusion", "input": "INPUT0", "target": 5, "kind": "table"}
    status, reply = ask(gateway, "simple", {"instances": [row], "parameters": given})
    assert status == 200, reply
    wanted = [0.0] * 16
    wanted[5] = 5.0
    assert reply["explanations"][0]["attributions"] == wanted and reply["explanations"][0]["score"] == 7


def test_seconds_are_limited_and_others_are_answered(folder: Path) -> None:
    with live(folder, explaining__seconds=0.001) as there:
        given = {"instances": [X] * 9, "parameters": {"method": "rise", "samples": 220}}
        assert ask(there, "plain", given)[0] == 504
        with urllib.request.urlopen(f"{there.address}/v2/health/live", timeout=10) as reply:
            assert reply.status == 200
        assert there.gateway.statistics.refused["explain", 504] == 1
        (served,) = [one for one in there.gateway.repository.served() if one.name == "plain"]
        assert served.in_flight == 0


def test_it_can_be_turned_off(folder: Path) -> None:
    with live(folder, explaining__rows=0) as there:
        status, text = ask(there, "plain", {"instances": [X]})
        assert status == 501 and "explaining.rows" in text
