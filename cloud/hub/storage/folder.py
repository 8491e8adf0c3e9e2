"""A repository in a folder, which any web server can offer as it is."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cloud.hub.errors import StorageError
from cloud.hub.storage.interface import CHUNK, Data
from lite_runtime._files import LOCKS, TEMPORARY, write_atomically

if LOCKS:
    import fcntl

__all__ = ["Folder"]

_LOCK = ".lock"
_WAIT = 60.0
"""Most seconds to wait for another process."""


class Folder:
    """See `Storage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def where(self) -> str:
        """See `Storage`."""
        return str(self.folder)

    def read(self, name: str) -> bytes:
        """See `Storage`."""
        with self._failing(name):
            return self._path(name).read_bytes()

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        """See `Storage`."""
        with self._failing(name), self._path(name).open("rb") as file:
            file.seek(start)
            while part := file.read(CHUNK):
                yield part

    def size(self, name: str) -> int | None:
        """See `Storage`."""
        with self._failing(name), contextlib.suppress(FileNotFoundError):
            return self._path(name).stat().st_size
        return None

    def age(self, name: str) -> float | None:
        """See `Storage`."""
        with self._failing(name), contextlib.suppress(FileNotFoundError):
            return max(0.0, time.time() - self._path(name).stat().st_mtime)
        return None

    def write(self, name: str, data: Data) -> None:
        """See `Storage`."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        there = self.size(name)
        if there == size:
            return
        if there is not None:
            raise StorageError(f"{self.where}: {name!r} has {there} bytes, expected {size}; it was damaged: delete it")
        if not isinstance(data, Path):
            self._put(name, data)
        elif not size:
            self._put(name, b"")
        else:
            with (
                self._failing(str(data)),
                data.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held,
                memoryview(held) as view,
            ):
                self._put(name, view)

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage`."""
        path = self._path(name)
        with self._failing(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".msedge-{os.urandom(8).hex()}.tmp")
            write_atomically(fresh, data, StorageError)
            try:
                os.link(fresh, path)  # unlike a rename, this fails if the name is taken
            except FileExistsError:
                return False
            finally:
                fresh.unlink()
            _synced(path.parent)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See `Storage`."""
        self._put(name, data)

    def names(self, prefix: str = "") -> Iterator[str]:
        """See `Storage`."""
        top = self._path(prefix.rpartition("/")[0]) if "/" in prefix else self.folder
        with self._failing(prefix):
            for folder, folders, files in os.walk(top):
                folders.sort()
                for file in sorted(files):
                    name = Path(folder, file).relative_to(self.folder).as_posix()
                    if name.startswith(prefix) and name != _LOCK and not TEMPORARY.fullmatch(file):
                        yield name

    def delete(self, name: str) -> None:
        """See `Storage`."""
        with self._failing(name):
            self._path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """See `Storage`."""
        with self._failing(_LOCK):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            end = time.monotonic() + _WAIT
            while LOCKS and not _locked(handle):
                if time.monotonic() > end:
                    raise StorageError(f"{self.where}: another process has changed it for {_WAIT:.0f} s; try again")
                time.sleep(0.02)
            yield
        finally:
            os.close(handle)

    def _put(self, name: str, data: bytes | memoryview) -> None:
        path = self._path(name)
        with self._failing(name):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, StorageError, mode=0o644)

    def _path(self, name: str) -> Path:
        if ".." in PurePosixPath(name).parts or name.startswith("/") or "\0" in name:
            raise StorageError(f"{self.where}: expected the name of a file in it, got {name!r}")
        return self.folder / name

    @contextlib.contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StorageError(f"{self.where}: there is no {name!r}") from None
        except OSError as error:
            raise StorageError(f"{self.where}: {name!r}: {error.strerror or error}; check the disk") from None


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _synced(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
