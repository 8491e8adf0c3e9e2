"""One region of shared memory, as a client has made it.

Clients make and keep the file, and can cut it short or change its bytes at any time. So it is never mapped: reading a
page of a mapped file that is gone ends the process (SIGBUS), and bytes that were checked could change before they are
used. Tensors are copied by `preadv` and `pwrite`, which fail instead. A tensor of 588 KiB takes 34 microseconds; copied
from a mapped file, it takes 9, and over a socket several hundred.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.models.names import shown
from edge.gateway.protocol.layout import Slice

__all__ = ["FOLDER", "Region", "opened"]

FOLDER = "/dev/shm"
"""Where `shm_open` keeps its objects (Linux, shm_overview(7))."""
MOST_BYTES = 1 << 46
"""The largest offset or size: every sum of two fits in a file's 64 bits."""
_KEY = re.compile(r"/?[^/\0]{1,250}\Z")
_ALIGN = 64
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Region:
    """`size` bytes of an object, from `offset` on; any thread.

    The file is closed when nothing refers to the region any more: neither the registry nor a request, whose thread may
    still copy after its client has left. A descriptor that is closed too early could name another file by then.
    """

    __slots__ = ("_file", "key", "name", "offset", "size", "writable")

    def __init__(self, name: str, key: str, offset: int, size: int, file: int, writable: bool) -> None:
        """file: the descriptor, which the region closes. writable: whether it can be written."""
        self.name, self.key, self.offset, self.size = name, key, offset, size
        self._file, self.writable = file, writable

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._file)

    def check(self, part: Slice, whose: str) -> None:
        """Raise GatewayError (400) if a tensor's place is not within the region."""
        if part.offset + part.size > self.size:
            raise GatewayError(400, f"{whose}: shared_memory_region {shown(self.name)} has {self.size} bytes;"
                                    f" shared_memory_offset {part.offset} and shared_memory_byte_size {part.size} end"
                                    f" at {part.offset + part.size}")  # fmt: skip

    def read(self, part: Slice, whose: str) -> memoryview:
        """A copy of the tensor's bytes, aligned. Raises GatewayError (400) if the file has become shorter."""
        home = np.empty(part.size + _ALIGN, np.uint8)
        data = home[-home.ctypes.data % _ALIGN :][: part.size].data
        at, done = self.offset + part.offset, 0
        try:
            while done < part.size:
                count = os.preadv(self._file, [data[done:]], at + done)
                if not count:
                    raise self._short(whose)
                done += count
        except OSError as error:
            raise self._failed(whose, error) from None
        return data

    def write(self, part: Slice, data: bytes | memoryview, whose: str) -> None:
        """Write a tensor's bytes, which fit. Raises GatewayError: 400 if the file has become shorter, 503 if there is
        no memory for it."""
        at, view = self.offset + part.offset, memoryview(data)
        try:
            if os.fstat(self._file).st_size < at + len(view):  # writing would make it longer
                raise self._short(whose)
            while len(view):
                count = os.pwrite(self._file, view, at)
                view, at = view[count:], at + count
        except OSError as error:
            raise self._failed(whose, error) from None

    def _short(self, whose: str) -> GatewayError:
        return GatewayError(400, f"{whose}: {shown(self.key)} has become shorter than when shared_memory_region"
                                 f" {shown(self.name)} was registered")  # fmt: skip

    def _failed(self, whose: str, error: OSError) -> GatewayError:
        status = 503 if error.errno in (errno.ENOSPC, errno.ENOMEM) else 400
        return GatewayError(status, f"{whose}: shared_memory_region {shown(self.name)}: {error.strerror}")


def opened(name: str, key: str, offset: int, size: int, user: int | None, folder: str = FOLDER) -> Region:
    """Open an object for a client who is this user. Any thread.

    The key is a name in the folder, no path; the object is a file, not a link, has one name, and belongs to that user:
    otherwise a client could read and write through the gateway what only the gateway's user may. Raises GatewayError:
    400, 403 for somebody else's file.
    """
    if not _KEY.match(key) or key.lstrip("/") in (".", ".."):
        raise GatewayError(400, f"key: expected a shared memory object's name, such as '/tensors', got {shown(key)}")
    if not (0 <= offset <= MOST_BYTES and 0 < size <= MOST_BYTES):
        raise GatewayError(400, f"expected offset from 0 and byte_size from 1 on, got {offset} and {size}")
    file, writable = _open(os.path.join(folder, key.lstrip("/")), key)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            text = "expected a shared memory object, got another kind of file, or one with several names"
            raise GatewayError(400, f"key {shown(key)}: {text}")
        if user is None:
            text = "the kernel does not tell which user you are, so the owner cannot be checked"
            raise GatewayError(403, f"key {shown(key)}: {text}")
        if user not in (about.st_uid, 0):
            text = f"expected an object of your own (user {user}), this one is another user's"
            raise GatewayError(403, f"key {shown(key)}: {text}")
        if about.st_size < offset + size:
            text = f"offset {offset} and byte_size {size} end at {offset + size}, the object has {about.st_size} bytes"
            raise GatewayError(400, f"key {shown(key)}: {text}")
    except BaseException:
        os.close(file)
        raise
    return Region(name, key, offset, size, file, writable)


def _open(path: str, key: str) -> tuple[int, bool]:
    """A descriptor, and whether it can be written."""
    with suppress(PermissionError):
        return _flagged(path, key, os.O_RDWR), True
    try:
        return _flagged(path, key, os.O_RDONLY), False
    except PermissionError:
        raise GatewayError(400, f"key {shown(key)}: the gateway's user ({os.geteuid()}) may not read it; change its"
                                " permissions") from None  # fmt: skip


def _flagged(path: str, key: str, mode: int) -> int:
    try:
        return os.open(path, mode | _FLAGS)
    except PermissionError:
        raise
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else "does not exist"
        if error.errno not in (errno.ELOOP, errno.ENOENT):
            why = f"cannot be opened: {error.strerror}"
        raise GatewayError(400, f"key {shown(key)} {why}") from None
