"""Confidence over HTTP: for requests that ask for it, of bundles that are calibrated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import lite_runtime
import msedge
from cloud.audit import fit_calibration, fit_mahalanobis, separation
from edge.gateway.errors import GatewayError
from lite_runtime import bundle
from lite_runtime.calibration import with_calibration
from lite_runtime.calibration.description import SECTION
from lite_runtime.graph import Graph, Node, Value
from tests.edge.gateway.ensembles.parts import document, put, step
from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.live import Live, live


def classifier(weights: np.ndarray, bias: np.ndarray, metadata: dict[str, Any], extra: dict[str, bytes]) -> bytes:
    graph = Graph(
        (Value("x", "float32", ("n", 64)),),
        (Value("logits", "float32", ("n", 10)),),
        (Node("MatMul", ("x", "w"), ("scores",)), Node("Add", ("scores", "b"), ("logits",))),
        {"w": weights, "b": bias},
    )
    return bundle.write(None, {"predict": graph}, metadata=metadata, extra=extra)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels of digits, and a linear model's weights from the first 400."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    model = LogisticRegression(C=1e3, max_iter=1000).fit(x[:400], y[:400])
    return x, y, model.coef_.T.astype(np.float32).copy(), model.intercept_.astype(np.float32)


@pytest.fixture(scope="module")
def made(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y, weights, bias = digits
    folder = tmp_path_factory.mktemp("models")
    (folder / "plain.mslite").write_bytes(plain := classifier(weights, bias, {}, {}))
    run = lite_runtime.load(plain, backend="reference").run
    first, held = run({"x": x[:400]})["logits"], run({"x": x[400:1000]})["logits"]
    distances = fit_mahalanobis(first, y[:400], held, "logits")
    fitted = fit_calibration(held, y[400:1000], "logits", distances=distances)
    (folder / "digits.mslite").write_bytes(data := with_calibration(plain, fitted))
    raw = bytes(bundle.read(data).section(SECTION))
    (folder / "stale.mslite").write_bytes(classifier(weights * 2, bias, {}, {SECTION: raw}))
    steps = [{"of": ["logits"], "names": ["p"], "steps": [{"step": "softmax"}]}]
    processed = classifier(weights, bias, {"pipelines": {"version": 1, "outputs": steps}}, {})
    (folder / "processed.mslite").write_bytes(with_calibration(processed, fitted))
    return folder


@pytest.fixture(scope="module")
def there(made: Path) -> Iterator[Live]:
    with live(made) as running:
        yield running


def told(client: msedge.Client) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in client.notes.items()}


@pytest.mark.parametrize("name", ["digits", "processed"])
def test_the_reply_says_what_the_runtime_says(there: Live, made: Path, digits: Any, name: str) -> None:
    x = digits[0][1000:1040].copy()
    x[20:] = np.random.default_rng(0).random((20, 64)) * 2
    model = lite_runtime.load(made / "digits.mslite")
    expected = model.confidence(model.run({"x": x}))
    with msedge.Client(there.address) as client:
        client.infer(name, {"x": x}, confidence=True)
        found = told(client)
        client.infer(name, {"x": x})
        assert client.notes == {}
    assert found.keys() == {"confidence", "out_of_distribution", "energy", "distance"}
    np.testing.assert_allclose(found["confidence"], expected.probabilities.max(axis=1), atol=1e-5)
    assert found["out_of_distribution"] == expected.out_of_distribution.tolist()  # type: ignore[union-attr]
    assert sum(found["out_of_distribution"][20:]) > 10 > sum(found["out_of_distribution"][:20])
    assert separation(found["distance"][:20], found["distance"][20:]).auroc > 0.8


def test_grpc_says_the_same(there: Live, digits: Any) -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    x = digits[0][:3]
    given = grpc.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    with listening(there) as address, grpc.InferenceServerClient(address) as remote:
        reply = remote.infer("digits", [given], parameters={"confidence": True}).get_response()
    with msedge.Client(there.address) as client:
        client.infer("digits", {"x": x}, confidence=True)
        assert {name: value.string_param for name, value in reply.parameters.items()} == client.notes


def test_what_is_not_a_number_is_null(there: Live) -> None:
    with msedge.Client(there.address) as client:
        client.infer("digits", {"x": np.full((1, 64), np.nan, np.float32)}, confidence=True)
        found = told(client)
    assert (found["confidence"], found["out_of_distribution"]) == ([None], [True])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("plain", {}, "the bundle has no calibration"),
        ("stale", {}, "changed since; fit the calibration again"),
        ("digits", {"device": "phone-1"}, "personal versions are not calibrated"),
    ],
)
def test_refusals(there: Live, name: str, options: dict[str, Any], text: str) -> None:
    x = np.zeros((1, 64), np.float32)
    with msedge.Client(there.address) as client:
        with pytest.raises(GatewayError, match=text) as caught:
            client.infer(name, {"x": x}, confidence=True, **options)
        assert caught.value.status == 400
        client.infer(name, {"x": x})  # it is served nevertheless
        with pytest.raises(GatewayError, match="confidence: expected true or false"):
            client.infer(name, {"x": x}, confidence=1)  # type: ignore[arg-type]


def test_kept_answers_are_passed_over(made: Path, digits: Any, tmp_path: Path) -> None:
    put(tmp_path / "digits.mslite", (made / "digits.mslite").read_bytes())
    put(tmp_path / "digits.toml", "response_cache = {enable = true}")
    x = digits[0][:1]
    with live(tmp_path, cache__bytes="1MiB") as running, msedge.Client(running.address) as client:
        for asked in (False, True, False, True):
            client.infer("digits", {"x": x}, confidence=asked)
            assert ("confidence" in client.notes) == asked
        assert running.gateway.statistics.of("digits", "1").hits == 1


def test_ensembles_refuse(made: Path, tmp_path: Path) -> None:
    put(tmp_path / "digits.mslite", (made / "digits.mslite").read_bytes())
    put(
        tmp_path / "both" / "ensemble.json",
        document(["x"], ["logits"], step("digits", {"x": "x"}, {"logits": "logits"})),
    )
    x = np.zeros((1, 64), np.float32)
    with live(tmp_path) as running, msedge.Client(running.address) as client:
        assert client.infer("both", {"x": x})["logits"].shape == (1, 10)
        with pytest.raises(GatewayError, match="ensemble 'both' has no calibration"):
            client.infer("both", {"x": x}, confidence=True)
