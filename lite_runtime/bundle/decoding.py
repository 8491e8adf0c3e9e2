"""Decodes a manifest's JSON and a section's bytes to graphs and arrays; everything is validated before use."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from lite_runtime.bundle.contents import Golden, TensorRecord
from lite_runtime.bundle.encoding import plain
from lite_runtime.bundle.layout import ALIGN, INLINE, ZEROS, digest_of
from lite_runtime.bundle.refusal import list_of, mapping_of, named, object_of, refuse, show, string_of
from lite_runtime.graph import DTYPES, Array, Attr, Dim, Graph, Node, StateUse, Value, numpy_dtype
from lite_runtime.graph.verify import MAX_DEPTH, checked_nbytes

__all__ = ["Decoder", "Tensors", "decode_golden", "decode_state", "decode_uses", "plain_object"]


class Tensors:
    """The arrays of one section, created from its table on first access; every row of the table is checked at once."""

    def __init__(self, table: Any, data: memoryview, section: str, thorough: bool) -> None:
        self._data, self._section = data, section
        self._inline: dict[int, bytes] = {}
        self.records = [
            self._record(row, i) for i, row in enumerate(list_of(table, f"manifest, tensors of {section!r}"))
        ]
        self._check_overlap()
        if thorough:
            self._check_digests()
        self._made: dict[int, Array] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the section."""
        return len(self._data)

    def get(self, row: Any, where: str) -> Array:
        """The array of a row, a read-only view."""
        if type(row) is not int or not 0 <= row < len(self.records):
            refuse(where, f"a row below {len(self.records)} of the tensors of {self._section!r}", show(row))
        array = self._made.get(row)
        if array is None:
            array = self._made[row] = self._make(row)
        return array

    def _where(self, row: int) -> str:
        return f"section {self._section!r}, tensor {row}"

    def _record(self, row: Any, i: int) -> TensorRecord:
        where = self._where(i)
        if type(row) is not list or len(row) not in (3, 5):
            refuse(where, "[dtype, shape, offset, bytes, digest] or [dtype, shape, content]", show(row))
        if len(row) == 3:
            self._inline[i] = _content(row[2], where)
            row = [*row[:2], _NOWHERE, len(self._inline[i]), ""]
        dtype, shape, offset, nbytes, digest = row
        if type(dtype) is not str or dtype not in DTYPES:
            refuse(where, "a dtype msedge knows", show(dtype), f"use one of {', '.join(DTYPES)}")
        if type(shape) is not list or not all(type(d) is int for d in shape):
            refuse(where, "a shape of whole numbers", show(shape))
        if type(offset) is not int or type(nbytes) is not int or type(digest) is not str:
            refuse(where, "offset and bytes as whole numbers and the digest as text", show(row[2:]))
        shape = tuple(shape)
        if dtype == "string":
            wanted = 4 * named(where, checked_nbytes, "uint8", shape)
            if nbytes < wanted:
                refuse(where, f"at least {wanted} bytes for the lengths of strings of shape {shape}", str(nbytes))
        elif nbytes != (wanted := named(where, checked_nbytes, dtype, shape)):
            refuse(where, f"{wanted} bytes for {dtype} of shape {shape}", str(nbytes))
        if i in self._inline:
            if dtype == "string":
                refuse(where, "strings stored in a section", "strings stored in the manifest")
            return TensorRecord(dtype, shape, _NOWHERE, nbytes, "")
        if offset < 0 or offset % ALIGN or offset + nbytes > len(self._data):
            refuse(where, f"a multiple of {ALIGN} within {len(self._data)} bytes", f"{nbytes} bytes at {offset}")
        return TensorRecord(dtype, shape, offset, nbytes, digest)

    def _check_overlap(self) -> None:
        extents = sorted({(r.offset, r.nbytes) for r in self.records if r.nbytes and r.offset != _NOWHERE})
        for (offset, nbytes), (after, _) in pairwise(extents):
            if offset + nbytes > after:
                expected = f"the tensor after byte {offset} at {offset + nbytes} or later"
                refuse(f"section {self._section!r}", expected, f"{after}: they overlap")

    def _check_digests(self) -> None:
        for i, record in enumerate(self.records):
            if (
                i not in self._inline
                and digest_of(self._data[record.offset : record.offset + record.nbytes]).hex() != record.digest
            ):
                refuse(self._where(i), f"BLAKE2b-256 {record.digest[:16]!r}…", "other contents")

    def _make(self, row: int) -> Array:
        record, where = self.records[row], self._where(row)
        count = math.prod(record.shape)
        if record.dtype == "string":
            return self._make_strings(record, count, where)
        dtype = named(where, numpy_dtype, record.dtype)
        if not count:
            array = np.empty(record.shape, dtype)
            array.flags.writeable = False
            return array
        if row in self._inline:
            array = np.frombuffer(self._inline[row], dtype).reshape(record.shape).copy()
            array.flags.writeable = False
            return array
        array = np.frombuffer(self._data, dtype, count, record.offset)
        return array.reshape(record.shape)

    def _make_strings(self, record: TensorRecord, count: int, where: str) -> Array:
        data = bytes(self._data[record.offset : record.offset + record.nbytes])
        items, at = [], 0
        for i in range(count):
            size = int.from_bytes(data[at : at + 4], "little")
            end = at + 4 + size
            if end > len(data):
                refuse(f"{where}, string {i}", f"an end within {len(data)} bytes", str(end))
            try:
                items.append(data[at + 4 : end].decode("utf-8"))
            except UnicodeDecodeError as error:
                refuse(f"{where}, string {i}", "UTF-8", str(error.reason))
            at = end
        if at != len(data):
            refuse(where, f"strings that fill {len(data)} bytes", f"{at}")
        array = np.empty(count, object)
        array[:] = items
        array = array.reshape(record.shape)
        array.flags.writeable = False
        return array


