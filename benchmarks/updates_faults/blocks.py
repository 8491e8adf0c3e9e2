"""A disk that records what is written to it, block by block, and what may be left of it after a power failure.

A process serves one file, `disk`, by the kernel's FUSE protocol (include/uapi/linux/fuse.h); a loop device makes a
block device of it. The file system's writes and flushes arrive here in the order in which a real disk gets them, as
with device mapper's log-writes. After a power failure a disk has all that was written before the last flush that
ended, and of later writes any sectors: each may be there or not, since disks reorder them and tear them apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Write", "after", "read_log", "recording"]

SECTOR = 512
_HEAD, _REPLY = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTR, _ENTRY = struct.Struct("<6Q10I"), struct.Struct("<4Q2I")
_READ, _WRITE = struct.Struct("<QQIIQII"), struct.Struct("<QQIIQII")
_RECORD = struct.Struct("<qI")
_FLUSH = -1
_ROOT, _DISK = 1, 2
_MOST = 1 << 17
ENOENT, ENOSYS = 2, 38


class Write(NamedTuple):
    """Bytes that were written at an offset; None: a flush that ended."""

    offset: int
    data: bytes | None


class _Server:
    """Answers the kernel's requests about the folder with one file. log: gets a record of each write and flush."""

    def __init__(self, device: int, content: bytearray, log: int) -> None:
        self._device, self._content, self._log = device, content, log
        self._answers: Mapping[int, Callable[[int, bytes], bytes | int]] = {
            1: self._lookup, 3: self._getattr, 4: self._getattr, 14: self._open, 15: self._read, 16: self._write,
            17: lambda node, body: struct.pack("<5Q4I6I", *[1 << 20] * 5, 4096, 255, 4096, 0, *[0] * 6),
            18: lambda node, body: b"", 20: self._fsync, 25: lambda node, body: b"", 26: self._init,
            27: self._open, 29: lambda node, body: b"", 34: lambda node, body: b"",
        }  # fmt: skip

    def serve(self) -> None:
        """Until the file system is unmounted."""
        while True:
            try:
                request = os.read(self._device, _MOST + 4096)
            except OSError:
                return
            _, code, unique, node, *_ = _HEAD.unpack_from(request)
            if code in (2, 36, 42):  # forget, interrupt, batch forget: no answer is wanted
                continue
            answer = self._answers.get(code, _unknown)(node, request[_HEAD.size :])
            error, body = (answer, b"") if isinstance(answer, int) else (0, answer)
            with contextlib.suppress(OSError):
                os.write(self._device, _REPLY.pack(_REPLY.size + len(body), error, unique) + body)

    def _init(self, node: int, body: bytes) -> bytes:
        major_minor_ahead = (7, 31, 1 << 16)
        return struct.pack("<4I2H2I2HI7I", *major_minor_ahead, 1 << 5, 0, 0, _MOST, 1, 32, 0, *[0] * 8)

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o40700, 0) if node == _ROOT else (0o100600, len(self._content))
        return _ATTR.pack(node, size, size // SECTOR, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _lookup(self, node: int, body: bytes) -> bytes | int:
        if body.rstrip(b"\0") != b"disk":
            return -ENOENT
        return _ENTRY.pack(_DISK, 0, 3600, 3600, 0, 0) + self._attributes(_DISK)

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)

    def _open(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = _READ.unpack_from(body)
        return bytes(self._content[offset : offset + size])

    def _write(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = _WRITE.unpack_from(body)
        data = body[_WRITE.size : _WRITE.size + size]
        self._content[offset : offset + size] = data
        os.write(self._log, _RECORD.pack(offset, size) + data)
        return struct.pack("<II", size, 0)

    def _fsync(self, node: int, body: bytes) -> bytes:
        os.write(self._log, _RECORD.pack(_FLUSH, 0))
        return b""


def _unknown(node: int, body: bytes) -> int:
    """What is asked for is not there: the kernel can do without."""
    return -ENOSYS


@contextlib.contextmanager
def recording(image: Path, at: Path, log: Path) -> Iterator[Path]:
    """The path of a file with an image's content, whose writes are recorded in `log`; the image itself stays as it is.

    Raises OSError where FUSE cannot be used.
    """
    at.mkdir(parents=True, exist_ok=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    content = bytearray(image.read_bytes())
    words = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"msedge", os.fsencode(at), b"fuse", 0, words):
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, os.strerror(number), str(at))
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    server = os.fork()
    if not server:
        try:
            _Server(device, content, record).serve()
        finally:
            os._exit(0)
    os.close(device)
    os.close(record)
    try:
        yield at / "disk"
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(at)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        else:
            os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def read_log(path: Path) -> list[Write]:
    """What was written, in order."""
    raw, at, found = path.read_bytes(), 0, list[Write]()
    while at + _RECORD.size <= len(raw):
        offset, size = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        found.append(Write(offset, None if offset == _FLUSH else raw[at : at + size]))
        at += size
    return found


def after(image: bytes, writes: Sequence[Write], rng: random.Random) -> bytearray:
    """A disk's content after a power failure at the end of these writes: all up to the last flush, and of later ones
    whole writes in order, any of them, or any sectors of them."""
    made = bytearray(image)
    flushed = max((number for number, one in enumerate(writes) if one.data is None), default=-1)
    for one in writes[: flushed + 1]:
        if one.data is not None:
            made[one.offset : one.offset + len(one.data)] = one.data
    late = [one for one in writes[flushed + 1 :] if one.data is not None]
    kind = rng.choice(("in order", "any", "torn"))
    late = late[: rng.randint(0, len(late))] if kind == "in order" else late
    for one in late:
        assert one.data is not None
        for at in range(0, len(one.data), SECTOR if kind == "torn" else len(one.data)):
            if kind == "in order" or rng.random() < 0.5:
                part = one.data[at : at + SECTOR] if kind == "torn" else one.data
                made[one.offset + at : one.offset + at + len(part)] = part
    return made
