"""The document is valid OpenAPI, describes every refusal, and its schemas fit the real responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from openapi_spec_validator import validate
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

import lite_runtime
from edge.gateway.job import Job
from edge.gateway.models.config import ModelConfig
from edge.gateway.models.describe import configuration, metadata
from edge.gateway.models.served import Served
from edge.gateway.operate.statistics import Statistics
from edge.gateway.pages.openapi import document
from edge.gateway.pages.operations import OPERATIONS
from edge.gateway.pages.schemas import NAME, SCHEMAS, VERSION, reference
from edge.gateway.protocol.request import read
from edge.gateway.protocol.response import write

ERROR = {"application/json": {"schema": reference("Error")}}
LANGUAGE_ERROR = {"application/json": {"schema": reference("LanguageError")}}


def written(**options: Any) -> dict[str, Any]:
    """As a client reads it."""
    made: dict[str, Any] = json.loads(json.dumps(document("1.2.3", **options)))
    return made


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def check(name: str, instance: Any) -> None:
    """An instance, as JSON, against one of the schemas."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(instance)))


@pytest.mark.parametrize("tokens", [False, True])
def test_valid(tokens: bool) -> None:
    validate(written(tokens=tokens))


def test_every_schema_is_used_and_every_reference_resolves() -> None:
    made = written()
    named = {ref.removeprefix("#/components/schemas/") for ref in references(made) if "/schemas/" in ref}
    assert named == set(SCHEMAS)
    refused = {ref.rpartition("/")[2] for ref in references(made) if "/responses/" in ref}
    assert refused <= set(made["components"]["responses"])


@pytest.mark.parametrize("tokens", [False, True])
def test_every_refusal_is_an_error_in_json(tokens: bool) -> None:
    made = written(tokens=tokens)
    for path, method, operation in operations(made):
        assert "500" in operation["responses"], (path, method)
        for status, reply in operation["responses"].items():
            if status != "200":
                content = made["components"]["responses"][reply["$ref"].rpartition("/")[2]]["content"]
                assert content == (LANGUAGE_ERROR if operation["tags"] == ["language"] else ERROR)


def test_names_of_operations_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in operations(written())]
    assert len(set(names)) == len(names)
    assert len({(o.method, path) for o in OPERATIONS for path in o.paths}) == len(names)


def test_scopes_are_listed_if_tokens_are_on() -> None:
    scopes = {path: o.scope for o in OPERATIONS for path in o.paths}
    for path, _, operation in operations(written(tokens=True)):
        assert operation["security"] == ([{"bearer": [scopes[path]]}] if scopes[path] else [])
        assert ("401" in operation["responses"]) is bool(scopes[path])
    assert not any("security" in operation for _, _, operation in operations(written()))


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "", "a b", "a\n", "é"])
def test_invalid_names(name: str) -> None:
    for pattern in (NAME, VERSION):
        assert not jsonschema.Draft202012Validator({"pattern": pattern.replace("$", r"\Z")}).is_valid(name)


@pytest.fixture(scope="module")
def served(small: Any) -> Served:
    return Served("small", 1, lite_runtime.load(small.bundle), ModelConfig(), _no_runner)


def _no_runner(*_: Any) -> Any:
    raise AssertionError("nothing is computed here")


def test_what_describes_a_model(served: Served) -> None:
    check("Model", metadata(served, ["1"]))
    check("ModelConfig", configuration(served, 64))


@pytest.mark.parametrize("binary", [False, True])
def test_requests_of_triton_and_our_replies(served: Served, binary: bool) -> None:
    x = np.ones((2, 3, 8, 8), np.float32)
    given = InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    wanted = InferRequestedOutput("scores", binary_data=binary, class_count=0 if binary else 2)
    body, length = InferenceServerClient.generate_request_body(
        [given], outputs=[wanted], request_id="r", priority=1, timeout=10
    )
    check("InferRequest", json.loads(body[:length]))
    ports = served.ports_for("predict")
    request = read(body, length, lambda _: ports)
    outputs = {"scores": np.ones((2, 5), np.float32)}
    reply = write("small", "1", request, outputs, ports, {"personal": "global"}, {})
    check("InferReply", json.loads(bytes(reply.parts[0])))


