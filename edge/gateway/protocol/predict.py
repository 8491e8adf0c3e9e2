"""Requests and replies of KServe's protocol, version 1: TensorFlow Serving's predict calls, in row and column form.

A request becomes the JSON of version 2, so that everything is checked as there: shapes follow from how lists are
nested, datatypes from the model. Sources: KServe, Data Plane V1; TensorFlow Serving, RESTful API, "Predict API".
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Port, Ports
from edge.gateway.protocol.layout import LIMITS
from edge.gateway.protocol.numbers import cut
from edge.gateway.protocol.parameters import expect, wrong
from edge.gateway.protocol.request import Request, loaded, read_document
from edge.gateway.protocol.response import Reply
from lite_runtime.graph import Array

__all__ = ["Predict", "document_of"]

_DEFAULTS = ("", "serving_default")
"""What clients write for a model's usual signature."""
_BINARY = "_bytes"
"""Outputs of text whose names end like this are sent in base64."""


class Predict:
    """See `exchange.Form`; one object a request, which remembers whether it came in rows."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = True

    def size(self, fields: Mapping[str, str], body: memoryview) -> int:
        """All of the body is JSON."""
        return len(body)

    def read(self, fields: Mapping[str, str], body: memoryview, ports: Callable[[str], Ports]) -> Request:
        """The request: `instances`, a list of rows, or `inputs`, columns. A row or the columns are an object with the
        inputs' names, or the value of the only input."""
        return self.request(document_of(body), ports)

    def request(self, document: Mapping[str, Any], ports: Callable[[str], Ports]) -> Request:
        """The request that a body's JSON holds."""
        signature = document.get("signature_name", "")
        expect(type(signature) is str, "expected signature_name to be a string")
        given = [key for key in ("instances", "inputs") if key in document]
        expect(len(given) == 1, "expected either instances or inputs, got %s", "both" if given else "neither")
        self._rows = given == ["instances"]
        parameters = {} if signature in _DEFAULTS else {"signature": signature}
        takes = ports(parameters.get("signature", "predict"))
        named = (_columns_of_rows if self._rows else _columns)(document[given[0]], takes)
        inputs = [_input(name, value, takes) for name, value in named.items()]
        return read_document({"parameters": parameters, "inputs": inputs}, ports)

    def write(
        self, model: str, version: str, request: Request, outputs: Mapping[str, Array], ports: Ports,
        notes: Mapping[str, Any], labels: Mapping[str, Sequence[str]],
    ) -> Reply:  # fmt: skip
        """`predictions`, one entry a row, or `outputs`, by name; a single output without its name."""
        made = {name: _values(outputs[name], port) for name, port in ports.outputs.items()}
        if self._rows:
            _check_rows({name: outputs[name].shape for name in made})
        single = next(iter(made.values())) if len(made) == 1 else None
        found = single if single is not None else _rows_of(made) if self._rows else made
        reply = {"predictions" if self._rows else "outputs": found, **({"parameters": notes} if notes else {})}
        if all(_finite(outputs[name]) for name in made):
            return Reply([orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)], None)
        return Reply([json.dumps(reply, default=lambda value: value.tolist()).encode()], None)

    def error(self, text: str) -> bytes:
        """`{"error": text}`."""
        return orjson.dumps({"error": text})

    def call(self, model: str) -> tuple[str, str]:
        """Method and path."""
        return "POST", f"/v1/models/{model}:predict"


def document_of(body: memoryview) -> dict[str, Any]:
    """The request's JSON, the value of `instances` or `inputs` as an array if it is a large one of numbers.
    Raises GatewayError (400, 413)."""
    if len(body) > LIMITS.json:
        raise GatewayError(413, f"expected at most {LIMITS.json} bytes of JSON, got {len(body)}")
    expect(len(body) > 0, 'the body is empty; expected {"instances": [...]} or {"inputs": ...}')
    quick = cut(body, b'"instances"') or cut(body, b'"inputs"')
    document = _filled(quick.header, quick.arrays) if quick is not None else None
    if document is None:
        document = loaded(body, LIMITS)
    if type(document) is not dict:
        raise wrong("expected the request to be a JSON object with instances or inputs")
    return document


