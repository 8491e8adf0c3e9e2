"""ModelInferRequest and ModelInferResponse: arrays from and to the protocol's messages.

A request is checked by the same rules as one over HTTP (`protocol.layout`): names, datatypes, shapes and parameters
mean the same there. Elements are in `raw_input_contents`, or in `contents` of each input, in the field of its datatype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Ask
from edge.gateway.grpc.messages import INFERENCE, message, parsed
from edge.gateway.grpc.wire import Parted, nested, part
from edge.gateway.ports import Port, Ports
from edge.gateway.protocol.elements import from_bytes, from_numbers, to_bytes
from edge.gateway.protocol.layout import LIMITS, layout_of
from edge.gateway.protocol.parameters import expect, wrong
from edge.gateway.protocol.request import Request
from edge.gateway.protocol.response import Reply, chosen
from lite_runtime.graph import Array

__all__ = ["MOST_TYPED", "TYPED", "InferForm", "open_request", "parted"]

MOST_TYPED = 16 << 20
"""Bytes of a request without `raw_input_contents`."""
TYPED = 16
"""Bytes of memory that a byte of typed elements may take when it is parsed."""
_RAW_INPUTS, _RAW_OUTPUTS, _RESPONSE = 7, 6, 2
"""Numbers of fields: of ModelInferRequest, ModelInferResponse, ModelStreamInferResponse."""
_NARROW = np.dtype(np.int64)
_CONTENTS: Mapping[str, tuple[str, np.dtype]] = {
    "BOOL": ("bool_contents", np.dtype(np.bool_)),
    "INT8": ("int_contents", _NARROW),
    "INT16": ("int_contents", _NARROW),
    "INT32": ("int_contents", np.dtype(np.int32)),
    "INT64": ("int64_contents", np.dtype(np.int64)),
    "UINT8": ("uint_contents", _NARROW),
    "UINT16": ("uint_contents", _NARROW),
    "UINT32": ("uint_contents", np.dtype(np.uint32)),
    "UINT64": ("uint64_contents", np.dtype(np.uint64)),
    "FP32": ("fp32_contents", np.dtype(np.float32)),
    "FP64": ("fp64_contents", np.dtype(np.float64)),
    "BYTES": ("bytes_contents", np.dtype(object)),
}
"""By datatype, the field of its elements, and the type in which they are read before they are checked."""
_KINDS: Mapping[type, str] = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
_ELEMENTS: Any = object()
"""Stands for an input's elements in what `layout_of` checks."""


def parted(data: bytes) -> Parted:
    """A request's tensors and the rest of it. Raises GatewayError (400, 413)."""
    found = part(data, _RAW_INPUTS)
    if len(found.rest) > MOST_TYPED:
        raise GatewayError(
            413, f"expected at most {MOST_TYPED} bytes beside raw_input_contents, got {len(found.rest)}; send tensors"
            " as raw_input_contents"
        )  # fmt: skip
    return found


def open_request(data: bytes, found: Parted, *, to: Ask, stream: bool = False) -> Ask:
    """A request as the gateway takes it; `to` says who asks. Raises GatewayError (400)."""
    request = parsed("ModelInferRequest", found.rest)
    form = InferForm(request, found.raws, len(found.rest), stream)
    return to._replace(model=request.model_name, version=request.model_version, body=memoryview(data), form=form)


