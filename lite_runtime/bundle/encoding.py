"""Encodes graphs and arrays as a manifest's JSON and a section's bytes."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from lite_runtime.bundle.layout import ALIGN, INLINE, INT64, ZEROS, digest_of
from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.graph import Array, Graph, Node, StateUse, Value, dtype_name, numpy_dtype
from lite_runtime.graph.verify import MAX_DEPTH

__all__ = ["Encoder", "Store", "encode_golden", "encode_rows", "encode_state", "plain"]


class Store:
    """Collects the arrays of one section; equal contents are stored once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.records: list[list[Any]] = []
        self._offsets: dict[str, int] = {}
        self._rows: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._seen: dict[int, tuple[Array, int]] = {}

    def add(self, array: Array, where: str) -> int:
        """The row of `records` that describes `array`: [dtype, shape, offset, bytes, digest], or [dtype, shape, content
        in base64] for an array of up to INLINE bytes."""
        known = self._seen.get(id(array))
        if known is None:
            known = self._seen[id(array)] = (array, self._row(np.asarray(array), where))
        return known[1]

    def _row(self, array: Array, where: str) -> int:
        dtype, content = _array_bytes(array, where)
        if len(content) <= INLINE and dtype != "string":
            return self._inline(dtype, array.shape, base64.b64encode(content).decode("ascii"))
        digest = digest_of(content).hex()
        if digest not in self._offsets:
            self.data += bytes(-len(self.data) % ALIGN)
            self._offsets[digest] = len(self.data)
            self.data += content
        key = (dtype, array.shape, digest)
        if key not in self._rows:
            self._rows[key] = len(self.records)
            self.records.append([dtype, list(array.shape), self._offsets[digest], len(content), digest])
        return self._rows[key]

    def _inline(self, dtype: str, shape: tuple[int, ...], content: str) -> int:
        key = (dtype, shape, content)
        if key not in self._rows:
            self._rows[key] = len(self.records)
            self.records.append([dtype, list(shape), content])
        return self._rows[key]


def _array_bytes(array: Array, where: str) -> tuple[str, bytes]:
    """The lite dtype and canonical bytes of an array: row-major, little-endian, each string preceded by its length."""
    try:
        dtype = dtype_name(array.dtype)
    except MsedgeError as error:
        raise BundleError(f"{where}: {error}; cast it first") from None
    if dtype != "string":
        return dtype, array.astype(numpy_dtype(dtype), copy=False).tobytes()
    content = bytearray()
    for item in array.ravel().tolist():
        try:
            raw = item if isinstance(item, bytes) else item.encode("utf-8")
            raw.decode("utf-8")
        except (AttributeError, UnicodeError):
            raise BundleError(f"{where}: expected text in a string tensor, got {item!r}; convert it to str") from None
        content += struct.pack("<I", len(raw)) + raw
    return dtype, bytes(content)