_NOWHERE = -1


def _content(text: Any, where: str) -> bytes:
    """The bytes of an array stored in the manifest."""
    if type(text) is not str or len(text) > 2 * INLINE:
        refuse(where, f"up to {INLINE} bytes in base64", show(text))
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        refuse(where, "base64", str(error))
    if len(content) > INLINE:
        refuse(where, f"up to {INLINE} bytes in the manifest", str(len(content)))
    return content


class Decoder:
    """JSON values to graphs: accepts only what `Encoder` makes. Checks JSON types; `verify_graph` checks the rest."""

    _GRAPH = ("name", "inputs", "outputs", "nodes", "attrs", "constants")

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def graph(self, doc: Any, depth: int = 0) -> Graph:
        """The graph that a JSON object describes; `depth` counts the enclosing graphs."""
        if depth > MAX_DEPTH:
            refuse("subgraph", f"graphs nested at most {MAX_DEPTH} deep", "deeper nesting")
        object_of(doc, "graph", self._GRAPH)
        constants = {
            name: self._tensors.get(row, f"constant {name!r}")
            for name, row in mapping_of(doc["constants"], "constants").items()
        }
        attrs: list[Mapping[str, Attr] | None] = [
            self._attrs(row, f"attributes {i}", depth) for i, row in enumerate(list_of(doc["attrs"], "attributes"))
        ]
        return Graph(
            inputs=tuple([self._value(v, "input", i) for i, v in enumerate(list_of(doc["inputs"], "inputs"))]),
            outputs=tuple([self._value(v, "output", i) for i, v in enumerate(list_of(doc["outputs"], "outputs"))]),
            nodes=tuple([self._node(n, i, attrs) for i, n in enumerate(list_of(doc["nodes"], "nodes"))]),
            constants=MappingProxyType(constants),
            name=string_of(doc["name"], "graph name"),
        )

    @staticmethod
    def _value(row: Any, what: str, i: int) -> Value:
        if type(row) is not list or len(row) != 4:
            refuse(f"{what} {i}", "[name, dtype, shape, kind]", show(row))
        name, dtype, shape, kind = row
        if type(name) is not str or type(dtype) is not str or type(kind) is not str:
            refuse(f"{what} {i}", "name, dtype and kind as text", show(row))
        if shape is not None and not (type(shape) is list and all(type(d) in (int, str, type(None)) for d in shape)):
            refuse(f"{what} {name!r}", "a shape of whole numbers, names and nulls, or null", show(shape))
        dims: tuple[Dim, ...] | None = None if shape is None else tuple(shape)
        return Value(name, dtype, dims, kind)

    @staticmethod
    def _node(row: Any, i: int, attrs: list[Mapping[str, Attr] | None]) -> Node:
        if type(row) is not list or len(row) != 5:
            refuse(f"node {i}", "[op, inputs, outputs, row of attributes, name]", show(row))
        op, inputs, outputs, number, name = row
        if type(op) is not str or type(name) is not str:
            refuse(f"node {i}", "op and name as text", show([op, name]))
        if type(inputs) is not list or type(outputs) is not list or not set(map(type, inputs + outputs)) <= {str}:
            refuse(f"node {i}, {show(op)}", "inputs and outputs as lists of names", show([inputs, outputs]))
        if type(number) is not int or not 0 <= number < len(attrs):
            refuse(f"node {i}, {show(op)}", f"a row below {len(attrs)} of attributes", show(number))
        own = attrs[number]
        if own is None:
            refuse(f"node {i}, {show(op)}", "attributes with a graph in one node only", "the same row in two")
        if any(type(value) is Graph for value in own.values()):
            attrs[number] = None  # shared graphs nested in shared graphs would let a small file expand without limit
        return Node(op, tuple(inputs), tuple(outputs), own, name)

    def _attrs(self, row: Any, where: str, depth: int) -> Mapping[str, Attr]:
        made = {key: self._attr(value, f"{where}, {show(key)}", depth) for key, value in mapping_of(row, where).items()}
        return MappingProxyType(made)

    def _attr(self, value: Any, where: str, depth: int) -> Attr:
        kind = type(value)
        if kind is int or kind is float or kind is str:
            return value  # type: ignore[no-any-return]
        if kind is list:
            if not value or (type(value[0]) in (int, float, str) and len(set(map(type, value))) == 1):
                return tuple(value)
        elif kind is dict and len(value) == 1:
            ((tag, inner),) = value.items()
            if tag == "tensor":
                return self._tensors.get(inner, where)
            if tag == "graph":
                body: Graph = named(where, self.graph, inner, depth + 1)
                return body
            if tag == "float" and type(inner) is str and inner in _NOT_FINITE:
                return float(inner)
            if tag == "floats" and type(inner) is list:
                return tuple([self._float(v, where) for v in inner])
        refuse(where, "a number, text, a list of one of these, a tensor or a graph", show(value))

    @staticmethod
    def _float(value: Any, where: str) -> float:
        if type(value) is float or (type(value) is str and value in _NOT_FINITE):
            return float(value)
        refuse(where, "floats", show(value))