@dataclass(frozen=True, slots=True)
class InferForm:
    """One request's `exchange.Form`. message: without its tensors, which are at `raws` of the body; length: of the
    message; stream: whether the reply is one of a stream's."""

    message: Any
    raws: Sequence[tuple[int, int]]
    length: int
    stream: bool

    @property
    def id(self) -> str:
        """The request's id."""
        return str(self.message.id)

    @property
    def sequence(self) -> int | str:
        """The sequence that the request says it belongs to; 0 or "": none."""
        value = self.message.parameters.get("sequence_id")
        kind = value.WhichOneof("parameter_choice") if value is not None else None
        found: int | str = getattr(value, kind) if kind else 0
        return found

    def size(self, fields: Mapping[str, str], body: memoryview) -> int:
        """The length of the message without its tensors."""
        return self.length

    def read(self, fields: Mapping[str, str], body: memoryview, ports: Callable[[str], Ports]) -> Request:
        """The request. Raises GatewayError: 400, 413, 501, and what `ports` raises."""
        message, raws = self.message, self.raws
        layout = layout_of(_document(message), ports, LIMITS)
        typed = [one for one in message.inputs if one.HasField("contents") and one.contents.ListFields()]
        if raws and typed:
            raise wrong(f"input {typed[0].name!r}: expected either contents or raw_input_contents, got both")
        sent = [(i, part) for i, part in enumerate(layout.parts) if part.region is None]
        if raws and len(raws) != len(sent):
            raise wrong(f"expected one element of raw_input_contents for each of {len(sent)} inputs, got {len(raws)}")
        inputs: dict[str, Array] = {}
        for k, (i, (port, shape, *_)) in enumerate(sent):
            if raws:
                inputs[port.name] = _raw(body, *raws[k], port, shape, k)
            else:
                inputs[port.name] = _typed(message.inputs[i].contents, port, shape)
        return Request(message.id, layout.parameters, inputs, layout.rows, layout.wanted, True, layout.shared)

    def write(
        self, model: str, version: str, request: Request, outputs: Mapping[str, Array], ports: Ports,
        notes: Mapping[str, Any], labels: Mapping[str, Sequence[str]],
    ) -> Reply:  # fmt: skip
        """ModelInferResponse with all outputs in `raw_output_contents`; in a stream, ModelStreamInferResponse."""
        made = message("ModelInferResponse")(model_name=model, model_version=version, id=request.id)
        raws: list[bytes | memoryview] = []
        for name, port, array, _, shared in chosen(request, outputs, ports, labels):
            made.outputs.add(name=name, datatype=port.datatype, shape=array.shape)
            raws += nested(_RAW_OUTPUTS, [] if shared else [to_bytes(array, port)])
        _tell(made.parameters, {**notes, "triton_final_response": True} if self.stream else notes)
        parts = [made.SerializeToString(), *raws]
        return Reply(nested(_RESPONSE, parts) if self.stream else parts, None)

    def error(self, text: str) -> bytes:
        """The text."""
        return text.encode()

    def call(self, model: str) -> tuple[str, str]:
        """gRPC's name of the method, with the model."""
        return "GRPC", f"/{INFERENCE}/Model{'Stream' if self.stream else ''}Infer/{model}"


def _document(message: Any) -> dict[str, Any]:
    """The message in the form of the protocol's JSON, elements left out."""
    given = {"parameters": {**_parameters(message.parameters, "the request"), "binary_data_output": True}}
    inputs = [
        {
            "name": one.name, "datatype": one.datatype, "shape": list(one.shape), "data": _elements(one),
            "parameters": _parameters(one.parameters, one.name, "binary_data_size"),
        }
        for one in message.inputs
    ]  # fmt: skip
    outputs = [{"name": one.name, "parameters": _parameters(one.parameters, one.name, "binary_data")}
               for one in message.outputs]  # fmt: skip
    return {"id": message.id, "inputs": inputs, "outputs": outputs, **given}


def _elements(one: Any) -> Any:
    """What stands for an input's elements; None if they are in shared memory and not in the message."""
    return _ELEMENTS if "shared_memory_region" not in one.parameters or one.HasField("contents") else None


def _parameters(given: Mapping[str, Any], whose: str, but: str = "") -> dict[str, Any]:
    """Parameters as Python's values, without one that only JSON needs."""
    found = {}
    for key, value in given.items() if given else ():
        kind = value.WhichOneof("parameter_choice")
        expect(kind is not None, "parameters of %s: expected %r to have a value, got none", whose, key)
        if key != but:
            found[key] = getattr(value, kind)
    return found


def _tell(parameters: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        setattr(parameters[key], _KINDS[type(value)], value)


def _raw(body: memoryview, at: int, size: int, port: Port, shape: tuple[int, ...], index: int) -> Array:
    count = prod(shape)
    if port.itemsize and size != count * port.itemsize:
        raise wrong(f"input {port.name!r}: {port.datatype} {list(shape)} takes {count * port.itemsize} bytes,"
                    f" raw_input_contents[{index}] has {size}")  # fmt: skip
    return from_bytes(body, at, size, port, shape)


def _typed(contents: Any, port: Port, shape: tuple[int, ...]) -> Array:
    """The elements in `contents`, in the field that the datatype has."""
    field, dtype = _CONTENTS.get(port.datatype, ("", _NARROW))
    if not field:
        raise wrong(f"input {port.name!r}: {port.datatype} has no field in contents; send raw_input_contents")
    others = [found.name for found, _ in contents.ListFields() if found.name != field]
    if others:
        raise wrong(f"input {port.name!r} is {port.datatype}: expected contents.{field}, got {others[0]}")
    elements, count = getattr(contents, field), prod(shape)
    if len(elements) != count:
        raise wrong(f"input {port.name!r}: expected {count} elements in contents.{field}, as its shape {list(shape)}"
                    f" says, got {len(elements)}")  # fmt: skip
    array = np.fromiter(elements, dtype, count)
    if array.dtype != port.dtype:
        array = from_numbers(array, port)
    return array.reshape(shape)
