"""A verified bundle from a file or bytes."""

from __future__ import annotations

import json
import os
import zlib
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from lite_runtime.bundle.contents import Bundle, Golden
from lite_runtime.bundle.decoding import Decoder, Tensors, decode_golden, decode_state, decode_uses, plain_object
from lite_runtime.bundle.layout import FEATURES, MAX_MANIFEST, MAX_RATIO, File, cut
from lite_runtime.bundle.opening import Source, opened
from lite_runtime.bundle.refusal import mapping_of, named, object_of, refuse, show
from lite_runtime.bundle.writing import _check_golden, _check_signature
from lite_runtime.graph import Graph
from lite_runtime.graph.verify import MAX_DEPTH, verify_state

__all__ = ["manifest_of", "read", "section_of", "unpacked"]


def read(source: Source | File, *, thorough: bool = False) -> Bundle:
    """Read and verify a bundle from a path, which is mapped, or from memory, which is not copied.

    Every section's digest is checked; `thorough` also checks each tensor's own. Arrays are read-only views that keep
    the source alive (memory not aligned to 16 bytes is copied, because kernels read whole vectors). Raises BundleError
    for a file that cannot be read or is not in every respect a bundle that this version knows.
    """
    file = source if isinstance(source, File) else opened(source)
    if isinstance(source, str | os.PathLike):
        made: Bundle = named(repr(os.fspath(source)), _read, file, thorough)
        return made
    return _read(file, thorough)


def _read(file: File, thorough: bool) -> Bundle:
    digest, sections, data = file
    doc = manifest_of(file)
    keys = ["signatures", "golden", "tensors", "provenance", "metadata", "requires"]
    if "state" in _features(mapping_of(doc, "manifest").get("requires", {})):
        keys += ["state", "uses"]
    object_of(doc, "manifest", keys)
    tables = object_of(doc["tensors"], "manifest, tensors", ("weights", "golden"))
    weights = Tensors(tables["weights"], section_of(file, "weights"), "weights", thorough)
    decoder = Decoder(weights)
    signatures: dict[str, Graph] = {}
    for name, graph in mapping_of(doc["signatures"], "manifest, signatures").items():
        signatures[name] = named(f"signature {show(name)}", decoder.graph, graph)
        _check_signature(name, signatures[name])
    if not signatures:
        refuse("manifest, signatures", "at least one", "none")
    golden: Golden = {}
    if doc["golden"] != {}:
        held = _aligned(_inflated(bytes(section_of(file, "golden")), "golden"))
        examples = Tensors(tables["golden"], held, "golden", thorough)
        golden = decode_golden(doc["golden"], examples)
        _check_golden(signatures, golden)
    state, uses = decode_state(doc.get("state", {}), weights), decode_uses(doc.get("uses", {}))
    verify_state(signatures, state, uses)
    return Bundle(
        signatures=MappingProxyType(signatures),
        golden=MappingProxyType(golden),
        provenance=MappingProxyType(plain_object(doc["provenance"], "provenance")),
        metadata=MappingProxyType(plain_object(doc["metadata"], "metadata")),
        digest=digest,
        sections=MappingProxyType(sections),
        tensors=tuple(weights.records),
        data=data,
        state=state,
        uses=uses,
    )


def manifest_of(file: File) -> Any:
    """The JSON value in a container's manifest."""
    return _parse(unpacked(bytes(section_of(file, "manifest"))))


def section_of(file: File, name: str) -> memoryview:
    """The bytes of a section; raises BundleError if there is no section of that name."""
    if name not in file.sections:
        refuse("section table", f"a section {name!r}", f"only {', '.join(file.sections)}")
    return cut(file.data, file.sections[name])


_ZLIB = b"\x78"
"""The first byte of compressed data (RFC 1950); no JSON begins with it."""


def unpacked(raw: bytes) -> bytes:
    """The manifest's JSON, compressed or not."""
    return _inflated(raw, "manifest") if raw.startswith(_ZLIB) else raw


def _inflated(raw: bytes, what: str) -> bytes:
    """The contents of exactly one zlib stream, limited in size."""
    limit = min(MAX_MANIFEST, MAX_RATIO * len(raw))
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        refuse(what, "a zlib stream", str(error))
    if len(content) > limit or not stream.eof or stream.unused_data:
        got = f"more than {limit} bytes" if len(content) > limit else "a stream cut short, or bytes after its end"
        refuse(what, "one zlib stream", got)
    return content


def _aligned(content: bytes) -> memoryview:
    """Memory aligned so that kernels may read whole vectors."""
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
        if "\\ud" in text or "\\uD" in text:  # perhaps half of a surrogate pair: rare, so the full check may be slow
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
        refuse("manifest", "unique keys in an object", f"{next(k for k in keys if keys.count(k) > 1)!r} twice")
    return made


def _no_constant(name: str) -> NoReturn:
    refuse("manifest", "finite numbers", name)


def _features(requires: Any) -> dict[str, Any]:
    """The features that a reader must support to read this manifest; each must be known here."""
    made = mapping_of(requires, "manifest, requires")
    for feature, needs in made.items():
        if feature not in FEATURES:
            where = "manifest, requires"
            fix = f"install msedge {str(needs)[:20]} or newer"
            refuse(where, "features that this version supports", f"{feature!r}, which it does not know", fix)
    return made
