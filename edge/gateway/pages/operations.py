"""Every address the gateway answers at, as a table: the OpenAPI document is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edge.gateway.pages.schemas import Schema, reference

__all__ = ["OPERATIONS", "REFUSALS", "REPLY_HEADERS", "REQUEST_HEADERS", "SUBJECTS", "Operation"]

JSON = "application/json"
BINARY = "application/octet-stream"
HTML = "text/html"

SUBJECTS: Mapping[str, str] = {
    "inference": "Ask a model.",
    "models": "What a model takes and gives, and how it fares.",
    "health": "Is the gateway there, and can it be asked?",
    "repository": "Which models there are; loading and unloading them.",
    "operation": "What whoever runs the gateway looks at.",
}
REQUEST_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Inference-Header-Content-Length": (
        {"type": "integer", "minimum": 0, "maximum": 2**53},
        "Bytes of the body, before any compression, that are JSON; the rest is the inputs' bytes in the order of"
        " `inputs`. 0: all of the body is the one input's bytes.",
    ),
    "X-Request-ID": (
        {"type": "string"},
        "Comes back in the reply, stands in the log, and decides which version of a split answers. Another takes its"
        " place where it is not of 1 to 128 letters, digits and `._:/+=@-`.",
    ),
    "X-Msedge-Label": (
        {"type": "string", "pattern": r"^([A-Za-z_][A-Za-z0-9_.\-]{0,63})?$"},
        "A label of the model's, `canary` say: the version that it stands for answers.",
    ),
    "X-Msedge-Device": (
        {"type": "string"},
        "Whose personal version of the model is asked for; as `parameters.device`.",
    ),
    "traceparent": (
        {"type": "string"},
        "The trace this request belongs to (W3C Trace Context). A new one begins where it is not in order.",
    ),
}
REPLY_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Inference-Header-Content-Length": (
        {"type": "integer", "minimum": 1},
        "Bytes of the reply that are JSON, where outputs follow as bytes.",
    ),
}
REFUSALS: Mapping[int, str] = {
    400: "The request is wrong; the text says where.",
    401: "A token is needed that this request does not have.",
    403: "The token, or where the request comes from, does not allow this.",
    404: "No such model, version or label.",
    408: "The request did not arrive in time.",
    413: "The body, or what it holds once decompressed, is larger than this gateway takes.",
    415: "An encoding that this gateway does not read; gzip and deflate are read.",
    429: "More work than can be done in time; Retry-After says when to come again.",
    500: "A fault of the gateway, or a model that failed.",
    501: "Something of the protocol that this gateway does not do.",
    503: "Not now: loading, unloading or shutting down.",
    504: "The deadline passed before there was an answer.",
}


class Operation(NamedTuple):
    """A method at an address. `paths`: that mean the same, the longer ones with a version; `scope`: of the token it
    takes where tokens are on, "" for none; `about`: a line, and perhaps more; `takes` and `gives`: media types to
    schemas, None for any bytes."""

    name: str
    method: str
    paths: tuple[str, ...]
    subject: str
    scope: str
    about: str
    gives: Mapping[str, Schema | None]
    takes: Mapping[str, Schema | None] | None = None
    needs_body: bool = False
    refusals: Sequence[int] = ()


def _model(end: str = "") -> tuple[str, ...]:
    return (f"/v2/models/{{name}}{end}", f"/v2/models/{{name}}/versions/{{version}}{end}")


def _json(name: str) -> dict[str, Schema | None]:
    return {JSON: reference(name)}


_BODY = (400, 408, 413, 415)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "infer", "post", _model("/infer"), "inference", "infer",
        "Outputs of a model for inputs.\nInputs stand in the JSON, or follow it as little-endian row-major bytes; so do"
        " outputs, as asked. Where axis 0 is a batch, requests are computed together with others'.",
        {**_json("InferReply"), BINARY: None}, {**_json("InferRequest"), BINARY: None},
        needs_body=True, refusals=(*_BODY, 404, 429, 501, 503, 504),
    ),
    Operation("modelMetadata", "get", _model(), "models", "infer",
              "Its inputs and outputs: names, datatypes, shapes.", _json("Model"), refusals=(404, 503)),
    Operation("modelReady", "get", _model("/ready"), "models", "",
              "Whether it can be asked.", _json("ModelReady"), refusals=(404, 503)),
    Operation("modelConfig", "get", _model("/config"), "models", "infer",
              "Its configuration in Triton's words.", _json("ModelConfig"), refusals=(404, 503)),
    Operation("modelStatistics", "get", _model("/stats"), "models", "metrics",
              "Requests, rows and times since it was loaded.", _json("Statistics"), refusals=(404, 503)),
    Operation("statistics", "get", ("/v2/models/stats",), "models", "metrics",
              "The same of every model.", _json("Statistics")),
    Operation("server", "get", ("/v2",), "health", "", "The gateway and the protocol's extensions that it knows.",
              _json("Server")),
    Operation("live", "get", ("/v2/health/live",), "health", "", "Whether the process answers.", _json("Live")),
    Operation("ready", "get", ("/v2/health/ready",), "health", "", "Whether it takes requests now.",
              _json("Ready"), refusals=(503,)),
    Operation("index", "post", ("/v2/repository/index",), "repository", "infer", "Every model and version.",
              {JSON: {"type": "array", "items": reference("IndexEntry")}}, _json("IndexRequest"), refusals=_BODY),
    Operation("load", "post", ("/v2/repository/models/{name}/load",), "repository", "manage",
              "Loads a model, or loads it again; requests meanwhile are answered by what was there.", {},
              _json("LoadRequest"), refusals=(*_BODY, 404, 501, 503)),
    Operation("unload", "post", ("/v2/repository/models/{name}/unload",), "repository", "manage",
              "Takes a model away once what is under way is answered.", {}, _json("UnloadRequest"),
              refusals=(*_BODY, 404, 501, 503)),
    Operation("metrics", "get", ("/metrics",), "operation", "metrics",
              "Prometheus' text; OpenMetrics where Accept asks for it.",
              {"text/plain": None, "application/openmetrics-text": None}, refusals=(404,)),
    Operation("status", "get", ("/status.json",), "operation", "metrics", "What the status page shows.",
              _json("Status")),
    Operation("statusPage", "get", ("/status",), "operation", "", "How the gateway is doing, as a page.", {HTML: None}),
    Operation("document", "get", ("/openapi.json",), "operation", "", "This document.", {JSON: {"type": "object"}}),
    Operation("documentPage", "get", ("/docs",), "operation", "", "This document as a page to try requests on.",
              {HTML: None}),
)  # fmt: skip
"""In the order they are shown."""
