"""Which files of the cache may be used: only those that nobody except this user and root can have written.

Machine code and stored programs are executed without further checks, so anyone who can write them controls this
process. A file is opened only if it belongs to this user or root, no other user may write to it, and the same holds for
its folder and every folder above. A folder above the cache may be writable for others if it has the sticky bit (`/tmp`:
others cannot rename or delete files they do not own), or for its owner's private group, which has no other member.
Folders are created with mode 0700 and files with 0600.
"""

from __future__ import annotations

import os
import stat
import warnings
from typing import BinaryIO

from lite_runtime.errors import MsedgeError

__all__ = ["TrustError", "make_folder", "opened", "problem", "warn", "write"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_PERMISSIONS = hasattr(os, "geteuid")
"""Whether this system has owners and permission bits as in POSIX."""


class TrustError(MsedgeError):
    """A file of the cache, or a folder it is in, belongs to another user or can be written by one."""


def opened(path: str) -> BinaryIO:
    """A file of the cache, open for reading. Raises OSError if it does not exist, TrustError if others could have
    written it."""
    folder, name = os.path.split(path)
    real = _checked_folder(folder)
    file = open(os.path.join(real, name), "rb", opener=_without_links)  # noqa: SIM115  returned open
    try:
        _check_file(path, os.fstat(file.fileno()))
    except TrustError:
        file.close()
        raise
    return file


def make_folder(path: str) -> None:
    """Create a folder of the cache and the missing folders above it. Raises OSError if that is not possible, TrustError
    if others can write to it or to a folder above it."""
    real = os.path.realpath(path)
    missing = _check_nearest(real)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # another process was first; checked below
            if not os.path.isdir(folder):
                raise
    if missing:
        _checked_folder(real)


def write(path: str, data: bytes | list[bytes | memoryview]) -> None:
    """Write a file of the cache atomically, readable only by this user. Raises OSError, TrustError or MsedgeError; the
    file is then unchanged."""
    from lite_runtime._files import write_atomically

    make_folder(os.path.dirname(path))
    write_atomically(path, data, mode=0o600)


def problem(path: str) -> str:
    """Why files of a folder of the cache, which may not exist yet, are not used; "" if they are used."""
    try:
        _check_nearest(os.path.realpath(path))
    except TrustError as found:
        return str(found)
    return ""


def warn(found: TrustError, consequence: str) -> None:
    """Warn that something in the cache is not used, with the consequence; once for each text (by Python's own
    filter)."""
    warnings.warn(f"{found} ({consequence})", RuntimeWarning, stacklevel=2)


def _without_links(path: str, flags: int) -> int:
    """Open a file that is not a symbolic link: msedge never creates links in its cache."""
    if os.path.islink(path):
        raise TrustError(f"{path}: expected a file of the cache, got a symbolic link; delete it and run again")
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TrustError(f"{path}: expected a regular file, got a device, pipe or folder; delete it and run again")
    if not _PERMISSIONS:
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise TrustError(
            f"{path} is not used: expected a file of user {os.geteuid()} or root, got one of user {status.st_uid}; "
            "delete it, or set MSEDGE_CACHE to a folder of your own"
        )
    if status.st_mode & _OTHERS:
        raise TrustError(
            f"{path} is not used: expected a file that only its owner can write, got mode {_mode(status)}; what it "
            "holds may not be from you: delete it and run again"
        )


def _checked_folder(folder: str) -> str:
    """Path without symbolic links of a folder that holds files of the cache; it and all folders above it are
    checked."""
    if folder == os.path.abspath(folder) and _check_folders(folder, folder):
        return folder
    real = os.path.realpath(folder)
    _check_folders(real, real)
    return real


def _check_nearest(folder: str) -> list[str]:
    """Check a folder, or the nearest existing one above it; returns the missing folders, innermost first."""
    there, missing = folder, []
    while not os.path.isdir(there):
        missing.append(there)
        there = os.path.dirname(there)
    _check_folders(there, folder)
    return missing


def _check_folders(folder: str, cache: str) -> bool:
    """Check a folder and all above it; `cache`: the folder that holds files. Returns False at the first symbolic
    link."""
    if not _PERMISSIONS:
        return True
    while True:
        status = os.lstat(folder)
        if stat.S_ISLNK(status.st_mode):
            return False
        if status.st_uid not in (os.geteuid(), 0):
            raise TrustError(
                f"{cache} is not used: expected folders of user {os.geteuid()} or root, but {folder} belongs to user "
                f"{status.st_uid}; set MSEDGE_CACHE to a folder of your own"
            )
        if status.st_mode & _OTHERS and (folder == cache or not _harmless(status)):
            raise TrustError(
                f"{cache} is not used: expected folders that only their owner can write, but {folder} has mode "
                f"{_mode(status)}; delete what others put into it and run `chmod go-w {folder}`, or set MSEDGE_CACHE "
                "to a folder of your own"
            )
        above = os.path.dirname(folder)
        if above == folder:
            return True
        folder = above


def _harmless(status: os.stat_result) -> bool:
    """Whether other users who may write to this folder still cannot replace this user's folders in it."""
    if status.st_mode & stat.S_ISVTX:
        return True
    return not status.st_mode & stat.S_IWOTH and _is_private_group(status.st_gid, status.st_uid)


def _is_private_group(group: int, user: int) -> bool:
    """Whether a group has its user's name and no other member: many systems give every user one, and umask 002."""
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
