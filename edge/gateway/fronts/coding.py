"""JSON to bytes and back: what a front does of an inference, so that the process that computes need not.

A request whose tensors are JSON becomes the same request with its tensors as binary data, and asks for its outputs in
binary; of the reply the client's form is made. For that nothing need be known of the model: the request says its
datatypes and shapes, and whether they are the model's is for the one who has the model to say. What is wrong with a
request, or merely unusual, goes as it came: there is one place where requests are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from edge.gateway.protocol.elements import from_bytes, from_json, to_bytes
from edge.gateway.protocol.numbers import cut
from edge.gateway.protocol.request import Request, Wanted
from edge.gateway.protocol.response import Reply, write
from lite_runtime.graph import Array, numpy_dtype

__all__ = ["Coded", "coded", "decoded"]

_RANK = 32
_BINARY, _SIZE = "binary_data_output", "binary_data_size"


def _port(datatype: str) -> Port:
    dtype = numpy_dtype(DATATYPES[datatype])
    return Port("", datatype, dtype, 0 if dtype.hasobject else dtype.itemsize, None)


_PORTS = {datatype: _port(datatype) for datatype in DATATYPES if datatype != "BF16"}
_NUMBERS = {datatype: port for datatype, port in _PORTS.items() if datatype != "BYTES"}
"""BYTES that came as JSON are text, and as binary data bytes: a pipeline may make a difference between them."""


class _Unusual(Exception):
    """Goes as it came."""


class Coded(NamedTuple):
    """A request in binary. `length`: bytes of JSON, the first part; `wanted` and `binary`: in which form the client
    asked for its outputs, as in `protocol.request.Request`."""

    parts: list[bytes | memoryview]
    length: int
    wanted: tuple[Wanted, ...] | None
    binary: bool


def coded(body: bytes | bytearray | memoryview) -> Coded | None:
    """A request that is all JSON, in binary; None where it should go as it came. Bodies may be anything at all."""
    quick = cut(body)
    header, arrays = quick if quick is not None else (body, {})
    try:
        return _coded(orjson.loads(header), dict(arrays))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, GatewayError, _Unusual):
        return None


def decoded(way: Coded, payload: bytes, length: int) -> Reply:
    """The reply to a coded request, as its client asked for it.

    payload: JSON of `length` bytes and all outputs in binary. Raises GatewayError (400) for what JSON cannot hold.
    """
    header = orjson.loads(payload[:length])
    outputs: dict[str, Array] = {}
    ports: dict[str, Port] = {}
    at = length
    for entry in header["outputs"]:
        name, size = entry["name"], entry["parameters"][_SIZE]
        port = _PORTS.get(entry["datatype"])
        if port is None:
            raise GatewayError(400, f"output {name!r}: {entry['datatype']} has no form in JSON")
        ports[name] = port._replace(name=name)
        outputs[name] = from_bytes(payload, at, size, ports[name], tuple(entry["shape"]))
        at += size
    request = Request(header.get("id", ""), {}, {}, 0, way.wanted, way.binary)
    notes = header.get("parameters", {})
    return write(header["model_name"], header["model_version"], request, outputs, Ports({}, ports, False), notes, None)


def _coded(document: Any, arrays: dict[str, Array]) -> Coded:
    _demand(type(document) is dict)
    name, parameters = document.get("id", ""), _parameters(document)
    binary = parameters.get(_BINARY, False)
    _demand(type(name) is str and type(binary) is bool)
    made: dict[str, Any] = {"id": name} if name else {}
    made["parameters"] = {**parameters, _BINARY: True}
    inputs, tensors = [], []
    for entry in _list(document.get("inputs")):
        whole, raw = _input(entry, arrays)
        inputs.append(whole)
        tensors.append(raw)
    _demand(not arrays and bool(inputs))
    made["inputs"] = inputs
    wanted = None
    if document.get("outputs"):
        made["outputs"], wanted = _outputs(_list(document["outputs"]))
    header = orjson.dumps(made)
    return Coded([header, *tensors], len(header), wanted, binary)


def _input(entry: Mapping[str, Any], arrays: dict[str, Array]) -> tuple[dict[str, Any], bytes | memoryview]:
    """An input without its data, and these."""
    name, shape, data, parameters = entry.get("name"), entry.get("shape"), entry.get("data"), _parameters(entry)
    datatype = entry.get("datatype")
    port = _NUMBERS.get(datatype) if type(datatype) is str else None
    _demand(type(name) is str and port is not None and type(shape) is list and _SIZE not in parameters)
    assert port is not None and shape is not None
    _demand(len(shape) <= _RANK and all(type(d) is int and 0 <= d < 1 << 40 for d in shape))
    if type(data) is str:
        data = arrays.pop(data, None)
    _demand(type(data) in (list, np.ndarray))
    raw = to_bytes(from_json(data, port, tuple(shape)), port)
    whole = {"name": name, "shape": shape, "datatype": datatype, "parameters": {**parameters, _SIZE: len(raw)}}
    return whole, raw


def _outputs(listed: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], tuple[Wanted, ...]]:
    """Outputs in binary, whatever they were asked for in, and what that was."""
    made, wanted = [], []
    for entry in listed:
        name, parameters = entry.get("name"), _parameters(entry)
        binary = parameters.get("binary_data", False)
        _demand(type(name) is str and type(binary) is bool)
        made.append({"name": name, "parameters": {**parameters, "binary_data": True}})
        wanted.append(Wanted(str(name), parameters.get("binary_data"), 0))
    return made, tuple(wanted)


def _list(found: Any) -> list[dict[str, Any]]:
    _demand(type(found) is list and all(type(entry) is dict for entry in found))
    return list(found)


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = entry.get("parameters", {})
    _demand(type(found) is dict)
    return dict(found)


def _demand(fits: bool) -> None:
    if not fits:
        raise _Unusual
