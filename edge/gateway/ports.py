"""The inputs and outputs of a signature, in terms of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edge.gateway.errors import GatewayError
from lite_runtime.graph import Array, Dim, Value, numpy_dtype

if TYPE_CHECKING:
    from lite_runtime import Model

__all__ = ["DATATYPES", "Port", "Ports", "nbytes_of", "ports_of"]

DATATYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
    "BYTES": "string",
}
"""The protocol's datatypes by the runtime's names for them (`lite_runtime.graph.DTYPES`)."""
ELEMENT = 50
"""Bytes of an element of BYTES beside its text."""
_DATATYPE_OF = {ours: theirs for theirs, ours in DATATYPES.items()}


class Port(NamedTuple):
    """An input or output. `dtype`: object for BYTES, which hold `bytes` or `str`; `shape`: dynamic sizes are a name or
    None. `itemsize` is 0 for BYTES."""

    name: str
    datatype: str
    dtype: np.dtype
    itemsize: int
    shape: tuple[Dim, ...] | None

    @property
    def open(self) -> tuple[int, ...]:
        """The shape as in the metadata: -1 for a dynamic size."""
        return tuple(d if isinstance(d, int) else -1 for d in self.shape or ())

    @property
    def least(self) -> int:
        """The smallest number of elements of one row: dynamic sizes count as one."""
        return prod(d for d in self.shape or () if isinstance(d, int))


class Ports(NamedTuple):
    """A signature's inputs and outputs by name, in the model's order.

    batched: whether axis 0 of all inputs and outputs is the same dynamic size, so that rows of several requests can be
    put into one array.
    """

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    batched: bool


def ports_of(model: Model, signature: str = "predict") -> Ports:
    """The ports of a signature. Raises GatewayError (501) for inputs or outputs without a datatype in the protocol."""
    inputs, outputs = model.inputs(signature), model.outputs(signature)
    firsts = {v.shape[0] if v.shape else None for v in (*inputs, *outputs)}
    (first,) = firsts if len(firsts) == 1 else (None,)
    batched = isinstance(first, str) and not any(first in (v.shape or ())[1:] for v in (*inputs, *outputs))
    return Ports({v.name: _port(v) for v in inputs}, {v.name: _port(v) for v in outputs}, batched)


def _port(value: Value) -> Port:
    if value.kind != "tensor" or value.dtype not in _DATATYPE_OF:
        what = value.dtype if value.kind == "tensor" else value.kind
        raise GatewayError(
            501, f"{value.name!r} is {what}, which the Open Inference Protocol has no datatype for; serve a model whose"
            f" inputs and outputs are tensors of {', '.join(DATATYPES.values())}"
        )  # fmt: skip
    dtype = numpy_dtype(value.dtype)
    return Port(value.name, _DATATYPE_OF[value.dtype], dtype, 0 if dtype.hasobject else dtype.itemsize, value.shape)


def nbytes_of(array: Array) -> int:
    """Bytes of memory that an array takes; of BYTES, approximately."""
    if array.dtype.hasobject:
        return sum([len(text) for text in array.flat]) + ELEMENT * array.size
    return array.nbytes
