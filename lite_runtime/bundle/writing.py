"""Writes a bundle from graphs: its bytes, and atomically its file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lite_runtime._files import write_atomically
from lite_runtime.bundle.contents import Golden
from lite_runtime.bundle.encoding import Encoder, Store, encode_golden, encode_state, plain
from lite_runtime.bundle.layout import (
    BUNDLE,
    KNOWN,
    MAX_MANIFEST,
    NEEDS,
    REQUIRED,
    SIGNATURE,
    Kind,
    Row,
    digest_of,
    may_name_section,
    need_little_endian,
    packed_version,
    table_of,
    version_text,
)
from lite_runtime.bundle.refusal import named, refuse, show
from lite_runtime.bundle.strict import deflated
from lite_runtime.errors import BundleError
from lite_runtime.graph import Array, Graph, StateUse
from lite_runtime.graph.verify import MAX_NAME, verify_arrays, verify_graph, verify_state

__all__ = ["assemble", "dump", "laid_out", "write"]


def write(
    path: str | os.PathLike[str] | None,
    signatures: Mapping[str, Graph],
    *,
    state: Mapping[str, Array] = MappingProxyType({}),
    uses: Mapping[str, StateUse] = MappingProxyType({}),
    provenance: Mapping[str, Any] = MappingProxyType({}),
    metadata: Mapping[str, Any] = MappingProxyType({}),
    golden: Golden = MappingProxyType({}),
    extra: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """The bytes of a bundle, also written to `path` unless it is None.

    Equal arguments give equal bytes, whatever the order of their mappings. `golden[signature]` is (inputs, outputs).
    `state` holds the initial values of what signatures keep between runs; `uses[signature]` says which of the graph's
    inputs and outputs are state. `extra` adds optional sections, which readers that do not know them skip. Raises
    BundleError for a graph that `verify_graph` refuses, for values that a bundle cannot hold and for a path that cannot
    be written; a failed write leaves no file behind.
    """
    need_little_endian()
    if not signatures:
        raise BundleError("expected at least one signature, got none; name one, such as {'predict': graph}")
    for name, graph in signatures.items():
        _check_signature(name, graph)
    _check_golden(signatures, golden)
    verify_state(signatures, state, uses)
    if SIGNATURE in extra:
        raise BundleError(f"extra: expected no section {SIGNATURE!r}, as it signs a finished file; use `msedge sign`")
    weights, examples = Store(), Store()
    encoder = Encoder(weights)
    manifest = {
        "signatures": {name: encoder.graph(signatures[name]) for name in sorted(signatures)},
        "golden": {name: encode_golden(golden[name], examples) for name in sorted(golden)},
        "tensors": {"weights": weights.records, "golden": examples.records},
        "provenance": plain(provenance, "provenance"),
        "metadata": plain(metadata, "metadata"),
        "requires": {"state": version_text(packed_version(NEEDS))} if state else {},
        **encode_state(state, uses, weights),
    }
    parts: list[tuple[str, bytes | bytearray, int]] = [("manifest", dump(manifest), REQUIRED)]
    if golden:
        parts.append(("golden", deflated(examples.data), 0))
    parts += [(name, extra[name], 0) for name in sorted(extra)]
    parts.append(("weights", weights.data, REQUIRED))
    data = assemble(parts)
    if path is not None:
        write_atomically(path, data, BundleError)
    return data


def assemble(parts: Sequence[tuple[str, bytes | bytearray, int]], kind: Kind = BUNDLE) -> bytes:
    """Lay out sections after a header and a table."""
    if len({name for name, _, _ in parts}) < len(parts):
        raise BundleError(f"expected extra sections not named {', '.join(KNOWN)}, got one that is; rename it")
    needs = packed_version(NEEDS)
    rows = [Row(_section_name(name), len(held), flags, needs, digest_of(held)) for name, held, flags in parts]
    return laid_out(rows, [held for _, held, _ in parts], needs, kind)


def laid_out(rows: Sequence[Row], contents: Sequence[bytes | bytearray | memoryview], needs: int, kind: Kind) -> bytes:
    """A file of these sections."""
    head, offsets = table_of(rows, needs, kind)
    parts: list[bytes | bytearray | memoryview] = [head]
    end = len(head)
    for offset, content in zip(offsets, contents, strict=True):
        parts += [bytes(offset - end), content]
        end = offset + len(content)
    return b"".join(parts)


def _section_name(name: str) -> str:
    if not may_name_section(name):
        raise BundleError(f"expected a section name of 1 to 32 of a-z 0-9 _ . / + -, got {name!r}; rename it")
    return name


def _check_signature(name: str, graph: Graph) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        refuse("signatures", f"names of 1 to {MAX_NAME} characters", show(name), "rename it")
    named(f"signature {show(name)}", verify_graph, graph)


def _check_golden(signatures: Mapping[str, Graph], golden: Golden) -> None:
    for name, (inputs, outputs) in golden.items():
        if name not in signatures:
            raise BundleError(f"golden: expected a signature of {', '.join(signatures)}, got {name!r}; rename it")
        named(f"golden {name!r}", verify_arrays, signatures[name].inputs, inputs)
        named(f"golden {name!r}", verify_arrays, signatures[name].outputs, outputs)


def dump(manifest: Mapping[str, Any]) -> bytes:
    """A manifest's section: compressed JSON."""
    text = json.dumps(manifest, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[max(error.start - 20, 0) : error.end]
        raise BundleError(f"manifest: expected valid Unicode text, got {bad!r}; rename it") from None
    if len(data) > MAX_MANIFEST:
        raise BundleError(
            f"manifest: expected at most {MAX_MANIFEST} bytes of JSON, got {len(data)}; make long attributes arrays"
        )
    return deflated(data)