def test_statistics_that_were_asked() -> None:
    statistics = Statistics()
    job = Job({}, 3, print, arrived=1.0)
    job.begun, job.computed, job.done, job.batch = 1.1, 1.2, 1.3, 8
    statistics.of("small", "1").record(job, 1.4)
    statistics.of("small", "2").fail(None, 429, 1.5)
    check("Statistics", statistics.triton())


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ("InferRequest", {"inputs": []}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [-1], "datatype": "FP32"}]}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [1], "datatype": "FLOAT"}]}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [None]}]}),
        ("InferRequest", {"inputs": [{"name": "x", "shape": [1] * 33, "datatype": "FP32"}]}),
        ("InferRequest", {"id": 1, "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}),
        ("InferParameters", {"priority": -1}),
        ("InferParameters", {"anything": {}}),
        ("Error", {"error": "text", "more": 1}),
        ("State", "BUSY"),
    ],
)
def test_schemas_refuse(schema: str, instance: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(schema, instance)


def test_every_operation_is_in_the_documentation() -> None:
    """The addresses in docs/serving.md are those there are."""
    text = (Path(__file__).parents[4] / "docs/serving.md").read_text(encoding="utf-8")
    missing = [path for o in OPERATIONS for path in o.paths[:1] if _address(path) not in text]
    assert missing == []


def _address(path: str) -> str:
    for name, word in (("{name}", "NAME"), ("{sequence}", "ID"), ("{region}", "REGION")):
        path = path.replace(name, word)
    return f"`{path}`"


def model(name: str, datatype: str = "FP32", shape: tuple[int, ...] = (-1, 3)) -> dict[str, Any]:
    return {"name": name, "versions": ["7"], "inputs": [{"name": "x", "datatype": datatype, "shape": list(shape)}]}


def test_examples_are_requests_that_fit() -> None:
    made = written(models=[model("a"), model("b", "BOOL", (2,)), model("c", "BYTES", ())])
    validate(made)
    infer = made["paths"]["/v2/models/{name}/versions/{version}/infer"]["post"]
    named = {parameter["name"]: parameter.get("examples") for parameter in infer["parameters"]}
    assert list(named["name"]) == list(named["version"]) == ["a", "b", "c"]
    bodies = infer["requestBody"]["content"]["application/json"]["examples"]
    for body in bodies.values():
        check("InferRequest", body["value"])
    assert [bodies[name]["value"]["inputs"][0]["data"] for name in "abc"] == [[0, 0, 0], [False, False], [""]]
    assert bodies["a"]["value"]["inputs"][0]["shape"] == [1, 3]


def test_an_example_is_answered(served: Served) -> None:
    bodies = written(models=[metadata(served, ["1"])])["paths"]["/v2/models/{name}/infer"]["post"]["requestBody"]
    (example,) = bodies["content"]["application/json"]["examples"].values()
    request = read(json.dumps(example["value"]).encode(), None, lambda _: served.ports_for("predict"))
    assert request.inputs["x"].shape == (1, 3, 8, 8)


def test_models_without_an_example_are_omitted() -> None:
    large, brain = model("large", shape=(-1, 224, 224, 3)), model("brain", "BF16")
    many = [model(f"m{i}") for i in range(20)]
    infer = written(models=[large, brain, *many])["paths"]["/v2/models/{name}/infer"]["post"]
    assert list(infer["requestBody"]["content"]["application/json"]["examples"]) == [f"m{i}" for i in range(8)]
    none = written(models=[large])["paths"]["/v2/models/{name}/infer"]["post"]
    assert "examples" not in none["requestBody"]["content"]["application/json"]
    assert not any("examples" in parameter for parameter in none["parameters"])
