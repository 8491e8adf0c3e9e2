"""JSON Schemas of all requests and replies: the Open Inference Protocol's objects with Triton's extensions, and ours.

Sources: the protocol's `rest_predict_v2.yaml`, Triton's extension texts (binary data, classification, model repository,
model configuration, statistics). Limits of this gateway are part of the schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.gateway.pages.language import LANGUAGE
from edge.gateway.ports import DATATYPES

__all__ = ["NAME", "SCHEMAS", "VERSION", "Schema", "reference"]

Schema = Mapping[str, Any]

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}$"
"""Names of models that need no escaping in a path."""
VERSION = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}$"
"""A version's number, or a label of a version (`canary`)."""
MOST_AXES = 32
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT: Schema = {"type": "string"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
PERHAPS_SECONDS: Schema = {"type": ["number", "null"], "minimum": 0}


def reference(name: str) -> Schema:
    """A `$ref` to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Schema, *, optional: str = "", about: str = "", closed: bool = False) -> Schema:
    """An object whose properties are required, except those named in `optional`."""
    left_out = optional.split()
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name in properties if name not in left_out]:
        made["required"] = required
    return made | ({"description": about} if about else {}) | ({"additionalProperties": False} if closed else {})


def _list(items: Schema, **bounds: Any) -> Schema:
    return {"type": "array", "items": items, **bounds}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _about(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


_DATATYPE: Schema = {"type": "string", "enum": list(DATATYPES)}
_SIZE: Schema = {"type": "integer", "minimum": 0, "maximum": 2**40}
_OPEN_SIZE: Schema = {"type": "integer", "minimum": -1}
_PARAMETERS: Schema = _map({"type": ["string", "number", "boolean"]})
_DURATION: Schema = reference("Duration")

_PROTOCOL: Mapping[str, Schema] = {
    "Error": _object({"error": _about(TEXT, "What was expected, what was got, where, and the fix.")}, closed=True),
    "Live": _object({"live": {"const": True}}),
    "Ready": _object({"ready": {"const": True}}),
    "ModelReady": _object(
        {
            "name": TEXT,
            "ready": {"const": True},
            "id": TEXT,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": TEXT,
            "parent": _about(TEXT, "The model without its adapter."),
        },
        optional="name id object created owned_by parent",
    ),
    "Server": _object({"name": TEXT, "version": TEXT, "extensions": _list(TEXT)}),
    "TensorMetadata": _object(
        {"name": TEXT, "datatype": _DATATYPE, "shape": _about(_list(_OPEN_SIZE), "-1: any size.")},
    ),
    "Model": _object(
        {
            "name": TEXT,
            "versions": _list(TEXT),
            "platform": TEXT,
            "inputs": _list(reference("TensorMetadata")),
            "outputs": _list(reference("TensorMetadata")),
        },
        optional="versions",
    ),
    "ModelConfig": _object(
        {
            "name": TEXT,
            "max_batch_size": _about(COUNT, "0: requests are not batched."),
            "input": _list(reference("ConfigTensor")),
            "output": _list(reference("ConfigTensor")),
            "ensemble_scheduling": reference("EnsembleScheduling"),
        },
        optional="ensemble_scheduling",
        about="The parts of Triton's model configuration that apply here.",
    ),
    "ConfigTensor": _object(
        {
            "name": TEXT,
            "data_type": {"type": "string", "pattern": "^TYPE_[A-Z0-9]+$"},
            "dims": _list(_OPEN_SIZE),
            "reshape": _object({"shape": _list(_OPEN_SIZE)}),
        },
        optional="reshape",
    ),
    "EnsembleScheduling": _object(
        {
            "step": _list(
                _object(
                    {
                        "model_name": TEXT,
                        "model_version": _about({"type": "integer", "minimum": -1}, "-1: by the model's own routing."),
                        "model_label": _about(TEXT, "A label in the place of a version."),
                        "input_map": _about(_map(TEXT), "The ensemble's names of tensors by the model's."),
                        "output_map": _map(TEXT),
                    },
                    optional="model_label",
                )
            )
        },
        about="Of an ensemble: which models compute what of which tensors.",
    ),
}
_PLACE: Schema = {
    "shared_memory_region": _about(TEXT, "A registered region that holds the tensor, or is to hold it."),
    "shared_memory_offset": _about(COUNT, "Where it begins in the region, in bytes."),
    "shared_memory_byte_size": _about(COUNT, "Its bytes; for an output at most."),
}
_INFER: Mapping[str, Schema] = {
    "Data": _about(
        _list({"anyOf": [{"type": ["number", "string", "boolean"]}, reference("Data")]}),
        "Elements in row-major order, flat or nested according to `shape`. Strings for BYTES, booleans for BOOL.",
    ),
    "InferInput": _object(
        {
            "name": TEXT,
            "shape": _list(_SIZE, maxItems=MOST_AXES),
            "datatype": _DATATYPE,
            "parameters": reference("InputParameters"),
            "data": reference("Data"),
        },
        optional="parameters data",
        about="`data`, or `parameters.binary_data_size` bytes of the body's binary part, or a place in shared memory.",
    ),
    "InputParameters": {
        "type": "object",
        "properties": {
            "binary_data_size": _about(_SIZE, "Size of this input in bytes, in the data after the JSON."),
            **_PLACE,
        },
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "WantedOutput": _object({"name": TEXT, "parameters": reference("OutputParameters")}, optional="parameters"),
    "OutputParameters": {
        "type": "object",
        "properties": {
            "binary_data": _about({"type": "boolean"}, "Whether this output is sent as bytes after the JSON."),
            "classification": _about(COUNT, "Return so many largest elements instead, as `value:index[:label]`."),
            **_PLACE,
        },
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "InferParameters": {
        "type": "object",
        "properties": {
            "binary_data_output": _about({"type": "boolean"}, "Whether outputs are sent as bytes by default."),
            "confidence": _about({"type": "boolean"}, "Whether the reply's parameters say how sure the model is."),
            "priority": _about(COUNT, "1: highest; 0: default, in the middle."),
            "timeout": _about(COUNT, "Deadline in microseconds; 0: the gateway's default."),
            "signature": _about(TEXT, "The bundle's signature to run; default: `predict`."),
            "device": _about(TEXT, "The device whose personal version of the model is requested."),
            "sequence_id": _about(
                {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, {**TEXT, "maxLength": 128}]},
                "The sequence that the request continues, for models that keep state.",
            ),
            "sequence_start": _about({"type": "boolean"}, "The first request of a sequence: state as in the bundle."),
            "sequence_end": _about({"type": "boolean"}, "The last request of a sequence: its state is forgotten."),
        },
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "InferRequest": _object(
        {
            "id": _about(TEXT, "Returned in the reply."),
            "parameters": reference("InferParameters"),
            "inputs": _list(reference("InferInput"), minItems=1),
            "outputs": _about(_list(reference("WantedOutput")), "Default: all outputs of the signature."),
        },
        optional="id parameters outputs",
    ),
    "InferOutput": _object(
        {
            "name": TEXT,
            "datatype": _DATATYPE,
            "shape": _list(_SIZE),
            "parameters": _PARAMETERS,
            "data": reference("Data"),
        },
        optional="parameters data",
    ),
    "InferReply": _object(
        {
            "model_name": TEXT,
            "model_version": TEXT,
            "id": TEXT,
            "parameters": _about(_PARAMETERS, "How it was answered: `personal` if a device was named."),
            "outputs": _list(reference("InferOutput")),
        },
        optional="id parameters",
    ),
}
_PREDICT: Mapping[str, Schema] = {
    "Models": _object(
        {"models": _list(TEXT), "object": {"const": "list"}, "data": _list({"type": "object"})},
    ),
    "PredictValue": {
        "anyOf": [
            {"type": ["number", "string", "boolean"]},
            _object({"b64": _about(TEXT, "Bytes in base64, for inputs of type BYTES.")}, closed=True),
            _list(reference("PredictValue")),
        ]
    },
    "PredictColumns": {"anyOf": [reference("PredictValue"), _map(reference("PredictValue"))]},
    "PredictRequest": {
        **_object(
            {
                "signature_name": _about(TEXT, "The bundle's signature to run; default: `predict`."),
                "instances": _about(
                    _list(reference("PredictColumns"), minItems=1),
                    "Rows: objects with a value for each input, or the values of the only input.",
                ),
                "inputs": _about(reference("PredictColumns"), "Columns: all rows of each input, or of the only input."),
            },
            optional="signature_name instances inputs",
        ),
        "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
    },
    "ExplainRequest": {
        **_object(
            {
                "instances": _about(
                    _list(reference("PredictColumns"), minItems=1), "Rows, each explained by itself, as for predict."
                ),
                "inputs": _about(reference("PredictColumns"), "Columns, as for predict."),
                "parameters": reference("ExplainParameters"),
            },
            optional="instances inputs parameters",
        ),
        "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
    },
    "ExplainParameters": _object(
        {
            "method": _about(
                TEXT,
                "saliency, input_x_gradient, integrated_gradients, smoothgrad (bundles with the signature `explain`), "
                "occlusion, rise or kernel_shap.",
            ),
            "target": _about(COUNT, "The output that is explained; default: that with the highest score."),
            "input": _about(TEXT, "Of several inputs, the one that is explained."),
            "output": _about(TEXT, "The model's output with the scores; default: the first."),
            "kind": _about(TEXT, "image, sound, series, table or text; default: by the shape."),
            "size": _about(COUNT, "Elements of a part along rows, columns or time."),
            "baseline": _about(
                {"anyOf": [TEXT, {"type": "number"}]}, "For what is removed: zero, mean, blur, low, high or a number."
            ),
            "steps": _about(COUNT, "Points of integrated_gradients."),
            "rule": _about(TEXT, "gauss_legendre, middle, left, right or trapezoid."),
            "samples": _about(COUNT, "Of smoothgrad, rise and kernel_shap."),
            "seed": _about(COUNT, "Of what is drawn."),
        },
        optional="method target input output kind size baseline steps rule samples seed",
        closed=True,
    ),
    "ExplainReply": _object({"explanations": _list(reference("Explanation"))}),
    "Explanation": _object(
        {
            "method": TEXT,
            "target": COUNT,
            "label": TEXT,
            "score": {"type": "number"},
            "base_score": _about({"type": ["number", "null"]}, "Of the baseline, if a method has one."),
            "completeness_error": {"type": ["number", "null"]},
            "rows": _about(COUNT, "Rows that were asked of the model."),
            "attributions": _about({"type": "array"}, "As the row: positive values raised the score."),
        },
        optional="label",
    ),
    "PredictReply": _object(
        {"predictions": {"type": "array"}, "outputs": {}, "parameters": _PARAMETERS},
        optional="predictions outputs parameters",
        about="`predictions` for `instances`: one entry a row; `outputs` for `inputs`. A single output has no name.",
    ),
}
_REPOSITORY: Mapping[str, Schema] = {
    "IndexRequest": _object({"ready": _about({"type": "boolean"}, "Only models that are ready.")}, optional="ready"),
    "IndexEntry": _object(
        {"name": TEXT, "version": TEXT, "state": reference("State"), "reason": TEXT}, optional="version state reason"
    ),
    "State": {"type": "string", "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]},
    "LoadRequest": _object({"parameters": reference("LoadParameters")}, optional="parameters"),
    "LoadParameters": {
        "type": "object",
        "properties": {"config": _about(TEXT, "The model's configuration, as JSON in a string.")},
        "patternProperties": {"^file:": _about(TEXT, "A file of the model, in base64.")},
    },
    "UnloadRequest": _object({"parameters": reference("UnloadParameters")}, optional="parameters"),
    "UnloadParameters": _object(
        {"unload_dependents": _about({"type": "boolean"}, "Whether to unload the ensembles that use it as well.")},
        optional="unload_dependents",
    ),
}
_MEMORY: Mapping[str, Schema] = {
    "Region": _object({"name": TEXT, "key": TEXT, "offset": COUNT, "byte_size": COUNT}),
    "RegisterRequest": _object(
        {
            "key": _about(TEXT, "The name of a shared memory object, such as `/tensors`."),
            "offset": _about(COUNT, "Where the region begins in it, in bytes."),
            "byte_size": {"type": "integer", "minimum": 1},
        },
        optional="offset",
    ),
}
_STAGES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
_STATISTICS: Mapping[str, Schema] = {
    "Duration": _object({"count": COUNT, "ns": COUNT}),
    "BatchStatistics": _object(
        {
            "batch_size": {"type": "integer", "minimum": 1},
            "compute_input": _DURATION,
            "compute_infer": _DURATION,
            "compute_output": _DURATION,
        }
    ),
    "ModelStatistics": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "last_inference": _about(COUNT, "Milliseconds since 1970; 0: never."),
            "inference_count": _about(COUNT, "Rows."),
            "execution_count": _about(COUNT, "Batches."),
            "inference_stats": _object(dict.fromkeys(_STAGES, _DURATION), optional="cache_hit cache_miss"),
            "batch_stats": _list(reference("BatchStatistics")),
        }
    ),
    "Statistics": _object({"model_stats": _list(reference("ModelStatistics"))}),
}
_LOG: Mapping[str, Schema] = {
    "log_file": _about(TEXT, "Empty: stderr. It cannot be changed."),
    "log_info": _about({"type": "boolean"}, "Needs log_warning."),
    "log_warning": {"type": "boolean"},
    "log_error": _about({"type": "boolean"}, "Always true."),
    "log_verbose_level": _about(COUNT, "1: debug."),
    "log_format": _about(TEXT, "How times are written: ISO8601. It cannot be changed."),
    "log_requests": _about(SHARE, "The share of requests that are logged."),
}
_TRACE_LEVEL: Schema = {"type": "string", "enum": ["TIMESTAMPS", "OFF"]}
_ADJUST: Mapping[str, Schema] = {
    "LogSettings": _object(_LOG),
    "LogChange": _about(_object(_LOG, optional=" ".join(_LOG)), "null: as at the start."),
    "TraceSettings": _object(
        {
            "trace_level": _list(_TRACE_LEVEL),
            "trace_rate": _about(TEXT, "One of so many requests is traced."),
            **dict.fromkeys(("trace_file", "trace_count", "log_frequency", "trace_mode"), TEXT),
        }
    ),
    "TraceChange": _object(
        {
            "trace_level": {"anyOf": [_TRACE_LEVEL, _list(_TRACE_LEVEL), {"type": "null"}]},
            "trace_rate": {"anyOf": [COUNT, TEXT, {"type": "null"}]},
            **dict.fromkeys(("trace_file", "trace_count", "log_frequency", "trace_mode"), TEXT),
        },
        optional="trace_level trace_rate trace_file trace_count log_frequency trace_mode",
        about="null: as for all models, or as at the start.",
    ),
}
_SHARES = ("p50", "p95", "p99")
_STATUS: Mapping[str, Schema] = {
    "Histogram": _object(
        {"bounds": _list({"type": "number"}), "counts": _list(COUNT)},
        about="`counts[i]` values are at most `bounds[i]`; the last count: those above all bounds.",
    ),
    "Latency": _object(dict.fromkeys(_SHARES, PERHAPS_SECONDS), about="Seconds, over the last minute; null: none."),
    "Flow": _object({"requests": {"type": "number", "minimum": 0}, "rows": {"type": "number", "minimum": 0}}),
    "Personal": _object(
        {"devices": COUNT, "capacity": COUNT, "bytes": COUNT, "hits": COUNT, "misses": COUNT},
        about="Devices whose personal versions are in memory.",
    ),
    "Shadow": _object(
        {
            "version": TEXT,
            "fraction": SHARE,
            "compared": COUNT,
            "dropped": COUNT,
            "failed": COUNT,
            "agreement": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "difference": _about({"type": ["number", "null"], "minimum": 0}, "The largest; null: infinite."),
        },
        about="`agreement`: share of rows; null: none was compared.",
    ),
    "ModelStatus": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "state": reference("State"),
            "reason": TEXT,
            "labels": _list(TEXT),
            "share": _about(SHARE, "Share of this model's requests without a version."),
            "answered": COUNT,
            "failed": COUNT,
            "rows": COUNT,
            "batches": COUNT,
            "in_flight": COUNT,
            "queued": COUNT,
            "bytes": COUNT,
            "compiling": _about({"type": "boolean"}, "Whether it runs by reference until its kernels are compiled."),
            "signer": _about(TEXT, "The trusted key that has signed it."),
            "latency": reference("Latency"),
            "personal": {"anyOf": [reference("Personal"), {"type": "null"}]},
            "shadow": {"anyOf": [reference("Shadow"), {"type": "null"}]},
        }
    ),
    "Source": _object(
        {
            "name": TEXT,
            "state": {"type": "string", "enum": ["ok", "stale", "unread", "unreachable"]},
            "age": {"type": "number", "minimum": 0},
            "reason": TEXT,
        },
        about="A folder, registry or store. stale: what was read before is used; `age`: seconds since it was read.",
    ),
    "Status": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "state": {"type": "string", "enum": ["starting", "ready", "draining"]},
            "uptime": {"type": "number", "minimum": 0},
            "in_flight": COUNT,
            "queued": _object({"jobs": COUNT, "rows": COUNT}),
            "answered": _object({"requests": COUNT, "rows": COUNT}),
            "recent": reference("Flow"),
            "latency": reference("Latency"),
            "latencies": reference("Histogram"),
            "batches": reference("Histogram"),
            "refused": _about(_map(COUNT), "Refused requests by reason."),
            "memory": _object(
                {"process": COUNT, "models": COUNT, "limit": _about({"type": ["integer", "null"]}, "null: none.")}
            ),
            "lag": _about(PERHAPS_SECONDS, "How late the event loop is."),
            "sources": _list(reference("Source")),
            "keys": _list(_object({"name": TEXT, "key": TEXT, "expires": PERHAPS_SECONDS}, about="Trusted keys.")),
            "kernels": _about(
                _object({"done": COUNT, "of": COUNT, "problem": TEXT}),
                "Kernel families being compiled; `of`: 0 if there are none.",
            ),
            "models": _list(reference("ModelStatus")),
            "unlisted": _about(COUNT, "Number of further versions that are not listed."),
        }
    ),
}
SCHEMAS: Mapping[str, Schema] = {
    **_PROTOCOL, **_INFER, **_PREDICT, **_REPOSITORY, **_MEMORY, **_STATISTICS, **_ADJUST, **_STATUS,
    **LANGUAGE,
}  # fmt: skip
"""Every schema by the name that `reference` accepts."""
