"""A verified bundle from a file or bytes."""

from __future__ import annotations

import json
import mmap
import os
import stat
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from lite_runtime.bundle.decoding import Decoder, Tensors, decode_golden, plain_object
from lite_runtime.bundle.layout import (
    ALIGN,
    CONVERT,
    ENDIAN,
    ENTRY,
    FEATURES,
    FORMAT,
    HEADER,
    KNOWN,
    MAGIC,
    MAX_MANIFEST,
    MAX_RATIO,
    MAX_SECTIONS,
    PAGE,
    REQUIRED,
    Bundle,
    Golden,
    Section,
    cut,
    digest_of,
    may_name_section,
    need_little_endian,
    version_text,
)
from lite_runtime.bundle.refusal import mapping_of, named, object_of, refuse, show
from lite_runtime.bundle.writing import _check_golden, _check_signature
from lite_runtime.errors import BundleError
from lite_runtime.graph import Graph
from lite_runtime.verify import MAX_DEPTH

__all__ = ["read", "unpacked"]


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | mmap.mmap, *, thorough: bool = False
) -> Bundle:
    """Read and verify a bundle from a path, which is mapped, or from memory, which is not copied.

    Every section's digest is checked; `thorough` also checks each tensor's own. Arrays are read-only views that keep
    the source alive (memory not at a multiple of 16 bytes is copied, for kernels read whole vectors). Raises
    BundleError for a file that cannot be read or is not, in every respect, a bundle this version knows.
    """
    need_little_endian()
    if isinstance(source, str | os.PathLike):
        made: Bundle = named(repr(os.fspath(source)), _read, _map(source), thorough)
        return made
    return _read(_view(source), thorough)


def _map(path: str | os.PathLike[str]) -> memoryview:
    """The file as read-only memory; it must not be cut short while in use (`write` replaces, never cuts)."""
    shown = os.fspath(path)
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{shown!r}: expected a file, got a folder or device; give the path of one")
            if not status.st_size:
                raise BundleError(f"{shown!r}: expected a bundle, got an empty file; {CONVERT}")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise BundleError(f"{shown!r}: expected a file, got none of that name; check the path, or {CONVERT}") from None
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
        if digest_of(cut(data, section)) != bytes.fromhex(section.digest):
            refuse(f"section {section.name!r}", f"BLAKE2b-256 {section.digest[:16]}…", "other contents")
    doc = _parse(unpacked(bytes(_section(data, sections, "manifest"))))
    object_of(doc, "manifest", ("signatures", "golden", "tensors", "provenance", "metadata", "requires"))
    _check_features(doc["requires"])
    tables = object_of(doc["tensors"], "manifest, tensors", ("weights", "golden"))
    weights = Tensors(tables["weights"], _section(data, sections, "weights"), "weights", thorough)
    decoder = Decoder(weights)
    signatures: dict[str, Graph] = {}
    for name, graph in mapping_of(doc["signatures"], "manifest, signatures").items():
        signatures[name] = named(f"signature {show(name)}", decoder.graph, graph)
        _check_signature(name, signatures[name])
    if not signatures:
        refuse("manifest, signatures", "at least one", "none")
    golden: Golden = {}
    if doc["golden"] != {}:
        held = _aligned(_inflated(bytes(_section(data, sections, "golden")), "golden"))
        examples = Tensors(tables["golden"], held, "golden", thorough)
        golden = decode_golden(doc["golden"], examples)
        _check_golden(signatures, golden)
    return Bundle(
        signatures=MappingProxyType(signatures),
        golden=MappingProxyType(golden),
        provenance=MappingProxyType(plain_object(doc["provenance"], "provenance")),
        metadata=MappingProxyType(plain_object(doc["metadata"], "metadata")),
        digest=digest,
        sections=MappingProxyType(sections),
        tensors=tuple(weights.records),
        data=data,
    )


def _read_table(data: memoryview) -> tuple[str, dict[str, Section]]:
    """The file's digest and its sections, every extent checked against the file."""
    head = bytes(data[: HEADER.size])
    if not head.startswith(MAGIC):
        if MAGIC.startswith(head):
            refuse("header", f"{HEADER.size} bytes", f"{len(head)}: the file is cut short")
        got = "MSLITE with its line ends changed" if b"MSLITE" in head[:10] else repr(head[:8])
        refuse("header", f"{MAGIC!r}", f"{got}: not a bundle", CONVERT)
    if len(head) < HEADER.size:
        refuse("header", f"{HEADER.size} bytes", f"{len(head)}: the file is cut short")
    _, endian, version, count, needs, size, digest = HEADER.unpack(head)
    if endian != ENDIAN:
        swapped = endian == int.from_bytes(ENDIAN.to_bytes(4, "little"), "big")
        got = "big-endian: made by something that is not msedge" if swapped else f"byte-order mark {endian:#010x}"
        refuse("header", "a little-endian file", got)
    if version != FORMAT:
        fix = f"install msedge {version_text(needs)} or newer" if version > FORMAT else "convert the model again"
        refuse("header", f"format version {FORMAT}", str(version), fix)
    if size != len(data):
        what = "the file is cut short" if size > len(data) else "bytes follow the bundle's end"
        refuse("header", f"{size} bytes in the file", f"{len(data)}: {what}")
    if not 1 <= count <= MAX_SECTIONS or HEADER.size + count * ENTRY.size > size:
        refuse("header", f"1 to {MAX_SECTIONS} sections that fit the file", str(count))
    end = HEADER.size + count * ENTRY.size
    if digest_of(head[:32] + data[HEADER.size : end]) != digest:
        refuse("header and section table", f"BLAKE2b-256 {digest.hex()[:16]}…", "other contents")
    sections: dict[str, Section] = {}
    for i in range(count):
        section, end = _read_entry(data, i, end)
        if section.name in sections:
            refuse(f"section {section.name!r}", "one section of that name", "two")
        sections[section.name] = section
    if end != size:
        refuse("section table", f"the last section to end at byte {size}", f"{end}: bytes follow it")
    return digest.hex(), sections


