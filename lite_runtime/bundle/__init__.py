"""The bundle (`.mslite`): one file that holds a model's graphs, its weights and information about its origin.

Little-endian throughout. A file is a 64-byte header, a table of 96-byte section entries, then the sections, in the
table's order, each at a multiple of 64 bytes (large `weights` at a multiple of 4096), less than 4096 zero bytes between
them:

    header   magic, byte-order mark, format version, section count, version of msedge needed, 4 zero bytes,
             file size, BLAKE2b-256 of the first 32 bytes and the table
    entry    name, offset, size, flags (1: a reader that does not know this section must refuse the file), version
             of msedge needed, 8 zero bytes, BLAKE2b-256 of the section
    manifest JSON in UTF-8, plain or compressed with zlib: see `encoding` and `decoding`; it contains the smallest
             arrays itself, and says which inputs and outputs of graphs are state (kept between runs of signatures)
    golden   arrays that a correct runtime reproduces (optional), compressed with zlib
    weights  the graphs' constants and initial state, row-major, each at a multiple of 64 bytes, equal contents once

An unknown section is skipped unless it is flagged as required. Reading has no side effects: bytes in, verified object
out; nothing in a file can make the reader run code, or use more memory than a fixed multiple of the file's size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lite_runtime.bundle.layout import FORMAT, MAGIC, File, Section
from lite_runtime.bundle.opening import Source, opened

if TYPE_CHECKING:
    from lite_runtime.bundle.contents import Bundle, TensorRecord
    from lite_runtime.bundle.personal import with_state
    from lite_runtime.bundle.reading import read
    from lite_runtime.bundle.writing import write

__all__ = [
    "FORMAT",
    "MAGIC",
    "Bundle",
    "File",
    "Section",
    "Source",
    "TensorRecord",
    "opened",
    "read",
    "with_state",
    "write",
]

_LAZY = {
    "Bundle": "lite_runtime.bundle.contents",
    "TensorRecord": "lite_runtime.bundle.contents",
    "read": "lite_runtime.bundle.reading",
    "with_state": "lite_runtime.bundle.personal",
    "write": "lite_runtime.bundle.writing",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