_NOT_FINITE = ("inf", "-inf", "nan")


def decode_golden(doc: Any, tensors: Tensors) -> Golden:
    """Golden inputs and outputs by signature."""
    made = {}
    for name, sides in mapping_of(doc, "manifest, golden").items():
        where = f"golden {name!r}"
        if type(sides) is not list or len(sides) != 2:
            refuse(where, "[inputs, outputs]", show(sides))
        inputs, outputs = ({k: tensors.get(v, where) for k, v in mapping_of(side, where).items()} for side in sides)
        made[name] = (MappingProxyType(inputs), MappingProxyType(outputs))
    return made


def decode_state(doc: Any, tensors: Tensors) -> Mapping[str, Array]:
    """Initial state by name; zeros are described by type and shape only, not stored."""
    made: dict[str, Array] = {}
    room = ZEROS * tensors.nbytes
    for name, row in mapping_of(doc, "manifest, state").items():
        where = f"state {show(name)}"
        if type(row) is list:
            made[name] = _zeros(row, room, where)
            room -= made[name].nbytes
        else:
            made[name] = tensors.get(row, where)
    return MappingProxyType(made)


def _zeros(row: list[Any], room: int, where: str) -> Array:
    """The array of [dtype, shape], read-only, if it has no more than `room` bytes."""
    if len(row) != 2 or type(row[0]) is not str or row[0] not in DTYPES or row[0] == "string":
        refuse(where, "a row of its section, or [dtype, shape] of zeros", show(row))
    dtype, shape = row
    if type(shape) is not list or not all(type(d) is int for d in shape):
        refuse(where, "a shape of whole numbers", show(shape))
    nbytes = named(where, checked_nbytes, dtype, tuple(shape))
    if nbytes > room:
        refuse(where, f"at most {ZEROS} bytes of zeros for each stored byte", f"{nbytes} with {room} left")
    array = np.zeros(shape, named(where, numpy_dtype, dtype))
    array.flags.writeable = False
    return array


def decode_uses(doc: Any) -> Mapping[str, StateUse]:
    """The state that each signature reads and writes. Checks JSON types; `verify_state` checks the rest."""
    made = {}
    for name, sides in mapping_of(doc, "manifest, uses").items():
        where = f"manifest, uses of {show(name)}"
        if type(sides) is not list or len(sides) != 2:
            refuse(where, "[reads, writes]", show(sides))
        reads, writes = (mapping_of(side, where) for side in sides)
        if not all(type(held) is str for held in (*reads.values(), *writes.values())):
            refuse(where, "names of state", "something else")
        made[name] = StateUse(MappingProxyType(reads), MappingProxyType(writes))
    return MappingProxyType(made)


def plain_object(value: Any, where: str) -> dict[str, Any]:
    """A JSON object of plain values, as provenance and metadata are."""
    return plain(mapping_of(value, f"manifest, {where}"), where)  # type: ignore[no-any-return]
