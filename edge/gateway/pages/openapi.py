"""The OpenAPI 3.1 document of the gateway, as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from edge.gateway.pages.examples import request_for
from edge.gateway.pages.operations import (
    BINARY_HEADER,
    OPERATIONS,
    REFUSALS,
    REPLY_HEADERS,
    REQUEST_HEADERS,
    SUBJECTS,
    Operation,
)
from edge.gateway.pages.schemas import NAME, SCHEMAS, VERSION, Schema, reference

__all__ = ["document"]

_ABOUT = (
    "Models over the Open Inference Protocol v2 with Triton's extensions: binary data, classification, model"
    " repository, model configuration, statistics; over KServe's first protocol, under /v1; and language and"
    " embedding models over OpenAI's. Every error is a JSON object with a sentence in `error`, in OpenAI's protocol in"
    " `error.message`."
)
_NAMES: Mapping[str, tuple[Schema, str]] = {
    "name": ({"type": "string", "pattern": NAME}, "The model."),
    "sequence": (
        {"type": "string", "minLength": 1, "maxLength": 128},
        "The sequence: what its requests give as `parameters.sequence_id`; digits alone are a number.",
    ),
    "region": ({"type": "string", "minLength": 1, "maxLength": 255}, "The region: a name that the client chooses."),
    "label": ({"type": "string", "pattern": VERSION}, "A label of a version, such as `canary`."),
    "version": ({"type": "string", "pattern": VERSION}, "A version's number, or a label such as `canary`."),
}
_RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 0}}}
_SCOPE = "bearer"
_SHOWN = 8
"""Most models with examples."""

_Examples = Mapping[str, Mapping[str, Any]]
"""Examples by kind (name, version, body) and by model, in the same order."""


def document(version: str, *, tokens: bool = False, models: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The document, ready to be written as JSON.

    version: of the gateway; tokens: whether requests must have an API token, so that operations name its scope;
    models: metadata (`models.describe.metadata`) of models for examples; the first few suitable ones are used.
    """
    examples = _examples(models)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        for path in operation.paths:
            paths.setdefault(path, {})[operation.method] = _operation(operation, path, tokens, examples)
    components: dict[str, Any] = {"schemas": SCHEMAS, "responses": _responses()}
    if tokens:
        components["securitySchemes"] = {_SCOPE: {"type": "http", "scheme": "bearer", "description": "An API token."}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "msedge gateway",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in SUBJECTS.items()],
        "paths": paths,
        "components": components,
    }


def _examples(models: Iterable[Mapping[str, Any]]) -> _Examples:
    made = ((model, request) for model in models if (request := request_for(model)) is not None)
    shown = list(islice(made, _SHOWN))
    return {
        "name": {model["name"]: {"value": model["name"]} for model, _ in shown},
        "version": {model["name"]: {"value": model["versions"][0]} for model, _ in shown if model.get("versions")},
        "body": {model["name"]: {"value": request} for model, request in shown},
    }


def _operation(operation: Operation, path: str, tokens: bool, examples: _Examples) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    summary, _, description = operation.about.partition("\n")
    made: dict[str, Any] = {
        "operationId": operation.name
        + "".join(f"Of{part.title()}" for part in ("version", "label", "region") if part in names),
        "tags": [operation.subject],
        "summary": summary,
        "responses": {"200": _reply(operation)}
        | {
            str(status): {"$ref": f"#/components/responses/{_named(operation.errors, status)}"}
            for status in _refusals(operation, tokens)
        },
    }
    if description:
        made["description"] = description
    if parameters := _parameters(operation, names, examples):
        made["parameters"] = parameters
    if operation.takes is not None:
        made["requestBody"] = {"required": operation.needs_body, "content": _content(operation.takes)}
        if operation.name == "infer" and examples["body"]:
            made["requestBody"]["content"]["application/json"]["examples"] = examples["body"]
    if tokens:
        made["security"] = [{_SCOPE: [operation.scope]}] if operation.scope else []
    return made


def _parameters(operation: Operation, names: Iterable[str], examples: _Examples) -> list[dict[str, Any]]:
    # Trying every example must not unload a served model.
    shown = {} if operation.subject == "repository" else examples
    found = [_parameter(name, "path", *_NAMES[name], required=True) for name in names]
    for parameter in found:
        if shown.get(parameter["name"]):
            parameter["examples"] = shown[parameter["name"]]
    if operation.name in ("infer", "predict"):
        without = BINARY_HEADER if operation.name == "predict" else ""
        headers = {name: words for name, words in REQUEST_HEADERS.items() if name != without}
        found += [_parameter(name, "header", *words) for name, words in headers.items()]
    return found


def _parameter(name: str, place: str, schema: Schema, about: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "description": about, "required": required, "schema": schema}


def _content(kinds: Mapping[str, Schema | None]) -> dict[str, Any]:
    return {kind: {} if schema is None else {"schema": schema} for kind, schema in kinds.items()}


def _reply(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {"description": "Done."}
    if operation.gives:
        made["content"] = _content(operation.gives)
    if operation.name == "infer":
        made["headers"] = {
            name: {"schema": schema, "description": about} for name, (schema, about) in REPLY_HEADERS.items()
        }
    return made


def _refusals(operation: Operation, tokens: bool) -> list[int]:
    """Statuses other than 200; those of access control if tokens are enabled, or the operation is restricted."""
    limited = operation.scope in ("manage", "memory")
    asked = (401, 403, 429) if tokens and operation.scope else (403,) if limited else ()
    return sorted({*operation.refusals, *asked, 500})


def _responses() -> dict[str, Any]:
    return {
        _named(errors, status): {
            "description": about, "content": {"application/json": {"schema": reference(errors)}}
        } | ({"headers": _RETRY} if status in (429, 503) else {})
        for errors in dict.fromkeys(operation.errors for operation in OPERATIONS)
        for status, about in REFUSALS.items()
    }  # fmt: skip


def _named(errors: str, status: int) -> str:
    """The name of a refusal among the document's responses."""
    return f"{status}" if errors == "Error" else f"{errors}{status}"