class Encoder:
    """Graphs to JSON values.

    A graph is an object of `name`, `inputs`, `outputs`, `nodes`, `attrs`, `constants`; a value is [name, dtype, shape
    or null, kind], a node [op, inputs, outputs, row of its attributes, name], a constant the row of its tensor. `attrs`
    lists objects of attributes: equal ones are stored once, those that contain a graph once per node.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def graph(self, graph: Graph) -> dict[str, Any]:
        """A graph as JSON; its constants are added to the store."""
        constants = {name: self._store.add(graph.constants[name], f"constant {name!r}") for name in _by_use(graph)}
        attrs: dict[str, Any] = {}
        return {
            "name": graph.name,
            "inputs": [self._value(v) for v in graph.inputs],
            "outputs": [self._value(v) for v in graph.outputs],
            "nodes": [self._node(n, attrs) for n in graph.nodes],
            "attrs": [row for row, _ in attrs.values()],
            "constants": constants,
        }

    @staticmethod
    def _value(value: Value) -> list[Any]:
        return [value.name, value.dtype, None if value.shape is None else list(value.shape), value.kind]

    def _node(self, node: Node, attrs: dict[str, Any]) -> list[Any]:
        """The node as JSON; `attrs` collects the rows of attributes: text of a row -> (row, its number)."""
        row = {name: self._attr(value, node, name) for name, value in sorted(node.attrs.items())}
        shared = not any(isinstance(value, Graph) for value in node.attrs.values())
        key = repr(row) if shared else f"of node {node.outputs!r}"
        _, number = attrs.setdefault(key, (row, len(attrs)))
        return [node.op, list(node.inputs), list(node.outputs), number, node.name]

    def _attr(self, value: Any, node: Node, name: str) -> Any:
        """An attribute: int, float, string, a list of one of these; {"tensor": row}, {"graph": …}; and for numbers that
        are not finite, which JSON lacks, {"float": "inf"} and {"floats": […, "nan"]}."""
        where = f"{node.where}, attribute {name!r}"
        if isinstance(value, Graph):
            return {"graph": self.graph(value)}
        if isinstance(value, np.ndarray):
            return {"tensor": self._store.add(value, where)}
        if isinstance(value, tuple):
            if all(isinstance(v, float) for v in value) and not all(map(math.isfinite, value)):
                return {"floats": [v if math.isfinite(v) else str(v) for v in value]}
            return list(value)
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        return value


def _by_use(graph: Graph) -> list[str]:
    """Names of a graph's constants: first those its nodes read, in that order, then the others sorted by name."""
    used = dict.fromkeys(name for node in graph.nodes for name in node.inputs if name in graph.constants)
    return [*used, *sorted(set(graph.constants) - set(used))]


def encode_golden(example: tuple[Mapping[str, Array], Mapping[str, Array]], store: Store) -> list[dict[str, int]]:
    """A golden example as rows of the store."""
    return [{name: store.add(side[name], f"golden {name!r}") for name in sorted(side)} for side in example]


def encode_rows(state: Mapping[str, Array], store: Store) -> dict[str, Any]:
    """By name of state its row in the store, or [dtype, shape] if it is all zeros, so that optimiser slots use no
    space.

    Readers allow only ZEROS bytes of such zeros for each stored byte; zeros beyond that are stored as well.
    """
    contents = {name: _array_bytes(state[name], f"state {name!r}") for name in sorted(state)}
    zeros = {
        name: [dtype, list(state[name].shape)]
        for name, (dtype, content) in contents.items()
        if dtype != "string" and len(content) > INLINE and content.count(0) == len(content)
    }
    rows: dict[str, Any] = {name: store.add(state[name], f"state {name!r}") for name in contents if name not in zeros}
    room = ZEROS * len(store.data)
    for name, described in zeros.items():
        room -= len(contents[name][1])
        rows[name] = described if room >= 0 else store.add(state[name], f"state {name!r}")
    return dict(sorted(rows.items()))


def encode_state(state: Mapping[str, Array], uses: Mapping[str, StateUse], store: Store) -> dict[str, Any]:
    """The manifest's `state`, by name (`encode_rows`), and `uses`, by signature [reads, writes]: names of inputs and
    of outputs to names of state. Neither key is present if there is no state."""
    if not state:
        return {}
    return {
        "state": encode_rows(state, store),
        "uses": {name: [dict(sorted(side.items())) for side in uses[name]] for name in sorted(uses)},
    }


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """`value` as plain JSON values with sorted mappings; raises BundleError for anything else."""
    if depth > MAX_DEPTH:
        raise BundleError(f"{where}: expected at most {MAX_DEPTH} levels of nesting, got more; flatten it")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise BundleError(f"{where}: expected string keys, got {list(value)[:8]!r}; convert them to str")
        return {key: plain(value[key], f"{where}.{key}", depth + 1) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int) and -INT64 <= value < INT64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise BundleError(
        f"{where}: expected JSON values (None, bool, 64-bit int, finite float, str, list, dict), got "
        f"{type(value).__name__} {str(value)[:60]!r}; convert or drop it"
    )
