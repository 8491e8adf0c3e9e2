"""What a repository needs of the place where it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

__all__ = ["CHUNK", "Data", "Storage"]

CHUNK = 1 << 20
"""Most bytes of one part of a file that is read."""
Data = bytes | memoryview | Path
"""Content of a file: bytes, or the path of a local file."""


class Storage(Protocol):
    """Files by name, such as `metadata/timestamp.json`. Each is written completely or not at all.

    All methods raise StorageError if the storage fails, or a name leads out of it.
    """

    @property
    def where(self) -> str:
        """The storage's address, for messages."""
        ...

    def read(self, name: str) -> bytes:
        """The content of a file. Raises StorageError if there is none."""
        ...

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """The content from byte `start` on, in parts of at most CHUNK bytes. Raises StorageError if there is none."""
        ...

    def size(self, name: str) -> int | None:
        """A file's bytes; None if there is none."""
        ...

    def age(self, name: str) -> float | None:
        """Seconds since a file was written; None if there is none."""
        ...

    def write(self, name: str, data: Data) -> None:
        """Store a file that is never changed. If it exists with other content of another size, raises StorageError."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Store a file unless it exists; False: it exists. Of several processes only one succeeds."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Store a file, in place of what it was."""
        ...

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names of all files that begin with `prefix`."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file; that there is none is no error."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Held while metadata are changed: of all processes one at a time. Raises StorageError if another one keeps it
        for long."""
        ...
