"""KServe's protocol v1 over HTTP: rows and columns, base64, errors, and the checks that it shares with v2."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.gateway.access import tokens
from tests.edge.gateway.http.raw import Raw, request
from tests.edge.gateway.live import Live, live, scaled


def _ask(there: Live, path: str, document: Any, fields: dict[str, str] | None = None) -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with Raw(there.port) as raw:
        got = raw.ask(request(path, body, fields or {}))
    return got.status, json.loads(got.body)


def _read(there: Live, path: str) -> tuple[int, Any]:
    with Raw(there.port) as raw:
        got = raw.ask(request(path, b"", {}, "GET"))
    return got.status, json.loads(got.body)


def test_models(gateway: Live) -> None:
    status, found = _read(gateway, "/v1/models")
    assert status == 200 and set(found["models"]) >= {"simple", "simple_string", "numbers", "scaled"}
    assert len(set(found["models"])) == len(found["models"])
    assert _read(gateway, "/v1/models/scaled") == (200, {"name": "scaled", "ready": True})
    status, found = _read(gateway, "/v1/models/nobody")
    assert status == 404 and "nobody" in found["error"]


@pytest.mark.parametrize("rows", [1, 3, 4000])
def test_rows_of_one_input(gateway: Live, rows: int) -> None:
    """4,000 rows: large arrays are read by another way."""
    x = np.random.default_rng().random((rows, 4), np.float32)
    status, found = _ask(gateway, "/v1/models/scaled/versions/2:predict", {"instances": x.tolist()})
    assert status == 200 and list(found) == ["predictions"], found
    np.testing.assert_array_equal(np.array(found["predictions"], np.float32), 2 * x)
    named = {"instances": [{"x": row} for row in x.tolist()]}
    assert _ask(gateway, "/v1/models/scaled/versions/2:predict", named) == (200, found)
    for inputs in (x.tolist(), {"x": x.tolist()}):
        status, columns = _ask(gateway, "/v1/models/scaled/versions/2:predict", {"inputs": inputs})
        assert (status, columns) == (200, {"outputs": found["predictions"]})


def test_several_inputs_and_outputs(gateway: Live) -> None:
    a, b = np.random.default_rng().integers(-1000, 1000, (2, 2, 16), dtype=np.int32)
    rows = [{"INPUT0": p, "INPUT1": q} for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    status, found = _ask(gateway, "/v1/models/simple:predict", {"instances": rows})
    sums, differences = (a + b).tolist(), (a - b).tolist()
    told = [{"OUTPUT0": p, "OUTPUT1": q} for p, q in zip(sums, differences, strict=True)]
    assert (status, found) == (200, {"predictions": told})
    status, found = _ask(gateway, "/v1/models/simple:predict", {"inputs": {"INPUT0": a.tolist(), "INPUT1": b.tolist()}})
    assert (status, found) == (200, {"outputs": {"OUTPUT0": sums, "OUTPUT1": differences}})


@pytest.mark.parametrize("encode", [lambda t: t, lambda t: {"b64": base64.b64encode(t.encode()).decode()}])
def test_text_and_base64(gateway: Live, encode: Any) -> None:
    row = {name: [encode(str(i)) for i in range(16)] for name in ("INPUT0", "INPUT1")}
    status, found = _ask(gateway, "/v1/models/simple_string:predict", {"instances": [row, row]})
    assert status == 200
    assert [[int(float(v)) for v in each["OUTPUT0"]] for each in found["predictions"]] == [list(range(0, 32, 2))] * 2


def test_every_datatype_but_bf16(gateway: Live) -> None:
    status, found = _ask(gateway, "/v1/models/numbers:predict", {"instances": [{"BFLOAT16": [1, 2, 3]}]})
    assert status == 400 and "missing" in found["error"]


def test_labels_and_the_usual_signature(gateway: Live) -> None:
    given = {"signature_name": "serving_default", "instances": [[1, 2, 3, 4]]}
    assert _ask(gateway, "/v1/models/scaled/labels/canary:predict", given)[1] == {"predictions": [[2, 4, 6, 8]]}
    assert _ask(gateway, "/v1/models/scaled/labels/stable:predict", given)[1] == {"predictions": [[1, 2, 3, 4]]}
    status, found = _ask(gateway, "/v1/models/scaled:predict", {**given, "signature_name": "train"})
    assert status == 400 and "train" in found["error"]


def test_infinite_numbers_are_written_as_elsewhere(gateway: Live) -> None:
    status, found = _ask(gateway, "/v1/models/scaled/versions/2:predict", {"instances": [[3e38, -3e38, 0, 1]]})
    assert (status, found) == (200, {"predictions": [[float("inf"), float("-inf"), 0, 2]]})


@pytest.mark.parametrize(
    ("document", "part"),
    [
        (b"", "empty"),
        (b"{", "JSON"),
        (b"[]", "object"),
        ({}, "neither"),
        ({"instances": [[1, 2, 3, 4]], "inputs": [[1, 2, 3, 4]]}, "both"),
        ({"instances": []}, "at least one"),
        ({"instances": 3}, "list"),
        ({"instances": [[1, 2, 3]]}, "shape"),
        ({"instances": [[1, 2, 3, 4], [1, 2, 3]]}, "nested"),
        ({"instances": [[1, 2, 3, "four"]]}, "a string"),
        ({"instances": [[1, 2, 3, {"b64": "aGk="}]]}, "object"),
        ({"instances": [{"y": [1, 2, 3, 4]}]}, "no input is named 'y'"),
        ({"instances": [{"x": [1, 2, 3, 4]}, {"z": [1, 2, 3, 4]}]}, "instances[1]"),
        ({"instances": [{"x": [1, 2, 3, 4]}, 3]}, "instances[1]"),
        ({"inputs": {}}, "missing"),
        ({"inputs": None}, "shape"),
        ({"instances": [[1, 2, 3, 4]], "signature_name": 3}, "signature_name"),
        (b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}", "shape"),
    ],
)
def test_refused(gateway: Live, document: Any, part: str) -> None:
    status, found = _ask(gateway, "/v1/models/scaled:predict", document)
    assert status == 400 and part in found["error"] and list(found) == ["error"], found


@pytest.mark.parametrize("text", ["a", "%%%%", 3, None])
def test_damaged_base64(gateway: Live, text: Any) -> None:
    row = {"INPUT0": ["1"] * 15 + [{"b64": text}], "INPUT1": ["1"] * 16}
    status, found = _ask(gateway, "/v1/models/simple_string:predict", {"instances": [row]})
    assert status == 400 and "base64" in found["error"]


def test_ragged_text(gateway: Live) -> None:
    row = {"INPUT0": ["1"] * 16, "INPUT1": ["1"] * 16}
    status, found = _ask(gateway, "/v1/models/simple_string:predict", {"instances": [row, {**row, "INPUT1": ["1"]}]})
    assert status == 400 and "INPUT1" in found["error"]


def test_other_addresses(gateway: Live) -> None:
    given = {"instances": [[1, 2, 3, 4]]}
    assert _ask(gateway, "/v1/models/nobody:predict", given)[0] == 404
    assert _ask(gateway, "/v1/models/scaled/versions/9:predict", given)[0] == 404
    assert _ask(gateway, "/v1/models/scaled:classify", given)[0] in (404, 405)
    status, found = _ask(gateway, "/v1/models/scaled:predict", given, {"Inference-Header-Content-Length": "3"})
    assert status == 400 and "Inference-Header" in found["error"]


def test_the_core_is_that_of_version_2(tmp_path: Path) -> None:
    """Tokens, models of a token, quotas, statistics, the log."""
    models = {name: scaled(tmp_path / f"{name}.mslite", 2.0) for name in "ab"}
    file = tmp_path / "tokens.json"
    asks = {"Authorization": f"Bearer {tokens.add(file, 'asks', ['infer'], models=['a'], rate=1)}"}
    given = {"instances": [[1, 2, 3, 4]]}
    with live(models, access__tokens=str(file)) as there:
        assert _ask(there, "/v1/models/a:predict", given)[0] == 401
        assert _ask(there, "/v1/models/b:predict", given, asks)[0] == 403
        status, found = _ask(there, "/v1/models/a:predict", given, asks)
        assert (status, found) == (200, {"predictions": [[2, 4, 6, 8]]})
        (statistics,) = there.gateway.model_statistics("a", "")["model_stats"]
        assert statistics["inference_stats"]["success"]["count"] == 1
        assert {_ask(there, "/v1/models/a:predict", given, asks)[0] for _ in range(4)} == {429}
        with Raw(there.port) as raw:
            found = json.loads(raw.ask(request("/v1/models", b"", asks, "GET")).body)
        assert found == {"models": ["a"], "object": "list", "data": []}


def test_a_whole_body_is_limited(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, limits__body=1000) as there:
        assert _ask(there, "/v1/models/m:predict", {"instances": [[1, 2, 3, 4]] * 100})[0] == 413
