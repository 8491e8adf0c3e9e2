"""State files (`.msstate`): the learned state of a model, stored separately from the model.

The container format is that of bundles (`lite_runtime.bundle`) with another magic: a manifest, which names the arrays,
and their bytes; every section has a digest. Files are written atomically: after a power failure during saving there is
either the old file or the new one. Nothing in a file can make the reader run code, or use more memory than a fixed
multiple of its size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lite_runtime._files import write_atomically
from lite_runtime.bundle.decoding import Tensors, decode_state, plain_object
from lite_runtime.bundle.encoding import Store, encode_rows, plain
from lite_runtime.bundle.layout import REQUIRED, STATE, File, need_little_endian
from lite_runtime.bundle.opening import Source, opened
from lite_runtime.bundle.reading import manifest_of, section_of
from lite_runtime.bundle.refusal import named, object_of, string_of
from lite_runtime.bundle.writing import assemble, dump
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.graph.verify import verify_state

__all__ = ["Checkpoint", "read", "write"]


class Checkpoint(NamedTuple):
    """A verified state file. Arrays are read-only views into it."""

    state: Mapping[str, Array]
    model: str
    """Digest of the bundle that the state belongs to."""
    metadata: Mapping[str, Any]
    digest: str
    """Identifies the contents."""


def write(
    path: str | os.PathLike[str] | None,
    state: Mapping[str, Array],
    model: str,
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """The bytes of a state file, also written to `path`, atomically, unless it is None.

    Equal arguments give equal bytes. Raises BundleError for values that a state file cannot hold, and for a path that
    cannot be written; `path` is then unchanged.
    """
    need_little_endian()
    verify_state({}, state, {})
    weights = Store()
    rows = encode_rows(state, weights)
    manifest = {
        "state": rows,
        "tensors": weights.records,
        "model": model,
        "metadata": plain(metadata, "metadata"),
    }
    data = assemble([("manifest", dump(manifest), REQUIRED), ("weights", weights.data, REQUIRED)], STATE)
    if path is not None:
        write_atomically(path, data, BundleError)
    return data


def read(source: Source) -> Checkpoint:
    """Read and verify a state file from a path, which is mapped, or from memory.

    Raises BundleError for a file that cannot be read or is not in every respect a state file.
    """
    file = opened(source, STATE)
    if isinstance(source, str | os.PathLike):
        made: Checkpoint = named(repr(os.fspath(source)), _read, file)
        return made
    return _read(file)


def _read(file: File) -> Checkpoint:
    doc = object_of(manifest_of(file), "manifest", ("state", "tensors", "model", "metadata"))
    weights = Tensors(doc["tensors"], section_of(file, "weights"), "weights", thorough=False)
    state = decode_state(doc["state"], weights)
    verify_state({}, state, {})
    model = string_of(doc["model"], "manifest, model")
    return Checkpoint(state, model, MappingProxyType(plain_object(doc["metadata"], "metadata")), file.digest)
