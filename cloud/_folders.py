"""Folders that keep long work, so that it can be continued: one process at a time, and nothing begun twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lite_runtime._files import locked
from lite_runtime.errors import MsedgeError

__all__ = ["holding"]


@contextlib.contextmanager
def holding(folder: Path, what: str, state: str, resume: bool, key: str, error: type[MsedgeError]) -> Iterator[None]:
    """Hold the folder of a `what` ("study"), which is made, by a lock in it. state: the file that is there once one has
    begun; key: the setting that names the folder. Raises `error` if one has begun and is not to be continued, if the
    folder cannot be used, and if another process holds it."""
    if (folder / state).exists() and not resume:
        raise error(f"{str(folder)!r} has a {what} already; --resume continues it, {key} names another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = locked(folder / f"{what}.lock")
    except OSError as problem:
        raise error(f"{key}: cannot use {str(folder)!r}: {problem.strerror}; name another") from problem
    if held is None:
        raise error(f"another process works on the {what} in {str(folder)!r}; wait for it")
    try:
        yield
    finally:
        os.close(held)
