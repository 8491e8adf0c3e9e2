"""The files of a release, from what the device has and from a source.

A file that a slot has is linked or copied; a delta is downloaded where it is smaller than the missing pieces; else the
file is written from its beginning, piece after piece, each copied from an old file that has it, or downloaded. So the
length of a part says how far it has come, and the digests of its pieces whether that is true: after a crash, a torn
write or a broken download it goes on behind the last sound piece, and within a piece by range.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from edge.agent.errors import AgentError, FetchError, MissingError
from edge.agent.slots import remove, sha256_of
from edge.agent.source import Source
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.release import File, Piece, Release

__all__ = ["DAMAGED", "DELTA", "Gathering", "Held"]

_CHUNK = 1 << 16
TRIES = 2
"""Times that a piece is downloaded whose bytes were wrong."""
PATIENCE, LEAST = 60.0, 512.0
"""Seconds after which a download must have had this many bytes a second on average."""
DELTA, DAMAGED = ".delta-", ".damaged-"
"""Prefixes of other files among the parts; no file of a release begins with a dot."""


class Held(NamedTuple):
    """A file that is on the device, and what it should be. checked: whether all of it was read and is so."""

    path: Path
    file: File
    checked: bool


class Gathering:
    """Brings the files of one release into `files`, with what is incomplete in `parts`.

    held: files of old slots by name, the most similar first. allowed: called before each download and for each part of
    it; raises FetchError to pause. watch: is told of the bytes that were downloaded.
    """

    def __init__(
        self,
        release: Release,
        source: Source,
        files: Path,
        parts: Path,
        held: Mapping[str, tuple[Held, ...]],
        allowed: Callable[[], None] = lambda: None,
        watch: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._release, self._source, self._files, self._parts = release, source, files, parts
        self._held, self._allowed, self._watch = held, allowed, watch
        self._pieces: dict[Piece, tuple[Path, int]] = {}
        for name in sorted(held):
            for one in held[name]:
                self._know(one.path, one.file)

    def needed(self) -> tuple[int, int]:
        """Bytes of disk that the files still take, and of them those that are downloaded at most."""
        disk = download = 0
        for name, file in self._release.files.items():
            if _size(self._files / name) == file.size:
                continue
            if not any(one.file.sha256 == file.sha256 for one in self._all()):
                disk += max(0, file.size - _size(self._parts / name))
                download += sum(piece.size for piece in dict.fromkeys(file.pieces) if piece not in self._pieces)
        return disk, download

    def fetch(self) -> None:
        """Bring what has to be downloaded, and write all files that need no delta. Raises FetchError if the source does
        not answer or `allowed` says so, AgentError for a source that has something else, OSError from the disk."""
        for name, file in self._release.files.items():
            if self._is_there(name, file) or self._linked(name, file) or self._has_delta(name, file):
                continue
            self._write(name, file)

    def rebuild(self) -> None:
        """Write the files that have deltas; one that gives another file than it should is not used. Raises as `fetch`
        does."""
        for name, file in self._release.files.items():
            if self._is_there(name, file):
                continue
            delta = self._parts / f"{DELTA}{name}"
            if not delta.exists() or not self._rebuilt(name, file, delta):
                self._write(name, file)
            remove(delta)

    # -- whole files ---------------------------------------------------------------------------------------------------

    def _is_there(self, name: str, file: File) -> bool:
        """Whether a file is complete; one that is damaged is a source of its sound pieces."""
        path = self._files / name
        if not path.exists():
            return False
        if path.stat().st_size == file.size and sha256_of(path) == file.sha256:
            return True
        damaged = self._parts / f"{DAMAGED}{name}"
        os.replace(path, damaged)
        self._know(damaged, file)
        return False

    def _linked(self, name: str, file: File) -> bool:
        """Take a file that an old slot has, whose bytes were checked: by a link, or a copy where there are none."""
        for one in self._all():
            if one.checked and one.file.sha256 == file.sha256:
                with contextlib.suppress(OSError):
                    os.link(one.path, self._files / name)
                    remove(self._parts / name)
                    return True
        return False

    def _all(self) -> Iterator[Held]:
        return (one for rows in self._held.values() for one in rows)

    def _rebuilt(self, name: str, file: File, delta: Path) -> bool:
        from lite_runtime.updates.delta import rebuild

        part = self._parts / name
        for one in self._held.get(name, ()):
            if not one.checked or self._source.delta(one.file.sha256, file.sha256) is None:
                continue
            with contextlib.suppress(BundleError):
                rebuild(one.path, delta, part, size=file.size, sha256=file.sha256)
                if sha256_of(part) == file.sha256:
                    os.replace(part, self._files / name)
                    self._know(self._files / name, file)
                    return True
        return False

    def _has_delta(self, name: str, file: File) -> bool:
        """Download the delta from a version that is here, if one is smaller than the pieces that are missing."""
        missing = sum(piece.size for piece in dict.fromkeys(file.pieces) if piece not in self._pieces)
        if _size(self._parts / name):  # a part of the whole file is here already: it goes on
            return False
        for one in self._held.get(name, ()):
            offered = self._source.delta(one.file.sha256, file.sha256) if one.checked else None
            if offered is not None and offered[0] < missing:
                size, sha256 = offered
                content = partial(self._source.delta_content, one.file.sha256, file.sha256, sha256)
                delta = self._parts / f"{DELTA}{name}"
                if _size(delta) == size and sha256_of(delta) == sha256:
                    return True
                try:
                    with _appended(delta) as handle:
                        self._download(handle, 0, Piece(size, sha256), content)
                except AgentError as problem:
                    if isinstance(problem, FetchError) and not isinstance(problem, MissingError):
                        raise
                    remove(delta)  # it is not what it should be, or not there: all can be had without it
                    return False
                return True
        return False

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _write(self, name: str, file: File) -> None:
        """Write a file piece by piece, and let it have its name."""
        part = self._parts / name
        with _appended(part) as handle:
            at, todo = self._sound(handle, file)
            os.ftruncate(handle, min(os.fstat(handle).st_size, at + (todo[0].size if todo else 0)))
            for piece in todo:
                if not self._copied(handle, at, piece):
                    self._download(handle, at, piece, partial(self._source.piece, piece.sha256))
                self._pieces.setdefault(piece, (part, at))
                at += piece.size
        if sha256_of(part) != file.sha256:
            remove(part)
            raise AgentError(f"{name!r}: its pieces are not the file that its release names; make the release again")
        os.replace(part, self._files / name)
        self._know(self._files / name, file)

    def _sound(self, handle: int, file: File) -> tuple[int, tuple[Piece, ...]]:
        """How many bytes of a part are sound pieces, and the pieces that follow."""
        at, size = 0, os.fstat(handle).st_size
        for number, piece in enumerate(file.pieces):
            if at + piece.size > size or _digest(handle, at, piece.size) != piece.sha256:
                return at, file.pieces[number:]
            at += piece.size
        return at, ()

    def _copied(self, handle: int, at: int, piece: Piece) -> bool:
        """Copy a piece from a file that has it; a damaged one is found by its digest."""
        if piece not in self._pieces:
            return False
        path, start = self._pieces[piece]
        found, left = hashlib.sha256(), piece.size
        os.ftruncate(handle, at)
        os.lseek(handle, at, os.SEEK_SET)
        for part in _read_old(path, start, left):
            found.update(part)
            _put(handle, part)
            left -= len(part)
        if not left and found.hexdigest() == piece.sha256:
            return True
        del self._pieces[piece]
        os.ftruncate(handle, at)
        return False

    def _download(self, handle: int, at: int, piece: Piece, content: Callable[[int], Iterator[bytes]]) -> None:
        """Bring a piece to its place; what is there of it is kept if the whole has the digest."""
        for attempt in range(TRIES):
            got = os.fstat(handle).st_size - at
            found = hashlib.sha256()
            for part in _read(handle, at, got):
                found.update(part)
            os.lseek(handle, at + got, os.SEEK_SET)
            if got < piece.size:
                self._allowed()
                begun, before = time.monotonic(), got
                for part in content(got):
                    if (took := time.monotonic() - begun) > PATIENCE and got - before < took * LEAST:
                        slow = f"{got - before} bytes in {took:.0f} s"
                        raise FetchError(f"expected at least {LEAST:g} bytes a second, got {slow}")
                    part = part[: piece.size - got]
                    _put(handle, part)
                    found.update(part)
                    got += len(part)
                    self._watch(len(part))
                    self._allowed()
                    if got == piece.size:  # what follows is not asked for
                        break
            if got == piece.size and found.hexdigest() == piece.sha256:
                return
            if got < piece.size and attempt + 1 == TRIES:
                raise FetchError(f"expected {piece.size} bytes of {piece.sha256[:16]}…, got {got}")
            os.ftruncate(handle, at)
        raise AgentError(
            f"expected bytes with SHA-256 {piece.sha256[:16]}… from the source, got others {TRIES} times; what it has"
            " is damaged"
        )

    def _know(self, path: Path, file: File) -> None:
        """Remember where the pieces of a file are."""
        at = 0
        for piece in file.pieces:
            self._pieces[piece] = (path, at)
            at += piece.size


@contextlib.contextmanager
def _appended(path: Path) -> Iterator[int]:
    """A file that is open for reading and writing, made if there is none."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o644)
    try:
        yield handle
    finally:
        os.close(handle)


def _put(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _read(handle: int, at: int, size: int) -> Iterator[bytes]:
    os.lseek(handle, at, os.SEEK_SET)
    while size > 0 and (part := os.read(handle, min(_CHUNK, size))):
        size -= len(part)
        yield part


def _read_old(path: Path, at: int, size: int) -> Iterator[bytes]:
    """Bytes of an old file; fewer if it is gone, or the disk cannot read them any more: they can be downloaded."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as old:
        old.seek(at)
        while size > 0 and (part := old.read(min(_CHUNK, size))):
            size -= len(part)
            yield part


def _digest(handle: int, at: int, size: int) -> str:
    found = hashlib.sha256()
    for part in _read(handle, at, size):
        found.update(part)
    return found.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
