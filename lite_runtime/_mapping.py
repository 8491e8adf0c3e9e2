"""Mapping a file into memory."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys

__all__ = ["mapped"]


def mapped(path: str | os.PathLike[str]) -> memoryview | None:
    """A file's bytes as read-only memory, empty for an empty file; None for a folder or device. Raises OSError: EFBIG
    for a file that is larger than what a process of this system can address.

    The file must not be truncated while it is in use; `write_atomically` replaces files and never truncates them.
    """
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > sys.maxsize:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, and this system's processes address {sys.maxsize}")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if status.st_size else b"")