def _read_entry(data: memoryview, i: int, end: int) -> tuple[Section, int]:
    """Row `i` of the section table, and where its section ends; the one before ended at `end`."""
    raw, offset, size, flags, needs, digest = ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size)
    name = raw.rstrip(b"\0").decode("ascii", "replace")
    where = f"section {name!r}"
    if not may_name_section(name):
        refuse(f"section table, row {i}", "a name of 1 to 32 of a-z 0-9 _ . / + -", repr(name))
    if flags & ~REQUIRED or (flags & REQUIRED and name not in KNOWN):
        refuse(
            where,
            "a section this version reads",
            "a required one it does not know",
            f"install msedge {version_text(needs)} or newer",
        )
    if offset % ALIGN:
        refuse(where, f"an offset that is a multiple of {ALIGN}", str(offset))
    if offset < end:
        refuse(where, f"an offset of at least {end}, where the section before it ends", f"{offset}: they overlap")
    if offset > len(data) or size > len(data) - offset:
        refuse(where, f"an extent within the file's {len(data)} bytes", f"{size} bytes at {offset}")
    if offset - end >= PAGE or bytes(data[end:offset]).strip(b"\0"):
        refuse(where, f"fewer than {PAGE} bytes before it, all zero", f"{offset - end} bytes from {end}")
    return Section(name, offset, size, bool(flags & REQUIRED), digest.hex()), offset + size


def _section(data: memoryview, sections: Mapping[str, Section], name: str) -> memoryview:
    if name not in sections:
        refuse("section table", f"a section {name!r}", f"only {', '.join(sections)}")
    return cut(data, sections[name])


_ZLIB = b"\x78"
"""The first byte of compressed data (RFC 1950), which no JSON begins with."""


def unpacked(raw: bytes) -> bytes:
    """The manifest's JSON, compressed or not."""
    return _inflated(raw, "manifest") if raw.startswith(_ZLIB) else raw


def _inflated(raw: bytes, what: str) -> bytes:
    """The contents of one whole zlib stream, never more than the limits allow."""
    limit = min(MAX_MANIFEST, MAX_RATIO * len(raw))
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        refuse(what, "a zlib stream", str(error))
    if len(content) > limit or not stream.eof or stream.unused_data:
        got = f"more than {limit} bytes" if len(content) > limit else "a stream cut short, or bytes behind its end"
        refuse(what, "one zlib stream", got)
    return content


def _aligned(content: bytes) -> memoryview:
    """Memory that begins where kernels may read whole vectors."""
    array = np.frombuffer(content, np.uint8).copy()
    array.flags.writeable = False
    return array.data


def _parse(raw: bytes) -> Any:
    """Strict JSON: UTF-8, no repeated keys, no NaN or Infinity, no lone surrogates, bounded nesting."""
    if len(raw) > MAX_MANIFEST:
        refuse("manifest", f"at most {MAX_MANIFEST} bytes", str(len(raw)))
    try:
        text = raw.decode("utf-8")
        doc = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if "\\ud" in text or "\\uD" in text:  # perhaps half of a surrogate pair: rare enough to look closely
            json.dumps(doc, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        refuse(f"manifest, byte {error.start}", "UTF-8", repr(raw[error.start : error.start + 4]))
    except UnicodeEncodeError as error:
        refuse("manifest", "valid Unicode text", f"half of a surrogate pair: {error.object[error.start]!r}")
    except RecursionError:
        refuse("manifest", f"at most {MAX_DEPTH} levels of nesting", "far more")
    except ValueError as error:
        refuse("manifest", "JSON", str(error))
    return doc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        refuse("manifest", "every key once in an object", f"{next(k for k in keys if keys.count(k) > 1)!r} twice")
    return made


def _no_constant(name: str) -> NoReturn:
    refuse("manifest", "finite numbers", name)


def _check_features(requires: Any) -> None:
    for feature, needs in mapping_of(requires, "manifest, requires").items():
        if feature not in FEATURES:
            where = "manifest, requires"
            fix = f"install msedge {str(needs)[:20]} or newer"
            refuse(where, "features this version reads", f"{feature!r}, which it does not know", fix)
