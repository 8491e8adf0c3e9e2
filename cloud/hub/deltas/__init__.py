"""Deltas between versions of a file, made where there is time and memory, for devices that have neither.

`planning` finds what follows from what, `tensors` how a changed tensor is predicted best, `matching` copies of bytes,
`coding` is the entropy coder, `making` puts them together. What devices read is `lite_runtime.updates.delta`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import Lock

from cloud.hub.deltas.making import delta_of
from lite_runtime._files import write_atomically
from lite_runtime._mapping import mapped
from lite_runtime.errors import BundleError
from lite_runtime.updates.pieces import missing, pieces_of

__all__ = ["Deltas", "make"]

Source = str | os.PathLike[str]


def make(old: Source, new: Source) -> bytes:
    """The delta by which `lite_runtime.updates.delta.rebuild` makes the file `new` of the file `old`. Equal files give
    equal deltas. Raises BundleError for files that cannot be read."""
    return delta_of(_data(old), _data(new))


class Deltas:
    """Deltas in a folder, each made once: the file FROM/TO, named by the SHA-256 of both files."""

    def __init__(self, folder: Source) -> None:
        self._folder, self._making = Path(folder), Lock()

    def get(self, old: Source, new: Source) -> Path | None:
        """The delta from `old` to `new`; None if the pieces that changed are no more bytes. Raises BundleError for
        files that cannot be read, and MsedgeError for a folder that cannot be written."""
        one, other = (hashlib.sha256(_data(path)).hexdigest() for path in (old, new))
        path = self._folder / one / other
        with self._making:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                made = make(old, new)
                pieces = sum(piece.size for piece in missing(pieces_of(new), pieces_of(old)))
                write_atomically(path, made if len(made) < pieces else b"")
        return path if path.stat().st_size else None


def _data(path: Source) -> memoryview:
    shown = os.fspath(path)
    try:
        data = mapped(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"cannot read {shown!r}: {reason}; check the path and its permissions") from error
    if data is None:
        raise BundleError(f"{shown!r}: expected a file, got a device or pipe; give the path of a file")
    return data
