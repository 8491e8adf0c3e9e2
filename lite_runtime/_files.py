"""Atomic file writing: a reader finds either the complete old file or the complete new one, even after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from lite_runtime.errors import MsedgeError

__all__ = ["write_atomically"]

Data = bytes | memoryview

_FIX = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your disk quota",
    errno.EFBIG: "raise the file size limit (ulimit -f) or write to another file system",
    errno.EACCES: "choose a folder you may write to, or change its permissions",
    errno.EPERM: "choose a folder you may write to, or change its permissions",
    errno.EROFS: "that file system is read-only; choose another folder",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EISDIR: "that path is a folder; add a file name",
    errno.ENAMETOOLONG: "choose a shorter file name",
}


def write_atomically(
    path: str | os.PathLike[str],
    data: Data | Sequence[Data],
    error: type[MsedgeError] = MsedgeError,
    *,
    mode: int | None = None,
) -> None:
    """Replace `path` with exactly `data` (or its parts, in order): write a temporary file in the same folder, fsync it,
    rename it, fsync the folder.

    A symbolic link is followed. mode: permission bits of the file; without it an existing file keeps its own, and a new
    one gets those that the umask allows. Raises `error`, naming the path and the fix; `path` is then unchanged (or, if
    only the last fsync failed, new and complete) and no temporary file remains.
    """
    shown = os.fspath(path)
    try:
        target = os.path.realpath(shown)
        kept = _mode_of(target)
        temporary = os.path.join(os.path.dirname(target), f".msedge-{os.urandom(8).hex()}.tmp")
        try:
            parts = [data] if isinstance(data, bytes | memoryview) else data
            _write_new(temporary, parts, kept if mode is None else mode)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(os.path.dirname(target))
    except (OSError, ValueError) as problem:
        raise _refusal(shown, problem, error) from problem


def _refusal(shown: str, problem: OSError | ValueError, error: type[MsedgeError]) -> MsedgeError:
    if isinstance(problem, OSError):
        fix = _FIX.get(problem.errno or 0, "check the disk and the path")
        return error(f"cannot write {shown!r}: {problem.strerror or problem}; {fix}")
    return error(f"cannot write {shown!r}: {problem}; choose another path")


def _mode_of(target: str) -> int | None:
    """Permission bits of the file to be replaced; None if it does not exist yet."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("expected a regular file, got a device, pipe or socket")
    return stat.S_IMODE(status.st_mode)


def _write_new(path: str, parts: Sequence[Data], mode: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o666)
    try:
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(handle, mode)
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: str) -> None:
    """Make a rename survive a power failure, on systems that allow opening a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
