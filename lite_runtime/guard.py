"""Memory that ends at a forbidden page: an access past its end faults at once instead of reading a neighbour."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from lite_runtime.graph import Array

__all__ = ["guarded"]

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(array: Array) -> Array:
    """A copy of `array` whose last byte is the last of its page, with inaccessible pages before and behind it."""
    array = np.ascontiguousarray(array)
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page) * page
    region = mmap.mmap(-1, pages + 2 * page)
    whole = np.frombuffer(region, np.uint8)
    at = whole.ctypes.data
    for edge in (at, at + page + pages):
        if _libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    copy = whole[page + pages - array.nbytes : page + pages].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
