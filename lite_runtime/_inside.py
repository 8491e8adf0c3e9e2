"""Files of this package, also where Python imports it from an archive: a zipapp of the agent has no folders."""

from __future__ import annotations

import errno
import os
from typing import BinaryIO

__all__ = ["modules", "opened"]


def modules(folder: str) -> list[str]:
    """The names of the modules in a folder of this package, sorted, without those that begin with _."""
    try:
        names = [name[:-3] for name in os.listdir(folder) if name.endswith(".py")]
    except NotADirectoryError:
        from pkgutil import iter_modules

        names = [found.name for found in iter_modules([folder]) if not found.ispkg]
    return sorted(name for name in names if not name.startswith("_"))


def opened(path: str) -> BinaryIO:
    """A file of this package, open for reading. Raises FileNotFoundError if there is none."""
    try:
        return open(path, "rb")
    except NotADirectoryError:
        import io

        loader = __spec__.loader
        try:
            return io.BytesIO(loader.get_data(path))  # type: ignore[union-attr]
        except OSError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
