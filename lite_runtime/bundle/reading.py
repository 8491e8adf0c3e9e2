"""A verified bundle from a file or bytes."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any

import numpy as np

from lite_runtime.bundle.contents import Bundle, Golden
from lite_runtime.bundle.decoding import Decoder, Tensors, decode_golden, decode_state, decode_uses, plain_object
from lite_runtime.bundle.layout import FEATURES, File, cut
from lite_runtime.bundle.opening import Source, opened
from lite_runtime.bundle.refusal import mapping_of, named, object_of, refuse, show
from lite_runtime.bundle.strict import inflated, parsed
from lite_runtime.bundle.writing import _check_golden, _check_signature
from lite_runtime.graph import Graph
from lite_runtime.graph.verify import verify_state

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
        held = _aligned(inflated(bytes(section_of(file, "golden")), "golden"))
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
    return parsed(unpacked(bytes(section_of(file, "manifest"))), "manifest")


def section_of(file: File, name: str) -> memoryview:
    """The bytes of a section; raises BundleError if there is no section of that name."""
    if name not in file.sections:
        refuse("section table", f"a section {name!r}", f"only {', '.join(file.sections)}")
    return cut(file.data, file.sections[name])


_ZLIB = b"\x78"
"""The first byte of compressed data (RFC 1950); no JSON begins with it."""


def unpacked(raw: bytes) -> bytes:
    """The manifest's JSON, compressed or not."""
    return inflated(raw, "manifest") if raw.startswith(_ZLIB) else raw


def _aligned(content: bytes) -> memoryview:
    """Memory aligned so that kernels may read whole vectors."""
    array = np.frombuffer(content, np.uint8).copy()
    array.flags.writeable = False
    return array.data


def _features(requires: Any) -> dict[str, Any]:
    """The features that a reader must support to read this manifest; each must be known here."""
    made = mapping_of(requires, "manifest, requires")
    for feature, needs in made.items():
        if feature not in FEATURES:
            where = "manifest, requires"
            fix = f"install msedge {str(needs)[:20]} or newer"
            refuse(where, "features that this version supports", f"{feature!r}, which it does not know", fix)
    return made
