"""Writing of inference replies: outputs by name become the body of a reply.

The body is JSON, or JSON followed by the tensors that were requested as binary data, in the order of `outputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from edge.gateway.ports import Port, Ports
from edge.gateway.protocol.classification import CLASSES, classify
from edge.gateway.protocol.elements import to_bytes, to_json
from edge.gateway.protocol.request import Request
from lite_runtime.graph import Array

__all__ = ["Chosen", "Reply", "chosen", "write"]


class Reply(NamedTuple):
    """A body in pieces, to be sent one after another; large tensors are views of the outputs.

    header_length: bytes of JSON in the first piece (`Inference-Header-Content-Length`); None: the whole body is JSON.
    """

    parts: list[bytes | memoryview]
    header_length: int | None


class Chosen(NamedTuple):
    """An output to be sent; binary: as bytes; shared: it is in shared memory already, and only described."""

    name: str
    port: Port
    array: Array
    binary: bool
    shared: bool


def chosen(
    request: Request, outputs: Mapping[str, Array], ports: Ports, labels: Mapping[str, Sequence[str]]
) -> Iterator[Chosen]:
    """The requested outputs in the requested order, or all in the model's order: see `write`."""
    for name, binary, count, region in request.wanted or [(name, None, 0, None) for name in ports.outputs]:
        port, array = ports.outputs[name], outputs[name]
        if count:
            array, port = classify(array, count, ports.batched, labels.get(name) or labels.get(""), name), CLASSES
        yield Chosen(name, port, array, request.binary if binary is None else binary, region is not None)


def write(
    model: str,
    version: str,
    request: Request,
    outputs: Mapping[str, Array],
    ports: Ports,
    notes: Mapping[str, Any],
    labels: Mapping[str, Sequence[str]],
) -> Reply:
    """The reply to a request, with the requested outputs in the requested order, or all outputs in the model's order.

    outputs: at least those of `ports`; notes: the reply's `parameters`, omitted if empty; labels: names of classes by
    output, for classifications; under "", those of all other outputs. Raises GatewayError (400) for outputs that cannot
    be sent as requested: see `elements.to_json` and `classification.classify`.
    """
    described: list[dict[str, Any]] = []
    reply: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": described}
    if request.id:
        reply["id"] = request.id
    if notes:
        reply["parameters"] = notes
    parts: list[bytes | memoryview] = [b""]
    for name, port, array, binary, shared in chosen(request, outputs, ports, labels):
        entry: dict[str, Any] = {"name": name, "datatype": port.datatype, "shape": array.shape}
        if shared:
            described.append(entry)
            continue
        if binary:
            raw = to_bytes(array, port)
            entry["parameters"] = {"binary_data_size": len(raw)}
            parts.append(raw)
        else:
            entry["data"] = to_json(array, port)
        described.append(entry)
    parts[0] = header = orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)
    return Reply(parts, len(header) if len(parts) > 1 else None)
