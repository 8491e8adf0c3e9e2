"""A process that is killed at its n-th system call: forked, traced by ptrace, ended by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Run", "run"]

TRACEME, SYSCALL, SETOPTIONS, PEEKUSER = 0, 24, 0x4200, 3
GOOD, EXITKILL = 1, 1 << 20
ORIG_RAX = 15 * 8
CHANGING = frozenset({1, 18, 74, 75, 76, 77, 82, 83, 84, 86, 87, 88, 263, 264, 265, 266, 316})
"""Numbers on x86-64 of write, pwrite64, fsync, fdatasync, truncate, ftruncate, rename, mkdir, rmdir, link, unlink,
symlink, unlinkat, renameat, linkat, symlinkat, renameat2."""
SYSCALL_STOP = signal.SIGTRAP | 0x80


class Run(NamedTuple):
    """What became of a process.

    points: entries into and exits from system calls that were seen. killed: whether the process was killed at one, by
    SIGKILL. code: of its end otherwise. calls: the numbers of the system calls of all points, if they were asked for,
    or of the last one; -1 where they are not known.
    """

    points: int
    killed: bool
    code: int
    calls: tuple[int, ...] = ()

    @property
    def changing(self) -> list[int]:
        """The points at which something is changed on disk."""
        return [point for point, number in enumerate(self.calls) if number in CHANGING]


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(what: int, pid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    found = int(_LIBC.ptrace(what, pid, address, data))
    if found == -1 and ctypes.get_errno():
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def run(work: Callable[[], object], kill_at: int | None = None, *, name: bool = False) -> Run:
    """Do some work in a forked process, which is killed at one of its points (`Run.points`), from 0 on. name: whether
    `calls` is wanted. Raises OSError where the system allows no tracing."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _ptrace(TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return _followed(child, kill_at, name)


def _followed(child: int, kill_at: int | None, name: bool) -> Run:
    points, calls = 0, list[int]()
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        raise OSError(f"expected a process that can be traced, got one that ended with {status}")
    _ptrace(SETOPTIONS, child, 0, GOOD | EXITKILL)
    passed = 0
    while True:
        _ptrace(SYSCALL, child, 0, passed)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) or os.WIFEXITED(status):
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            return Run(points, False, code, tuple(calls))
        passed = 0
        if os.WSTOPSIG(status) != SYSCALL_STOP:
            passed = os.WSTOPSIG(status) if os.WSTOPSIG(status) != signal.SIGTRAP else 0
            continue
        if name or points == kill_at:
            calls.append(_number(child))
        if points == kill_at:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Run(points, True, -signal.SIGKILL, tuple(calls))
        points += 1


def _number(child: int) -> int:
    try:
        return _ptrace(PEEKUSER, child, ORIG_RAX) if os.uname().machine == "x86_64" else -1
    except OSError:
        return -1
