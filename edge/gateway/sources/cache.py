"""Bundles that were downloaded from registries: files by key, of at most so many bytes together.

    ROOT/REGISTRY/KEY.mslite         a whole and verified bundle
    ROOT/REGISTRY/.KEY-ADDRESS.part  what has arrived of one; the next attempt goes on from there
    ROOT/REGISTRY/index.json         the registry's last good rows

REGISTRY is a digest of its address. A download is written to its part, verified, synchronised and renamed. Several
gateways may share a cache: each locks the part that it writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b, sha256
from pathlib import Path
from typing import IO

from edge.gateway.errors import GatewayError
from edge.gateway.sources.catalogue import Fetched, Row
from lite_runtime import bundle
from lite_runtime.errors import MsedgeError

__all__ = ["Cache", "Shelf"]

_STEP = 1 << 20
"""Bytes by which room is claimed for a download of unknown length."""
_CHUNK = 1 << 20


Fetch = Callable[[Row, int], contextlib.AbstractContextManager[Fetched]]
"""See `Catalogue.fetch`."""


class Cache:
    """The folder of all registries. most: bytes of its files together; 0: any number."""

    def __init__(self, root: str | os.PathLike[str], most: int = 0) -> None:
        self.root, self.most = Path(root), most
        self._lock = threading.Lock()
        self._listed: dict[Path, frozenset[str] | None] = {}
        """By registry's folder, the names of files that its rows need; None: not known yet, so all."""
        self._claims: dict[Path, int] = {}
        """Bytes of the downloads in progress."""

    def shelf(self, address: str) -> Shelf:
        """The folder of a registry."""
        folder = self.root / blake2b(address.encode(), digest_size=8).hexdigest()
        self._listed[folder] = None
        return Shelf(self, folder)

    def hold(self, folder: Path, names: frozenset[str]) -> None:
        """Never remove these files of a folder: its registry lists them, so they serve or may."""
        with self._lock:
            self._listed[folder] = names

    @contextlib.contextmanager
    def claiming(self, part: Path) -> Iterator[Callable[[int], None]]:
        """A function that claims room for so many bytes of a download, and raises GatewayError (503) if there is none
        even after every file that no registry lists was removed."""
        try:
            yield lambda size: self._claim(part, size)
        finally:
            with self._lock:
                self._claims.pop(part, None)

    def _claim(self, part: Path, size: int) -> None:
        with self._lock:
            self._claims[part] = size
            if not self.most:
                return
            files = list(self._files())
            over = sum(self._claims.values()) + sum(size for _, size, _ in files) - self.most
            for path, size, _ in sorted(files, key=lambda file: file[2]):
                listed = self._listed.get(path.parent, frozenset())
                if over > 0 and listed is not None and path.name not in listed:
                    with contextlib.suppress(OSError):
                        path.unlink()
                        over -= size
            if over > 0:
                del self._claims[part]
                raise GatewayError(503, f"the cache of {self.most} bytes is full; raise repository.cache_bytes, or list"
                                   " fewer versions")  # fmt: skip

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        """Path, bytes and time of the last change of every file that is not being written."""
        for path in (*self.root.glob("*/*.mslite"), *self.root.glob("*/.*.part")):
            with contextlib.suppress(OSError):
                status = path.stat()
                if path not in self._claims:
                    yield path, status.st_size, status.st_mtime


