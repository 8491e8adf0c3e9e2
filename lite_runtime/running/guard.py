"""Memory next to guard pages: an access beyond its end faults at once instead of reading adjacent memory."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

from lite_runtime.graph import Array

__all__ = ["guarded"]

_PROT_NONE, _PAGE_NOACCESS = 0, 1


def guarded(array: Array, *, front: bool = False) -> Array:
    """A copy of `array` between guard pages: it ends at the end of a page or, with `front`, starts at the start of
    one."""
    array = np.ascontiguousarray(array)
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page) * page
    region = mmap.mmap(-1, pages + 2 * page)
    whole = np.frombuffer(region, np.uint8)
    at = whole.ctypes.data
    for edge in (at, at + page + pages):
        _forbid(edge, page)
    start = page if front else page + pages - array.nbytes
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _forbid(address: int, nbytes: int) -> None:
    """Let accesses to whole pages fault. Raises OSError if the system refuses."""
    at, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    if sys.platform == "win32":
        former = ctypes.c_uint32()
        if not ctypes.CDLL("kernel32").VirtualProtect(at, size, _PAGE_NOACCESS, ctypes.byref(former)):
            raise OSError("VirtualProtect")
    elif ctypes.CDLL(None, use_errno=True).mprotect(at, size, _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
