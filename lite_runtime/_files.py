"""Atomic file writing: a reader finds either the complete old file or the complete new one, even after a crash.

A process that is killed while it writes leaves its temporary file. The next process that writes to the same folder
deletes it: a writer locks its temporary file, and the system releases the locks of a process that ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterable

from lite_runtime.errors import MsedgeError

try:
    import fcntl
except ImportError:  # Windows
    LOCKS = False
else:
    LOCKS = True

__all__ = ["TEMPORARY", "locked", "refusal", "sweep", "sync_folder", "write_atomically"]

Data = bytes | memoryview

TEMPORARY = re.compile(r"\.msedge-[0-9a-f]{16}\.tmp")
YOUNG, OLD = 60.0, 3600.0
"""Seconds since the last write: a younger temporary file may not be locked yet; an older one is deleted also where
files cannot be locked."""
_swept: set[str] = set()

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
    data: Data | Iterable[Data],
    error: type[MsedgeError] = MsedgeError,
    *,
    mode: int | None = None,
) -> None:
    """Replace `path` with exactly `data` (or its parts, in order, which may be made as they are written): write a
    temporary file in the same folder, fsync it, rename it, fsync the folder.

    A symbolic link is followed. mode: permission bits of the file; without it an existing file keeps its own, and a new
    one gets those that the umask allows. Raises `error`, naming the path and the fix; `path` is then unchanged (or, if
    only the last fsync failed, new and complete) and no temporary file remains. The first call for a folder sweeps it.
    """
    shown = os.fspath(path)
    try:
        target = os.path.realpath(shown)
        kept, folder = _mode_of(target), os.path.dirname(target)
        if folder not in _swept:
            _swept.add(folder)
            sweep(folder)
        temporary = os.path.join(folder, f".msedge-{os.urandom(8).hex()}.tmp")
        try:
            parts = [data] if isinstance(data, bytes | memoryview) else data
            _write_new(temporary, parts, kept if mode is None else mode, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(os.path.dirname(target))
    except (OSError, ValueError) as problem:
        raise refusal(shown, problem, error) from problem


def refusal(shown: str, problem: OSError | ValueError, error: type[MsedgeError]) -> MsedgeError:
    """The `error` for a file that cannot be written, with the fix."""
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


def _write_new(path: str, parts: Iterable[Data], mode: int | None, target: str) -> None:
    """Write the file `path` and rename it to `target`, as long as it is locked where that is possible."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o666)
    try:
        _lock(handle)
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(handle, mode)
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
        if LOCKS:
            os.replace(path, target)
    finally:
        os.close(handle)
    if not LOCKS:  # Windows renames no open file
        os.replace(path, target)


def sweep(folder: str | os.PathLike[str]) -> int:
    """Delete the temporary files that killed processes left in a folder; returns how many. Files of running processes,
    and of any other name, stay; what cannot be read or deleted is left."""
    count = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if _is_orphan(entry.path):
                        os.unlink(entry.path)
                        count += 1
    return count


def _is_orphan(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        age = time.time() - os.fstat(handle).st_mtime
        free = _lock(handle) if age > YOUNG else False
        return age > OLD if free is None else free
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file; False: another process has locked it; None: it cannot be locked here."""
    if not LOCKS:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def locked(path: str | os.PathLike[str]) -> int | None:
    """The file at `path`, opened, made if there is none, and locked until it is closed or this process ends; None if
    another process has it. Where files cannot be locked (Windows), it is only opened. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    if LOCKS:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
    return handle


def sync_folder(folder: str) -> None:
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
