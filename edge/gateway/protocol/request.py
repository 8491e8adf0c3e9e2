"""Parsing of inference requests: a body and the length of its header become arrays by name.

Open Inference Protocol 2 with Triton's binary data extension: JSON, then tensors as bytes in the order of `inputs`.
Pure functions, except for the cache `_KNOWN`; any thread may call them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Ports
from edge.gateway.protocol.elements import from_bytes, from_json
from edge.gateway.protocol.known import Known
from edge.gateway.protocol.layout import LIMITS, Layout, Limits, Shared, Wanted, layout_of, raw_layout
from edge.gateway.protocol.numbers import Cut, cut
from edge.gateway.protocol.parameters import wrong
from lite_runtime.graph import Array

__all__ = ["LIMITS", "Limits", "Request", "Wanted", "loaded", "read", "read_document"]


@dataclass(slots=True)
class Request:
    """An inference request.

    parameters: strings, numbers and booleans; shared between requests and therefore read-only. Those that have an
    effect here are validated: `priority` and `timeout` (microseconds; 0: none) are integers of at least 0, `signature`
    is a string. inputs: all inputs of the signature, in its datatypes and shapes; views of the body if they were
    aligned binary data. BYTES are `bytes` from binary data, `str` from JSON (`elements.texts` makes all of them `str`).
    rows: size of axis 0 if the signature is batched, else 1. wanted: the requested outputs in order; None: all.
    binary: whether outputs are sent as binary data if they do not specify it themselves. shared: tensors in shared
    memory, whose inputs are not in `inputs` yet; None: there are none.
    """

    id: str
    parameters: Mapping[str, Any]
    inputs: dict[str, Array]
    rows: int
    wanted: tuple[Wanted, ...] | None
    binary: bool
    shared: Shared | None = None


_KNOWN = Known()
_SIGNS = b"[", b"{", b","


def read(
    body: bytes | bytearray | memoryview,
    header_length: int | None,
    ports: Callable[[str], Ports],
    limits: Limits = LIMITS,
) -> Request:
    """Parse a request and validate it against the ports of the signature that it names (`predict` by default).

    header_length: bytes of JSON at the beginning (`Inference-Header-Content-Length`); None: the whole body is JSON; 0:
    no JSON, the whole body is the single input. ports: returns the ports of a signature by name, and raises
    GatewayError for an unknown name; it must return the same object each time, so that cached headers can be reused.
    limits: the same for all requests of a process.
    Unknown fields and parameters are ignored, as in Triton. Raises GatewayError: 400 for invalid requests, 413 beyond
    `limits`, and what `ports` raises.
    """
    if header_length == 0:
        return _raw(body, ports("predict"))
    end = len(body) if header_length is None else header_length
    if not len(body):
        raise wrong("the body is empty; expected the protocol's JSON")
    if not 0 < end <= len(body):
        where = "Inference-Header-Content-Length"
        raise wrong(f"the body has {len(body)} bytes, fewer than the {end} bytes of JSON in {where}")
    if end > limits.json:
        raise GatewayError(413, f"expected at most {limits.json} bytes of JSON, got {end}; send binary data")
    if header_length is None:
        layout = _parsed(body, ports, limits)
        return _request(layout, layout.id, body, end)
    header = bytes(body[:end])
    known = _KNOWN.get(header, ports)
    if known is None:
        layout = _parsed(header, ports, limits)
        _KNOWN.put(header, layout)
        known = layout, layout.id
    return _request(*known, body, end)


def read_document(document: Mapping[str, Any], ports: Callable[[str], Ports], limits: Limits = LIMITS) -> Request:
    """The request in a parsed JSON document without binary data: see `read`."""
    layout = layout_of(document, ports, limits)
    return _request(layout, layout.id, b"", 0)


def _raw(body: bytes | bytearray | memoryview, takes: Ports) -> Request:
    layout = raw_layout(len(body), takes)
    port, shape, *_ = layout.parts[0]
    if port.datatype != "BYTES":
        return _request(layout, "", body, 0)
    element = np.empty(shape, object)
    element[...] = bytes(body)
    return Request("", layout.parameters, {port.name: element}, layout.rows, None, True)


def _parsed(header: bytes | bytearray | memoryview, ports: Callable[[str], Ports], limits: Limits) -> Layout:
    quick = cut(header)
    document = None if quick is None else _filled(quick, limits)
    return layout_of(loaded(header, limits) if document is None else document, ports, limits)


def loaded(text: bytes | bytearray | memoryview, limits: Limits) -> Any:
    """A JSON document. Raises GatewayError: 413 if it has too many items, 400 if it is not valid JSON."""
    if len(text) > limits.items and sum(map(bytes(text).count, _SIGNS)) > limits.items:
        what = f"{limits.items} brackets and commas outside large arrays of numbers"
        raise GatewayError(413, f"the JSON has more than {what}; send binary data")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise GatewayError(400, f"expected the request to be JSON: {error}") from None


def _filled(quick: Cut, limits: Limits) -> Any:
    """The document with the cut-out arrays put back; None if it is not valid JSON, or an array was elsewhere than in an
    input's `data`: then the whole text is parsed, which gives the exact error, if there is one."""
    try:
        document = loaded(quick.header, limits)
    except GatewayError:
        return None
    inputs = document.get("inputs") if type(document) is dict else None
    filled = 0
    for entry in inputs if type(inputs) is list else ():
        data = entry.get("data") if type(entry) is dict else None
        if type(data) is str and data in quick.arrays:
            entry["data"] = quick.arrays[data]
            filled += 1
    return document if filled == len(quick.arrays) else None


def _request(layout: Layout, name: str, body: bytes | bytearray | memoryview, start: int) -> Request:
    if layout.total != len(body) - start:
        raise GatewayError(
            400, f"binary_data_size of all inputs is {layout.total} bytes, {len(body) - start} follow the JSON, which"
            f" takes {start} (Inference-Header-Content-Length)"
        )  # fmt: skip
    inputs = {
        port.name: from_bytes(body, start + at, size, port, shape) if data is None else from_json(data, port, shape)
        for port, shape, data, at, size, region in layout.parts
        if region is None
    }
    return Request(name, layout.parameters, inputs, layout.rows, layout.wanted, layout.binary, layout.shared)
