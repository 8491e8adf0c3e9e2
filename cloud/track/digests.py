"""Content digests: BLAKE2b-256 in hex, as the converter uses for the sources of bundles."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from cloud.errors import TrackError

__all__ = ["digest_of_arrays", "digest_of_file", "digest_of_plain"]

_CHUNK = 1 << 20


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """The digest of a file's bytes: 64 hexadecimal digits. A bundle's own digest, in its header, is a different one.

    Raises TrackError for a file that cannot be read.
    """
    made = hashlib.blake2b(digest_size=32)
    try:
        with open(path, "rb") as file:
            while part := file.read(_CHUNK):
                made.update(part)
    except OSError as error:
        raise TrackError(f"cannot read {os.fspath(path)!r}: {error.strerror}; check the path") from error
    return made.hexdigest()


def digest_of_arrays(arrays: Mapping[str, Any]) -> str:
    """The digest of names, dtypes, shapes and values, in any order of names: 64 hexadecimal digits."""
    made = hashlib.blake2b(digest_size=32)
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        made.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        made.update(json.dumps(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).data)
    return made.hexdigest()


def digest_of_plain(value: Any) -> str:
    """The digest of a JSON value: 64 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
