"""The bundle (`.mslite`): one file that holds a model's graphs, weights and what is known of where it came from.

Little-endian throughout. A file is a 64-byte header, a table of 96-byte section entries, then the sections, in the
table's order, each at a multiple of 64 bytes (`weights` at a multiple of 4096), less than 4096 zero bytes between them:

    header   magic, byte-order mark, format version, section count, version of msedge needed, 4 zero bytes,
             file size, BLAKE2b-256 of the first 32 bytes and the table
    entry    name, offset, size, flags (1: a reader that does not know this section must give up), version of msedge
             needed, 8 zero bytes, BLAKE2b-256 of the section
    manifest JSON in UTF-8: see `_Encoder` and `_Decoder`
    golden   arrays a correct runtime reproduces (optional)
    weights  the graphs' constants, row-major, each at a multiple of 64 bytes, equal contents once

A section nobody here knows is skipped unless flagged as required. Reading is pure: bytes in, verified object out;
nothing in a file can make the reader run code, or take more than a fixed multiple of the file's size in memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from lite_runtime._blake import blake2b
from lite_runtime._files import write_atomically
from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.graph import DTYPES, Array, Attr, Dim, Graph, Node, Value, dtype_name, numpy_dtype
from lite_runtime.verify import MAX_DEPTH, MAX_NAME, checked_nbytes, verify_arrays, verify_graph

__all__ = ["FORMAT", "MAGIC", "Bundle", "Section", "TensorRecord", "read", "write"]

MAGIC = b"\x89MSLITE\n"
FORMAT = 1

_ALIGN, _PAGE = 64, 4096
_ENDIAN = 0x01020304
_HEADER = struct.Struct("<8sIHHI4xQ32s")
_ENTRY = struct.Struct("<32sQQII8x32s")
_REQUIRED = 1
_NEEDS = (0, 1, 0)
"""The first msedge that reads what `write` makes."""
_FEATURES: frozenset[str] = frozenset()
"""Manifest features beyond format 1 that this reader knows."""
_KNOWN = ("manifest", "golden", "weights")
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_./+-")
_MAX_SECTIONS = 1024
_MAX_MANIFEST = 1 << 25
_AGAIN = "the file is damaged; fetch or convert it again"
_CONVERT = "to make one: msedge convert MODEL -o out.mslite"
_INT64 = 1 << 63

Golden = Mapping[str, tuple[Mapping[str, Array], Mapping[str, Array]]]


class Section(NamedTuple):
    """One row of the section table; `offset` and `size` in bytes, `digest` the BLAKE2b-256 in hex."""

    name: str
    offset: int
    size: int
    required: bool
    digest: str


class TensorRecord(NamedTuple):
    """Where a stored tensor lies in its section: the unit of delta updates. `digest` is of its bytes, in hex."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    digest: str


class Bundle(NamedTuple):
    """A verified bundle. Arrays are read-only views into the file, string tensors excepted."""

    signatures: Mapping[str, Graph]
    golden: Golden
    provenance: Mapping[str, Any]
    metadata: Mapping[str, Any]
    digest: str
    """Names the contents: BLAKE2b-256 over header and section table, which holds every section's own."""
    sections: Mapping[str, Section]
    tensors: tuple[TensorRecord, ...]
    """The records of the `weights` section."""
    data: memoryview
    """The whole file, read-only."""

    def section(self, name: str) -> memoryview:
        """The bytes of a section; KeyError where there is none of that name."""
        return _cut(self.data, self.sections[name])


# ------------------------------------------------------------------------------------------------------------- writing


