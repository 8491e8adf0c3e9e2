"""Ports of made-up signatures, and bodies as clients write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from edge.gateway.protocol.request import Request, read
from lite_runtime.graph import numpy_dtype

NUMERIC = [d for d in DATATYPES if d not in ("BOOL", "BYTES", "BF16")]


def port(name: str, datatype: str, shape: Sequence[int | str | None] | None) -> Port:
    dtype = numpy_dtype(DATATYPES[datatype])
    sizes = None if shape is None else tuple(shape)
    return Port(name, datatype, dtype, 0 if dtype.hasobject else dtype.itemsize, sizes)


def ports(inputs: Sequence[Port], outputs: Sequence[Port] = (), *, batched: bool = True) -> Callable[[str], Ports]:
    """As `read` wants them: a signature named `predict`, and no other."""
    only = Ports({p.name: p for p in inputs}, {p.name: p for p in outputs}, batched)

    def find(signature: str) -> Ports:
        if signature != "predict":
            raise GatewayError(404, f"no signature {signature!r}")
        return only

    return find


def tensor(name: str, datatype: str, shape: Sequence[Any], data: Any = None, **parameters: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    if data is not None:
        entry["data"] = data
    if parameters:
        entry["parameters"] = parameters
    return entry


def body(*inputs: Mapping[str, Any], **fields: Any) -> bytes:
    return json.dumps({"inputs": inputs, **fields}).encode()


def read_binary(header: bytes, raw: bytes, find: Callable[[str], Ports]) -> Request:
    return read(header + raw, len(header), find)