class Shelf:
    """The folder of one registry in a cache."""

    def __init__(self, cache: Cache, folder: Path) -> None:
        self.folder, self._cache = folder, cache
        self._good: set[str] = set()
        """Keys of files that were verified since the start."""

    def path(self, row: Row) -> Path:
        """Where a row's bundle is, if it is here."""
        return self.folder / f"{row.key}.mslite"

    def has(self, row: Row) -> bool:
        """Whether a row's bundle is here, whole and valid."""
        path = self.path(row)
        if not path.exists():
            return False
        if row.key not in self._good:
            try:
                with open(path, "rb") as file:
                    _verify(file, row)
            except (OSError, _Wrong):
                return False
            self._good.add(row.key)
        return True

    def hold(self, rows: list[Row], patience: float) -> None:
        """Keep the bundles of these rows; what others left of downloads `patience` seconds ago is removed."""
        names = frozenset(self.path(row).name for row in rows)
        self._cache.hold(self.folder, names)
        old, wanted = time.time() - patience, {self._part(row).name for row in rows}
        for path in self.folder.glob(".*.part"):
            with contextlib.suppress(OSError):
                if path.name not in wanted and path.stat().st_mtime < old:
                    path.unlink()

    def fill(self, row: Row, fetch: Fetch, most: int) -> None:
        """Download a row's bundle of at most `most` bytes, from where an earlier attempt ended.

        Raises GatewayError; what has arrived is kept unless it is wrong.
        """
        part = self._part(row)
        try:
            with self._locked(part) as file, self._cache.claiming(part) as claim:
                _need(row.size is None or row.size <= most, row, f"at most {most} bytes", str(row.size))
                if row.size is not None:
                    claim(row.size)
                start = file.seek(0, os.SEEK_END)
                with fetch(row, 0 if row.size is not None and start > row.size else start) as got:
                    _need((got.total or 0) <= most, row, f"at most {most} bytes", str(got.total))
                    file.truncate(got.start)
                    file.seek(got.start)
                    _copy(got, file, row, most, claim)
                self._finish(file, row, part)
        except (OSError, _Wrong) as error:
            with contextlib.suppress(OSError):
                part.unlink()
            if isinstance(error, _Wrong):
                raise
            where = repr(os.fspath(self.folder))
            raise GatewayError(503, f"cannot save {row.name!r} in {where}: {error.strerror or error}") from None

    def _part(self, row: Row) -> Path:
        """What has arrived of a bundle from one address; an address's query may be another one each time."""
        where = blake2b(row.where.partition("?")[0].encode(), digest_size=4).hexdigest()
        return self.folder / f".{row.key}-{where}.part"

    @contextlib.contextmanager
    def _locked(self, part: Path) -> Iterator[IO[bytes]]:
        """The open file of a part, locked. Raises GatewayError if another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            with open(part, "a+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise GatewayError(503, "is being downloaded by another one", retry_after=5.0) from None
                with contextlib.suppress(FileNotFoundError):
                    if os.fstat(file.fileno()).st_ino == part.stat().st_ino:  # not renamed by who had the lock before
                        yield file
                        return

    def _finish(self, file: IO[bytes], row: Row, part: Path) -> None:
        """Verify a part, synchronise it and give it its name."""
        file.flush()
        _verify(file, row)
        os.fsync(file.fileno())
        os.replace(part, self.path(row))
        self._good.add(row.key)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Wrong(GatewayError):
    """A bundle that another attempt from the same byte would not mend."""


def _copy(got: Fetched, file: IO[bytes], row: Row, most: int, claim: Callable[[int], None]) -> None:
    claimed, total = row.size or 0, got.start
    for piece in got.pieces:
        total += len(piece)
        _need(total <= most, row, f"at most {most} bytes", "more")
        if total > claimed:
            claimed = max(total + _STEP, got.total or 0)
            claim(claimed)
        file.write(piece)
    promised = got.total if row.size is None else row.size
    if promised is not None and total < promised:
        raise GatewayError(503, f"{row.shown}: expected {promised} bytes, got {total}: it was cut short")
    _need(promised is None or total == promised, row, f"{promised} bytes", f"{total}")


def _verify(file: IO[bytes], row: Row) -> None:
    """Raise `_Wrong` unless a file is the undamaged bundle of a row."""
    if row.sha256:
        found = sha256()
        file.seek(0)
        while piece := file.read(_CHUNK):
            found.update(piece)
        _need(found.hexdigest() == row.sha256, row, f"sha256 {row.sha256[:16]}…", f"{found.hexdigest()[:16]}…")
    _need(os.fstat(file.fileno()).st_size > 0, row, "a bundle", "an empty file")
    try:
        got = bundle.opened(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))).digest
    except MsedgeError as error:
        raise _Wrong(503, f"{row.shown}: {error}") from None
    _need(not row.digest or got == row.digest, row, f"the bundle {row.digest[:16]}…", f"{got[:16]}…; publish it again")


def _need(truth: bool, row: Row, expected: str, got: str) -> None:
    if not truth:
        raise _Wrong(503, f"{row.shown}: expected {expected}, got {got}")