def write(
    path: str | os.PathLike[str] | None,
    signatures: Mapping[str, Graph],
    *,
    provenance: Mapping[str, Any] = MappingProxyType({}),
    metadata: Mapping[str, Any] = MappingProxyType({}),
    golden: Golden = MappingProxyType({}),
    extra: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """The bytes of a bundle, also written to `path` unless it is None.

    Equal arguments give equal bytes, whatever the order of their mappings. `golden[signature]` is (inputs, outputs).
    `extra` adds optional sections, which readers that do not know them skip. Raises BundleError for a graph that
    `verify_graph` refuses, for values no bundle can hold and for a path that cannot be written; a failed write
    leaves nothing behind.
    """
    _need_little_endian()
    if not signatures:
        raise BundleError("expected at least one signature, got none; name one, such as {'predict': graph}")
    for name, graph in signatures.items():
        _check_signature(name, graph)
    _check_golden(signatures, golden)
    weights, examples = _Store(), _Store()
    encoder = _Encoder(weights)
    manifest = {
        "signatures": {name: encoder.graph(signatures[name]) for name in sorted(signatures)},
        "golden": {name: _encode_golden(golden[name], examples) for name in sorted(golden)},
        "tensors": {"weights": weights.records, "golden": examples.records},
        "provenance": _plain(provenance, "provenance"),
        "metadata": _plain(metadata, "metadata"),
        "requires": {},
    }
    parts: list[tuple[str, bytes | bytearray, int]] = [("manifest", _dump(manifest), _REQUIRED)]
    if golden:
        parts.append(("golden", examples.data, 0))
    parts += [(name, extra[name], 0) for name in sorted(extra)]
    parts.append(("weights", weights.data, _REQUIRED))
    data = _assemble(parts)
    if path is not None:
        write_atomically(path, data, BundleError)
    return data


def _assemble(parts: Sequence[tuple[str, bytes | bytearray, int]]) -> bytes:
    """Lay out sections behind a header and a table."""
    if len({name for name, _, _ in parts}) < len(parts):
        raise BundleError(f"expected extra sections not named {', '.join(_KNOWN)}, got one that is; rename it")
    body, table = bytearray(), bytearray()
    start = _HEADER.size + _ENTRY.size * len(parts)
    for name, content, flags in parts:
        offset = _align(start + len(body), _PAGE if name == "weights" else _ALIGN)
        body += bytes(offset - start - len(body))
        body += content
        digest = _digest(content)
        table += _ENTRY.pack(_section_name(name), offset, len(content), flags, _packed_version(_NEEDS), digest)
    head = (MAGIC, _ENDIAN, FORMAT, len(parts), _packed_version(_NEEDS), start + len(body))
    digest = _digest(_HEADER.pack(*head, b"")[:32] + table)
    return b"".join((_HEADER.pack(*head, digest), table, body))


def _section_name(name: str) -> bytes:
    if not _may_name_section(name):
        raise BundleError(f"expected a section name of 1 to 32 of a-z 0-9 _ . / + -, got {name!r}; rename it")
    return name.encode("ascii")


def _may_name_section(name: str) -> bool:
    return 1 <= len(name) <= 32 and _NAME_CHARACTERS.issuperset(name)


class _Store:
    """Collects the arrays of one section, equal contents once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.records: list[list[Any]] = []
        self._offsets: dict[str, int] = {}
        self._rows: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._seen: dict[int, tuple[Array, int]] = {}

    def add(self, array: Array, where: str) -> int:
        """The row of `records` that describes `array`: dtype, shape, offset, bytes, digest."""
        known = self._seen.get(id(array))
        if known is None:
            known = self._seen[id(array)] = (array, self._row(np.asarray(array), where))
        return known[1]

    def _row(self, array: Array, where: str) -> int:
        dtype, content = _array_bytes(array, where)
        digest = _digest(content).hex()
        if digest not in self._offsets:
            self.data += bytes(-len(self.data) % _ALIGN)
            self._offsets[digest] = len(self.data)
            self.data += content
        key = (dtype, array.shape, digest)
        if key not in self._rows:
            self._rows[key] = len(self.records)
            self.records.append([dtype, list(array.shape), self._offsets[digest], len(content), digest])
        return self._rows[key]


def _array_bytes(array: Array, where: str) -> tuple[str, bytes]:
    """The lite dtype and the canonical bytes of an array: row-major, little-endian, strings each behind its length."""
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


class _Encoder:
    """Graphs to JSON values.

    A graph is an object of `name`, `inputs`, `outputs`, `nodes`, `attrs`, `constants`; a value is [name, dtype, shape
    or null, kind], a node [op, inputs, outputs, row of its attributes, name], a constant the row of its tensor. `attrs`
    lists objects of attributes: equal ones once, those that hold a graph each for the one node it belongs to.
    """

    def __init__(self, store: _Store) -> None:
        self._store = store

    def graph(self, graph: Graph) -> dict[str, Any]:
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
        """The node as JSON; `attrs` gathers what rows of attributes there are: (row, its number) by a text of it."""
        row = {name: self._attr(value, node, name) for name, value in sorted(node.attrs.items())}
        shared = not any(isinstance(value, Graph) for value in node.attrs.values())
        key = repr(row) if shared else f"of node {node.outputs!r}"
        _, number = attrs.setdefault(key, (row, len(attrs)))
        return [node.op, list(node.inputs), list(node.outputs), number, node.name]

    def _attr(self, value: Any, node: Node, name: str) -> Any:
        """An attribute: int, float, string, a list of one of these; {"tensor": row}, {"graph": …} and, as JSON has
        no such numbers, {"float": "inf"} and {"floats": […, "nan"]} for what is not finite."""
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
    """Names of a graph's constants: those its nodes read, in that order, then the others by name."""
    used = dict.fromkeys(name for node in graph.nodes for name in node.inputs if name in graph.constants)
    return [*used, *sorted(set(graph.constants) - set(used))]


def _encode_golden(example: tuple[Mapping[str, Array], Mapping[str, Array]], store: _Store) -> list[dict[str, int]]:
    return [{name: store.add(side[name], f"golden {name!r}") for name in sorted(side)} for side in example]


def _check_signature(name: str, graph: Graph) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        _refuse("signatures", f"names of 1 to {MAX_NAME} characters", _show(name), "rename it")
    _named(f"signature {_show(name)}", verify_graph, graph)


def _check_golden(signatures: Mapping[str, Graph], golden: Golden) -> None:
    for name, (inputs, outputs) in golden.items():
        if name not in signatures:
            raise BundleError(f"golden: expected a signature of {', '.join(signatures)}, got {name!r}; rename it")
        _named(f"golden {name!r}", verify_arrays, signatures[name].inputs, inputs)
        _named(f"golden {name!r}", verify_arrays, signatures[name].outputs, outputs)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """`value` as plain JSON values, mappings sorted; raises BundleError for anything else."""
    if depth > MAX_DEPTH:
        raise BundleError(f"{where}: expected at most {MAX_DEPTH} levels of nesting, got more; flatten it")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise BundleError(f"{where}: expected string keys, got {list(value)[:8]!r}; convert them to str")
        return {key: _plain(value[key], f"{where}.{key}", depth + 1) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise BundleError(
        f"{where}: expected JSON values (None, bool, 64-bit int, finite float, str, list, dict), got "
        f"{type(value).__name__} {str(value)[:60]!r}; convert or drop it"
    )


def _dump(manifest: Mapping[str, Any]) -> bytes:
    text = json.dumps(manifest, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[max(error.start - 20, 0) : error.end]
        raise BundleError(f"manifest: expected valid Unicode text, got {bad!r}; rename it") from None
    if len(data) > _MAX_MANIFEST:
        raise BundleError(
            f"manifest: expected at most {_MAX_MANIFEST} bytes of JSON, got {len(data)}; make long attributes arrays"
        )
    return data


# ------------------------------------------------------------------------------------------------------------- reading


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | mmap.mmap, *, thorough: bool = False
) -> Bundle:
    """Read and verify a bundle from a path, which is mapped, or from memory, which is not copied.

    Every section's digest is checked; `thorough` also checks each tensor's own. Arrays are read-only views that keep
    the source alive (memory not at a multiple of 16 bytes is copied, for kernels read whole vectors). Raises
    BundleError for a file that cannot be read or is not, in every respect, a bundle this version knows.
    """
    _need_little_endian()
    if isinstance(source, str | os.PathLike):
        made: Bundle = _named(repr(os.fspath(source)), _read, _map(source), thorough)
        return made
    return _read(_view(source), thorough)


def _need_little_endian() -> None:
    if sys.byteorder != "little":
        raise BundleError("expected a little-endian machine, got a big-endian one; msedge does not run there")


def _map(path: str | os.PathLike[str]) -> memoryview:
    """The file as read-only memory; it must not be cut short while in use (`write` replaces, never cuts)."""
    shown = os.fspath(path)
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{shown!r}: expected a file, got a folder or device; give the path of one")
            if not status.st_size:
                raise BundleError(f"{shown!r}: expected a bundle, got an empty file; {_CONVERT}")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise BundleError(f"{shown!r}: expected a file, got none of that name; check the path, or {_CONVERT}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"cannot read {shown!r}: {reason}; check the path and its permissions") from error


def _view(source: bytes | bytearray | memoryview | mmap.mmap) -> memoryview:
    try:
        view = memoryview(source).toreadonly().cast("B")
    except (TypeError, ValueError) as error:
        raise BundleError(
            f"expected a path, bytes, a contiguous memoryview or mmap, got {type(source).__name__}: {error}"
        ) from None
    if len(view) and np.frombuffer(view, np.uint8).ctypes.data % 16:
        return memoryview(bytes(view))
    return view


def _read(data: memoryview, thorough: bool) -> Bundle:
    digest, sections = _read_table(data)
    for section in sections.values():
        if _digest(_cut(data, section)) != bytes.fromhex(section.digest):
            _refuse(f"section {section.name!r}", f"BLAKE2b-256 {section.digest[:16]}…", "other contents")
    doc = _parse(bytes(_section(data, sections, "manifest")))
    _object(doc, "manifest", ("signatures", "golden", "tensors", "provenance", "metadata", "requires"))
    _check_features(doc["requires"])
    tables = _object(doc["tensors"], "manifest, tensors", ("weights", "golden"))
    weights = _Tensors(tables["weights"], _section(data, sections, "weights"), "weights", thorough)
    decoder = _Decoder(weights)
    signatures: dict[str, Graph] = {}
    for name, graph in _mapping(doc["signatures"], "manifest, signatures").items():
        signatures[name] = _named(f"signature {_show(name)}", decoder.graph, graph)
        _check_signature(name, signatures[name])
    if not signatures:
        _refuse("manifest, signatures", "at least one", "none")
    golden: Golden = {}
    if doc["golden"] != {}:
        examples = _Tensors(tables["golden"], _section(data, sections, "golden"), "golden", thorough)
        golden = _decode_golden(doc["golden"], examples)
        _check_golden(signatures, golden)
    return Bundle(
        signatures=MappingProxyType(signatures),
        golden=MappingProxyType(golden),
        provenance=MappingProxyType(_plain_object(doc["provenance"], "provenance")),
        metadata=MappingProxyType(_plain_object(doc["metadata"], "metadata")),
        digest=digest,
        sections=MappingProxyType(sections),
        tensors=tuple(weights.records),
        data=data,
    )


def _read_table(data: memoryview) -> tuple[str, dict[str, Section]]:
    """The file's digest and its sections, every extent checked against the file."""
    head = bytes(data[: _HEADER.size])
    if not head.startswith(MAGIC):
        if MAGIC.startswith(head):
            _refuse("header", f"{_HEADER.size} bytes", f"{len(head)}: the file is cut short")
        got = "MSLITE with its line ends changed" if b"MSLITE" in head[:10] else repr(head[:8])
        _refuse("header", f"{MAGIC!r}", f"{got}: not a bundle", _CONVERT)
    if len(head) < _HEADER.size:
        _refuse("header", f"{_HEADER.size} bytes", f"{len(head)}: the file is cut short")
    _, endian, version, count, needs, size, digest = _HEADER.unpack(head)
    if endian != _ENDIAN:
        swapped = endian == int.from_bytes(_ENDIAN.to_bytes(4, "little"), "big")
        got = "big-endian: made by something that is not msedge" if swapped else f"byte-order mark {endian:#010x}"
        _refuse("header", "a little-endian file", got)
    if version != FORMAT:
        fix = f"install msedge {_version(needs)} or newer" if version > FORMAT else "convert the model again"
        _refuse("header", f"format version {FORMAT}", str(version), fix)
    if size != len(data):
        what = "the file is cut short" if size > len(data) else "bytes follow the bundle's end"
        _refuse("header", f"{size} bytes in the file", f"{len(data)}: {what}")
    if not 1 <= count <= _MAX_SECTIONS or _HEADER.size + count * _ENTRY.size > size:
        _refuse("header", f"1 to {_MAX_SECTIONS} sections that fit the file", str(count))
    end = _HEADER.size + count * _ENTRY.size
    if _digest(head[:32] + data[_HEADER.size : end]) != digest:
        _refuse("header and section table", f"BLAKE2b-256 {digest.hex()[:16]}…", "other contents")
    sections: dict[str, Section] = {}
    for i in range(count):
        section, end = _read_entry(data, i, end)
        if section.name in sections:
            _refuse(f"section {section.name!r}", "one section of that name", "two")
        sections[section.name] = section
    if end != size:
        _refuse("section table", f"the last section to end at byte {size}", f"{end}: bytes follow it")
    return digest.hex(), sections


def _read_entry(data: memoryview, i: int, end: int) -> tuple[Section, int]:
    """Row `i` of the section table, and where its section ends; the one before ended at `end`."""
    raw, offset, size, flags, needs, digest = _ENTRY.unpack_from(data, _HEADER.size + i * _ENTRY.size)
    name = raw.rstrip(b"\0").decode("ascii", "replace")
    where = f"section {name!r}"
    if not _may_name_section(name):
        _refuse(f"section table, row {i}", "a name of 1 to 32 of a-z 0-9 _ . / + -", repr(name))
    if flags & ~_REQUIRED or (flags & _REQUIRED and name not in _KNOWN):
        _refuse(
            where,
            "a section this version reads",
            "a required one it does not know",
            f"install msedge {_version(needs)} or newer",
        )
    align = _PAGE if name == "weights" else _ALIGN
    if offset % align:
        _refuse(where, f"an offset that is a multiple of {align}", str(offset))
    if offset < end:
        _refuse(where, f"an offset of at least {end}, where the section before it ends", f"{offset}: they overlap")
    if offset > len(data) or size > len(data) - offset:
        _refuse(where, f"an extent within the file's {len(data)} bytes", f"{size} bytes at {offset}")
    if offset - end >= _PAGE or bytes(data[end:offset]).strip(b"\0"):
        _refuse(where, f"fewer than {_PAGE} bytes before it, all zero", f"{offset - end} bytes from {end}")
    return Section(name, offset, size, bool(flags & _REQUIRED), digest.hex()), offset + size


def _section(data: memoryview, sections: Mapping[str, Section], name: str) -> memoryview:
    if name not in sections:
        _refuse("section table", f"a section {name!r}", f"only {', '.join(sections)}")
    return _cut(data, sections[name])


def _cut(data: memoryview, section: Section) -> memoryview:
    return data[section.offset : section.offset + section.size]


def _parse(raw: bytes) -> Any:
    """Strict JSON: UTF-8, no repeated keys, no NaN or Infinity, no lone surrogates, bounded nesting."""
    if len(raw) > _MAX_MANIFEST:
        _refuse("manifest", f"at most {_MAX_MANIFEST} bytes", str(len(raw)))
    try:
        text = raw.decode("utf-8")
        doc = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if "\\ud" in text or "\\uD" in text:  # perhaps half of a surrogate pair: rare enough to look closely
            json.dumps(doc, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"manifest, byte {error.start}", "UTF-8", repr(raw[error.start : error.start + 4]))
    except UnicodeEncodeError as error:
        _refuse("manifest", "valid Unicode text", f"half of a surrogate pair: {error.object[error.start]!r}")
    except RecursionError:
        _refuse("manifest", f"at most {MAX_DEPTH} levels of nesting", "far more")
    except ValueError as error:
        _refuse("manifest", "JSON", str(error))
    return doc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        _refuse("manifest", "every key once in an object", f"{next(k for k in keys if keys.count(k) > 1)!r} twice")
    return made


def _no_constant(name: str) -> NoReturn:
    _refuse("manifest", "finite numbers", name)


def _check_features(requires: Any) -> None:
    for feature, needs in _mapping(requires, "manifest, requires").items():
        if feature not in _FEATURES:
            where = "manifest, requires"
            fix = f"install msedge {str(needs)[:20]} or newer"
            _refuse(where, "features this version reads", f"{feature!r}, which it does not know", fix)


class _Tensors:
    """The arrays of one section, made from its table when first asked for; every row checked at once."""

    def __init__(self, table: Any, data: memoryview, section: str, thorough: bool) -> None:
        self._data, self._section = data, section
        self.records = [self._record(row, i) for i, row in enumerate(_list(table, f"manifest, tensors of {section!r}"))]
        self._check_overlap()
        if thorough:
            self._check_digests()
        self._made: dict[int, Array] = {}

    def get(self, row: Any, where: str) -> Array:
        """The array of a row, a read-only view."""
        if type(row) is not int or not 0 <= row < len(self.records):
            _refuse(where, f"a row below {len(self.records)} of the tensors of {self._section!r}", _show(row))
        array = self._made.get(row)
        if array is None:
            array = self._made[row] = self._make(self.records[row], self._where(row))
        return array

    def _where(self, row: int) -> str:
        return f"section {self._section!r}, tensor {row}"

    def _record(self, row: Any, i: int) -> TensorRecord:
        where = self._where(i)
        if type(row) is not list or len(row) != 5:
            _refuse(where, "[dtype, shape, offset, bytes, digest]", _show(row))
        dtype, shape, offset, nbytes, digest = row
        if type(dtype) is not str or dtype not in DTYPES:
            _refuse(where, "a dtype msedge knows", _show(dtype), f"use one of {', '.join(DTYPES)}")
        if type(shape) is not list or not all(type(d) is int for d in shape):
            _refuse(where, "a shape of whole numbers", _show(shape))
        if type(offset) is not int or type(nbytes) is not int or type(digest) is not str:
            _refuse(where, "offset and bytes as whole numbers and the digest as text", _show(row[2:]))
        shape = tuple(shape)
        if dtype == "string":
            wanted = 4 * _named(where, checked_nbytes, "uint8", shape)
            if nbytes < wanted:
                _refuse(where, f"at least {wanted} bytes for the lengths of strings of shape {shape}", str(nbytes))
        elif nbytes != (wanted := _named(where, checked_nbytes, dtype, shape)):
            _refuse(where, f"{wanted} bytes for {dtype} of shape {shape}", str(nbytes))
        if offset < 0 or offset % _ALIGN or offset + nbytes > len(self._data):
            _refuse(where, f"a multiple of {_ALIGN} within {len(self._data)} bytes", f"{nbytes} bytes at {offset}")
        return TensorRecord(dtype, shape, offset, nbytes, digest)

    def _check_overlap(self) -> None:
        extents = sorted({(r.offset, r.nbytes) for r in self.records if r.nbytes})
        for (offset, nbytes), (after, _) in pairwise(extents):
            if offset + nbytes > after:
                expected = f"the tensor after byte {offset} at {offset + nbytes} or later"
                _refuse(f"section {self._section!r}", expected, f"{after}: they overlap")

    def _check_digests(self) -> None:
        for i, record in enumerate(self.records):
            if _digest(self._data[record.offset : record.offset + record.nbytes]).hex() != record.digest:
                _refuse(self._where(i), f"BLAKE2b-256 {record.digest[:16]!r}…", "other contents")

    def _make(self, record: TensorRecord, where: str) -> Array:
        count = math.prod(record.shape)
        if record.dtype == "string":
            return self._make_strings(record, count, where)
        dtype = _named(where, numpy_dtype, record.dtype)
        if not count:
            array = np.empty(record.shape, dtype)
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
                _refuse(f"{where}, string {i}", f"an end within {len(data)} bytes", str(end))
            try:
                items.append(data[at + 4 : end].decode("utf-8"))
            except UnicodeDecodeError as error:
                _refuse(f"{where}, string {i}", "UTF-8", str(error.reason))
            at = end
        if at != len(data):
            _refuse(where, f"strings that fill {len(data)} bytes", f"{at}")
        array = np.empty(count, object)
        array[:] = items
        array = array.reshape(record.shape)
        array.flags.writeable = False
        return array


class _Decoder:
    """JSON values to graphs: what `_Encoder` makes, and nothing else. Types only; `verify_graph` judges the rest."""

    _GRAPH = ("name", "inputs", "outputs", "nodes", "attrs", "constants")

    def __init__(self, tensors: _Tensors) -> None:
        self._tensors = tensors

    def graph(self, doc: Any, depth: int = 0) -> Graph:
        if depth > MAX_DEPTH:
            _refuse("subgraph", f"at most {MAX_DEPTH} graphs inside each other", "more")
        _object(doc, "graph", self._GRAPH)
        constants = {
            name: self._tensors.get(row, f"constant {name!r}")
            for name, row in _mapping(doc["constants"], "constants").items()
        }
        attrs: list[Mapping[str, Attr] | None] = [
            self._attrs(row, f"attributes {i}", depth) for i, row in enumerate(_list(doc["attrs"], "attributes"))
        ]
        return Graph(
            inputs=tuple([self._value(v, "input", i) for i, v in enumerate(_list(doc["inputs"], "inputs"))]),
            outputs=tuple([self._value(v, "output", i) for i, v in enumerate(_list(doc["outputs"], "outputs"))]),
            nodes=tuple([self._node(n, i, attrs) for i, n in enumerate(_list(doc["nodes"], "nodes"))]),
            constants=MappingProxyType(constants),
            name=_string(doc["name"], "graph name"),
        )

    @staticmethod
    def _value(row: Any, what: str, i: int) -> Value:
        if type(row) is not list or len(row) != 4:
            _refuse(f"{what} {i}", "[name, dtype, shape, kind]", _show(row))
        name, dtype, shape, kind = row
        if type(name) is not str or type(dtype) is not str or type(kind) is not str:
            _refuse(f"{what} {i}", "name, dtype and kind as text", _show(row))
        if shape is not None and not (type(shape) is list and all(type(d) in (int, str, type(None)) for d in shape)):
            _refuse(f"{what} {name!r}", "a shape of whole numbers, names and nulls, or null", _show(shape))
        dims: tuple[Dim, ...] | None = None if shape is None else tuple(shape)
        return Value(name, dtype, dims, kind)

    @staticmethod
    def _node(row: Any, i: int, attrs: list[Mapping[str, Attr] | None]) -> Node:
        if type(row) is not list or len(row) != 5:
            _refuse(f"node {i}", "[op, inputs, outputs, row of attributes, name]", _show(row))
        op, inputs, outputs, number, name = row
        if type(op) is not str or type(name) is not str:
            _refuse(f"node {i}", "op and name as text", _show([op, name]))
        if type(inputs) is not list or type(outputs) is not list or not set(map(type, inputs + outputs)) <= {str}:
            _refuse(f"node {i}, {_show(op)}", "inputs and outputs as lists of names", _show([inputs, outputs]))
        if type(number) is not int or not 0 <= number < len(attrs):
            _refuse(f"node {i}, {_show(op)}", f"a row below {len(attrs)} of attributes", _show(number))
        own = attrs[number]
        if own is None:
            _refuse(f"node {i}, {_show(op)}", "attributes that hold a graph in one node only", "the same in two")
        if any(type(value) is Graph for value in own.values()):
            attrs[number] = None  # shared graphs inside shared graphs would make a small file unfold without end
        return Node(op, tuple(inputs), tuple(outputs), own, name)

    def _attrs(self, row: Any, where: str, depth: int) -> Mapping[str, Attr]:
        made = {key: self._attr(value, f"{where}, {_show(key)}", depth) for key, value in _mapping(row, where).items()}
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
                body: Graph = _named(where, self.graph, inner, depth + 1)
                return body
            if tag == "float" and type(inner) is str and inner in _NOT_FINITE:
                return float(inner)
            if tag == "floats" and type(inner) is list:
                return tuple([self._float(v, where) for v in inner])
        _refuse(where, "a number, text, a list of one of these, a tensor or a graph", _show(value))

    @staticmethod
    def _float(value: Any, where: str) -> float:
        if type(value) is float or (type(value) is str and value in _NOT_FINITE):
            return float(value)
        _refuse(where, "floats", _show(value))


_NOT_FINITE = ("inf", "-inf", "nan")


def _decode_golden(doc: Any, tensors: _Tensors) -> Golden:
    made = {}
    for name, sides in _mapping(doc, "manifest, golden").items():
        where = f"golden {name!r}"
        if type(sides) is not list or len(sides) != 2:
            _refuse(where, "[inputs, outputs]", _show(sides))
        inputs, outputs = ({k: tensors.get(v, where) for k, v in _mapping(side, where).items()} for side in sides)
        made[name] = (MappingProxyType(inputs), MappingProxyType(outputs))
    return made


def _plain_object(value: Any, where: str) -> dict[str, Any]:
    return _plain(_mapping(value, f"manifest, {where}"), where)  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------- small helpers


def _refuse(where: str, expected: str, got: str, fix: str = _AGAIN) -> NoReturn:
    raise BundleError(f"{where}: expected {expected}, got {got}; {fix}")


def _named(where: str, call: Any, *args: Any) -> Any:
    """`call(*args)`, its errors opened with `where`."""
    try:
        return call(*args)
    except MsedgeError as error:
        raise BundleError(f"{where}: {error}") from None


def _show(value: Any) -> str:
    """A JSON value, short enough for an error; never the whole of a hostile one."""
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        return f"{kind} of {len(value)}"
    return repr(value) if not isinstance(value, str) or len(value) <= 60 else f"{value[:60]!r}…"


def _object(value: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """`value`, an object of exactly these keys."""
    made = _mapping(value, where)
    if made.keys() != set(keys):
        _refuse(where, f"the keys {', '.join(keys)}", _show(", ".join(made)))
    return made


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        _refuse(where, "an object", _show(value))
    return value


def _list(value: Any, where: str) -> list[Any]:
    if type(value) is not list:
        _refuse(where, "a list", _show(value))
    return value


def _string(value: Any, where: str) -> str:
    if type(value) is not str:
        _refuse(where, "text", _show(value))
    return value


def _digest(data: bytes | bytearray | memoryview) -> bytes:
    return blake2b(data, digest_size=32).digest()


def _align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _packed_version(version: tuple[int, int, int]) -> int:
    major, minor, patch = version
    return major << 20 | minor << 10 | patch


def _version(packed: int) -> str:
    return f"{packed >> 20}.{packed >> 10 & 1023}.{packed & 1023}"
