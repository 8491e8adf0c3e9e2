"""Arrays by name as .npz files, written in memory and read without trust."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["load_arrays", "packed_arrays"]

_MOST_BYTES = 1 << 30


def packed_arrays(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of an .npz file, the same for the same arrays. Names may be any, unlike those of `np.savez`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """All arrays of an .npz file. Raises MsedgeError for one that cannot be read or would be larger than 1 GiB, and for
    Python objects."""
    shown = os.fspath(path)
    try:
        with zipfile.ZipFile(shown) as archive:
            if (size := sum(entry.file_size for entry in archive.infolist())) > _MOST_BYTES:
                raise MsedgeError(f"{shown!r}: expected at most {_MOST_BYTES} bytes of arrays, got {size}")
        with np.load(shown, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as problem:
        raise MsedgeError(f"cannot read {shown!r} as an .npz file: {problem}") from problem