def _filled(header: bytes, arrays: Mapping[str, Array]) -> Any:
    """The document with the cut-out arrays put back; None if one was at another place, or it is not valid."""
    try:
        document = loaded(header, LIMITS)
    except GatewayError:
        return None
    if type(document) is not dict:
        return None
    marked = {key: arrays[value] for key, value in document.items() if type(value) is str and value in arrays}
    return {**document, **marked} if len(marked) == len(arrays) else None


# -- from version 1 to version 2 ---------------------------------------------------------------------------------------


def _columns_of_rows(instances: Any, takes: Ports) -> dict[str, Any]:
    """The value of each input, all rows of it."""
    if isinstance(instances, np.ndarray):
        return {_only(takes): instances}
    expect(type(instances) is list and bool(instances), "expected instances to be a list of at least one row")
    first = instances[0]
    if type(first) is not dict or _is_base64(first):
        return {_only(takes): instances}
    for i, row in enumerate(instances):
        if type(row) is not dict or row.keys() != first.keys():
            raise wrong(f"instances[{i}]: expected an object with the inputs {sorted(first)}, as the row before it")
    return {name: [row[name] for row in instances] for name in first}


def _columns(inputs: Any, takes: Ports) -> dict[str, Any]:
    if type(inputs) is dict and not _is_base64(inputs):
        return inputs
    return {_only(takes): inputs}


def _only(takes: Ports) -> str:
    if len(takes.inputs) != 1:
        names = ", ".join(map(repr, takes.inputs))
        raise wrong(f"the model has {len(takes.inputs)} inputs; expected an object with the names {names}")
    return next(iter(takes.inputs))


def _input(name: str, value: Any, takes: Ports) -> dict[str, Any]:
    """An input of version 2."""
    port = takes.inputs.get(name)
    datatype = port.datatype if port is not None else ""
    if isinstance(value, np.ndarray):
        return {"name": name, "shape": list(value.shape), "datatype": datatype, "data": value}
    shape = _shape(value)
    data = value if shape else [value]
    if datatype == "BYTES":
        data = _decoded(data, shape, name)
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def _shape(value: Any) -> list[int]:
    """How the lists are nested, judged by the first elements; the others are compared with it later."""
    shape = []
    while type(value) is list:
        shape.append(len(value))
        value = value[0] if value else None
    return shape


def _decoded(data: list[Any], shape: list[int], name: str) -> list[Any]:
    """The elements in one list, those in base64 decoded."""
    level = data
    for size in shape[1:]:
        if any(type(each) is not list or len(each) != size for each in level):
            raise wrong(f"input {name!r}: expected lists of equal lengths, nested as the first element is: {shape}")
        level = [each for inner in level for each in inner]
    return [_from_base64(each, name) if _is_base64(each) else each for each in level]


def _is_base64(value: Any) -> bool:
    return type(value) is dict and value.keys() == {"b64"}


def _from_base64(value: Mapping[str, Any], name: str) -> bytes:
    text = value["b64"]
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise wrong(f'input {name!r}: expected {{"b64": text}} with valid base64: {error}') from None


# -- the reply ---------------------------------------------------------------------------------------------------------


def _values(array: Array, port: Port) -> Any:
    """An output for orjson, nested as its shape."""
    if not port.dtype.hasobject:
        return np.ascontiguousarray(array) if array.ndim else array[()]
    encode = _to_base64 if port.name.endswith(_BINARY) else _text
    flat = np.empty(array.size, object)
    flat[:] = [encode(each, port.name) for each in array.flat]
    return flat.reshape(array.shape).tolist()


def _to_base64(value: Any, name: str) -> dict[str, str]:
    raw = value if isinstance(value, bytes) else str(value).encode()
    return {"b64": b64encode(raw).decode("ascii")}


def _text(value: Any, name: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise GatewayError(
            400, f"output {name!r} holds bytes that are not UTF-8; ask over /v2 with binary_data: true"
        ) from None


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _check_rows(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise GatewayError (400) unless all outputs have the same number of rows."""
    if len({shape[0] if shape else None for shape in shapes.values()} | {None}) != 2 or () in shapes.values():
        told = ", ".join(f"{name!r} {list(shape)}" for name, shape in shapes.items())
        raise wrong(f"the outputs have no common number of rows: {told}; send inputs instead of instances")


def _rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    count = len(next(iter(columns.values()), ()))
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]
