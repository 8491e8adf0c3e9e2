"""Every address of the gateway, as a table; the OpenAPI document is generated from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edge.gateway.pages.schemas import Schema, reference

__all__ = ["BINARY_HEADER", "OPERATIONS", "REFUSALS", "REPLY_HEADERS", "REQUEST_HEADERS", "SUBJECTS", "Operation"]

JSON = "application/json"
BINARY = "application/octet-stream"
HTML = "text/html"
EVENTS = "text/event-stream"

SUBJECTS: Mapping[str, str] = {
    "inference": "Inference requests.",
    "language": "Texts of language models, and vectors of texts, in OpenAI's protocol.",
    "models": "Metadata, configuration and statistics of models.",
    "health": "Whether the gateway is alive and ready.",
    "repository": "Listing, loading and unloading of models.",
    "shared memory": "Tensors in shared memory of clients on the same machine.",
    "operation": "Metrics and pages for the operator.",
}
BINARY_HEADER = "Inference-Header-Content-Length"
REQUEST_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Inference-Header-Content-Length": (
        {"type": "integer", "minimum": 0, "maximum": 2**53},
        "Length of the JSON at the start of the body, in bytes before compression; the rest is the inputs' bytes in the"
        " order of `inputs`. 0: the whole body is the bytes of the model's only input.",
    ),
    "X-Request-ID": (
        {"type": "string"},
        "Returned in the reply, written to the log, and used to choose the version of a split. It is replaced by a new"
        " one unless it has 1 to 128 letters, digits and `._:/+=@-`.",
    ),
    "X-Msedge-Label": (
        {"type": "string", "pattern": r"^([A-Za-z_][A-Za-z0-9_.\-]{0,63})?$"},
        "A label of the model, for example `canary`: the version with this label answers.",
    ),
    "X-Msedge-Device": (
        {"type": "string"},
        "The device whose personal version of the model is requested; the same as `parameters.device`.",
    ),
    "traceparent": (
        {"type": "string"},
        "The trace this request belongs to (W3C Trace Context). If it is invalid, a new trace begins.",
    ),
}
REPLY_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Inference-Header-Content-Length": (
        {"type": "integer", "minimum": 1},
        "Length of the JSON at the start of the reply in bytes, if outputs follow as bytes.",
    ),
}
REFUSALS: Mapping[int, str] = {
    400: "The request is invalid; the text says where.",
    401: "The request has no valid token.",
    403: "Not allowed with this token, or from the client's address.",
    404: "No such model, version or label.",
    408: "The request did not arrive in time.",
    409: "Not possible now: a request of the sequence is being computed.",
    413: "The body, before or after decompression, is larger than this gateway accepts.",
    415: "The encoding is not supported; gzip and deflate are.",
    422: "The adapter that `model` names cannot be used: its file is damaged, or of another model.",
    429: "The gateway is overloaded; Retry-After says when to try again.",
    500: "Internal server error, or a model that failed.",
    501: "A part of the protocol that this gateway does not support.",
    503: "Not available now: loading, unloading or shutting down.",
    504: "The deadline passed before there was an answer.",
}


class Operation(NamedTuple):
    """A method at an address. `paths`: equivalent paths, the longer ones with a version; `scope`: of the token that it
    needs if tokens are enabled, "" for none; `about`: a summary line, perhaps followed by a description; `takes` and
    `gives`: media types to schemas, None for any bytes."""

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
    errors: str = "Error"
    """The schema of its refusals."""


def _model(end: str = "") -> tuple[str, ...]:
    return (f"/v2/models/{{name}}{end}", f"/v2/models/{{name}}/versions/{{version}}{end}")


def _region(kind: str, end: str, *, every: bool = True) -> tuple[str, ...]:
    """Paths of one region, and of all of them."""
    single = f"/v2/{kind}sharedmemory/region/{{region}}/{end}"
    return (f"/v2/{kind}sharedmemory/{end}", single) if every else (single,)


def _json(name: str) -> dict[str, Schema | None]:
    return {JSON: reference(name)}


_BODY = (400, 408, 413, 415)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "infer", "post", _model("/infer"), "inference", "infer",
        "Run a model.\nInputs are in the JSON, or follow it as little-endian row-major bytes; so do outputs, as"
        " requested. If axis 0 is a batch, requests are computed together with those of other clients.",
        {**_json("InferReply"), BINARY: None}, {**_json("InferRequest"), BINARY: None},
        needs_body=True, refusals=(*_BODY, 403, 404, 429, 501, 503, 504),
    ),
    Operation(
        "predict", "post", ("/v1/models/{name}:predict", "/v1/models/{name}/versions/{version}:predict",
                            "/v1/models/{name}/labels/{label}:predict"), "inference", "infer",
        "Run a model, in KServe's first protocol, that of TensorFlow Serving.\n`instances` are answered with"
        " `predictions`, `inputs` with `outputs`.", _json("PredictReply"), _json("PredictRequest"),
        needs_body=True, refusals=(*_BODY, 404, 429, 501, 503, 504),
    ),
    Operation(
        "explain", "post", ("/v1/models/{name}:explain", "/v1/models/{name}/versions/{version}:explain",
                            "/v1/models/{name}/labels/{label}:explain"), "inference", "infer",
        "Explain a model's answers, in KServe's first protocol.\nHow much each element of a row raised or lowered the"
        " score of one output, by a method that asks the model again and again: how often is limited by the settings.",
        _json("ExplainReply"), _json("ExplainRequest"), needs_body=True, refusals=(*_BODY, 404, 429, 501, 503, 504),
    ),
    Operation(
        "completions", "post", ("/v1/completions",), "language", "infer",
        "Continue a text, as OpenAI's legacy completions.\nSeveral requests are computed together, token by token.",
        {**_json("CompletionReply"), EVENTS: None}, _json("CompletionRequest"),
        needs_body=True, refusals=(*_BODY, 403, 404, 422, 429, 503, 504), errors="LanguageError",
    ),
    Operation(
        "chatCompletions", "post", ("/v1/chat/completions",), "language", "infer",
        "Answer a conversation, as OpenAI's chat completions.\nSeveral requests are computed together, token by token.",
        {**_json("ChatReply"), EVENTS: None}, _json("ChatRequest"),
        needs_body=True, refusals=(*_BODY, 403, 404, 422, 429, 501, 503, 504), errors="LanguageError",
    ),
    Operation(
        "embeddings", "post", ("/v1/embeddings",), "language", "infer",
        "Turn texts into vectors, as OpenAI's embeddings.\nTexts of several requests are computed together.",
        _json("EmbeddingReply"), _json("EmbeddingRequest"),
        needs_body=True, refusals=(*_BODY, 404, 429, 503, 504), errors="LanguageError",
    ),
    Operation("sequenceState", "get", _model("/sequences/{sequence}"), "inference", "infer",
              "The state of a sequence, as a state file.\nA device can load it with `Model.load_state`.",
              {BINARY: None}, refusals=(400, 404, 429, 503)),
    Operation("restoreSequence", "put", _model("/sequences/{sequence}"), "inference", "infer",
              "Begin a sequence with the state of a state file, or set the state of one.", {}, {BINARY: None},
              needs_body=True, refusals=(*_BODY, 404, 409, 429, 503)),
    Operation("modelMetadata", "get", _model(), "models", "infer",
              "The model's inputs and outputs: names, datatypes, shapes.", _json("Model"), refusals=(404, 503)),
    Operation("modelReady", "get", _model("/ready"), "models", "",
              "Whether the model is ready.", _json("ModelReady"), refusals=(404, 503)),
    Operation("models", "get", ("/v1/models",), "models", "infer",
              "The models that are ready: `models` in KServe's first protocol, `data` in OpenAI's those for texts.",
              _json("Models")),
    Operation("modelReadyV1", "get", ("/v1/models/{name}",), "models", "",
              "Whether the model is ready, in KServe's first protocol, and in OpenAI's.", _json("ModelReady"),
              refusals=(404, 503)),
    Operation("modelConfig", "get", _model("/config"), "models", "infer",
              "The model's configuration in Triton's format.", _json("ModelConfig"), refusals=(404, 503)),
    Operation("modelStatistics", "get", _model("/stats"), "models", "metrics",
              "Requests, rows and times since the model was loaded.", _json("Statistics"), refusals=(404, 503)),
    Operation("statistics", "get", ("/v2/models/stats",), "models", "metrics",
              "The statistics of all models.", _json("Statistics")),
    Operation("server", "get", ("/v2",), "health", "", "The gateway's name, version and protocol extensions.",
              _json("Server")),
    Operation("live", "get", ("/v2/health/live",), "health", "", "Whether the process is alive.", _json("Live")),
    Operation("ready", "get", ("/v2/health/ready",), "health", "", "Whether it accepts requests now.",
              _json("Ready"), refusals=(503,)),
    Operation("index", "post", ("/v2/repository/index",), "repository", "infer", "All models and versions.",
              {JSON: {"type": "array", "items": reference("IndexEntry")}}, _json("IndexRequest"), refusals=_BODY),
    Operation("load", "post", ("/v2/repository/models/{name}/load",), "repository", "manage",
              "Load a model, or reload it; until that is done, the old version answers.", {},
              _json("LoadRequest"), refusals=(*_BODY, 404, 501, 503)),
    Operation("unload", "post", ("/v2/repository/models/{name}/unload",), "repository", "manage",
              "Unload a model after its current requests are answered.", {}, _json("UnloadRequest"),
              refusals=(*_BODY, 404, 501, 503)),
    Operation("logSettings", "get", ("/v2/logging",), "operation", "manage", "The settings of the log.",
              _json("LogSettings")),
    Operation("changeLogSettings", "post", ("/v2/logging",), "operation", "manage",
              "Change settings of the log until the gateway ends.", _json("LogSettings"), _json("LogChange"),
              refusals=_BODY),
    Operation("traceSettings", "get", ("/v2/trace/setting",), "operation", "manage", "The settings of traces.",
              _json("TraceSettings")),
    Operation("changeTraceSettings", "post", ("/v2/trace/setting",), "operation", "manage",
              "Change settings of traces until the gateway ends.", _json("TraceSettings"), _json("TraceChange"),
              refusals=_BODY),
    Operation("modelTraceSettings", "get", ("/v2/models/{name}/trace/setting",), "operation", "manage",
              "The settings of a model's traces.", _json("TraceSettings"), refusals=(404,)),
    Operation("changeModelTraceSettings", "post", ("/v2/models/{name}/trace/setting",), "operation", "manage",
              "Change settings of a model's traces until the gateway ends.", _json("TraceSettings"),
              _json("TraceChange"), refusals=(*_BODY, 404)),
    Operation("sharedMemoryStatus", "get", _region("system", "status"), "shared memory", "memory",
              "The client's regions, or one of them.", {JSON: {"type": "array", "items": reference("Region")}},
              refusals=(404,)),
    Operation("registerSharedMemory", "post", _region("system", "register", every=False), "shared memory", "memory",
              "Register a region of a shared memory object that the client has made.\nThe object must belong to the"
              " user that the client runs as.", {}, _json("RegisterRequest"), needs_body=True,
              refusals=(*_BODY, 409, 429)),
    Operation("unregisterSharedMemory", "post", _region("system", "unregister"), "shared memory", "memory",
              "Unregister a region, or all of the client's.", {}),
    Operation("cudaMemoryStatus", "get", _region("cuda", "status"), "shared memory", "memory",
              "An empty list: there is no CUDA shared memory.", {JSON: {"type": "array"}}, refusals=(404,)),
    Operation("registerCudaMemory", "post", _region("cuda", "register", every=False), "shared memory", "memory",
              "Refused: models run on the processor.", {}, refusals=(501,)),
    Operation("unregisterCudaMemory", "post", _region("cuda", "unregister"), "shared memory", "memory",
              "Done: there is nothing to unregister.", {}),
    Operation("metrics", "get", ("/metrics",), "operation", "metrics",
              "Metrics as Prometheus text, or as OpenMetrics if Accept requests it.",
              {"text/plain": None, "application/openmetrics-text": None}, refusals=(404,)),
    Operation("status", "get", ("/status.json",), "operation", "metrics", "The data of the status page.",
              _json("Status")),
    Operation("statusPage", "get", ("/status",), "operation", "", "The state of the gateway, as a page.", {HTML: None}),
    Operation("document", "get", ("/openapi.json",), "operation", "", "This document.", {JSON: {"type": "object"}}),
    Operation("documentPage", "get", ("/docs",), "operation", "", "This document as a page to try requests.",
              {HTML: None}),
)  # fmt: skip
"""All operations, in the order in which they are shown."""
