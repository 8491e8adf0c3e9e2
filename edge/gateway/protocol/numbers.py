"""Parsing of numbers in JSON by native code: large arrays are cut out of the body before the rest is parsed.

`orjson` and NumPy create a Python object for every number; reading the text of "data" directly into an array is several
times as fast. Arrays that are unusual in any way stay in the body, and the general path reads or refuses them.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Mapping
from math import isinf
from typing import NamedTuple

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.native import build

__all__ = ["Cut", "cut", "missing", "prepare"]

WORTH = 1024
"""For bodies of fewer bytes, cutting costs as much as it saves."""
FEWEST = 16
"""Arrays of fewer elements are not cut out."""
KEYS = 256
"""The largest number of keys that are examined: each costs a microsecond, and a body could have millions."""
Scan = Callable[[bytes, int], tuple[Array | None, int]]
_KEPT: list[Scan | None] = []
"""The native function, once it is known whether there is one."""
_KEY = b'"data"'
_SPACE = b" ", b"\t", b"\n", b"\r"
_MARK = secrets.token_hex(12)
"""The prefix of this process's placeholders. It is random, so that no client can write a placeholder that refers to
another input's numbers."""

KIND, STOP, COUNT, DEPTH, LEFT, EXTENTS, LEFTOVERS, PATIENCE = 0, 1, 2, 3, 4, 8, 24, 64
INTEGERS = 1
"""Number of words in the native code's result (`lite_runtime/kernels/jsontext.py`)."""
LEAST, MOST = -342, 308
"""The powers of five in the native code's table (`lite_runtime/kernels/_decimal.py`)."""


class Cut(NamedTuple):
    """A body without its large arrays of numbers.

    header: JSON with a string in the place of each array cut out; valid exactly if the body was. arrays: the arrays by
    these strings, int64 if all elements were written as integers, else float64; the shape is the nesting of the text,
    [n] for a flat list.
    """

    header: bytes
    arrays: Mapping[str, Array]


def missing() -> tuple[str, ...]:
    """The kernel families that have to be compiled before numbers are read natively."""
    try:
        with build.uncompiled():
            _compiled()
    except build.NotCompiledError as error:
        return error.families
    return ()


def prepare() -> bool:
    """Compile and load the native code, which takes seconds. Returns whether it is available."""
    if not _KEPT:
        _KEPT.append(_compiled())
    return _KEPT[0] is not None


def cut(body: bytes | bytearray | memoryview, key: bytes = _KEY) -> Cut | None:
    """Cut out the arrays of numbers that are values of a key, in quotes; None if there is nothing to gain.

    The numbers are bit for bit those of Python's `json.loads`. An array is not cut out if it is ragged or short, if it
    contains anything but numbers, an integer beyond int64 (beyond 2^53 among reals) or a real beyond float64, or if it
    is not valid JSON. The body may contain any bytes: this function never raises.

    Only the key's text is searched for. This is sufficient: in valid JSON, a quote without a backslash before it
    begins or ends a string, and after the end of a string only punctuation can follow, so `"data"` is always a complete
    string. In invalid JSON, the error is before the array or in the text that is kept, and is found there.
    """
    if len(body) < WORTH or (scan := _scanner()) is None:
        return None
    text = bytes(body)
    at = text.find(key)
    arrays: dict[str, Array] = {}
    kept: list[bytes] = []
    done = 0
    for _ in range(KEYS):
        if at < 0 or len(text) - at < WORTH // 2:
            break
        start = _value(text, at, len(key))
        stop = at + len(key)
        if start:
            array, stop = scan(text, start)
            if array is not None:
                mark = f"{_MARK}{len(arrays)}"
                arrays[mark] = array
                kept += text[done:start], b'"', mark.encode(), b'"'
                done = stop
        at = text.find(key, stop)
    if not arrays:
        return None
    kept.append(text[done:])
    return Cut(b"".join(kept), arrays)


def _value(text: bytes, key: int, size: int) -> int:
    """Where the array of the key of `size` bytes at `key` begins; 0 if that is no key, or its value no array."""
    if text.startswith(b"\\", key - 1):
        return 0
    at = key + size
    for sign in b":", b"[":
        while text.startswith(_SPACE, at):
            at += 1
        if not text.startswith(sign, at):
            return 0
        at += 1
    return at - 1


def _scanner() -> Scan | None:
    """See `_compiled`; None also while the native code waits to be compiled."""
    if not _KEPT:
        try:
            with build.uncompiled():
                _KEPT.append(_compiled())
        except build.NotCompiledError:
            return None
    return _KEPT[0]


def _compiled() -> Scan | None:
    """A function (text, position where an array begins) -> (the array or None, position where reading stopped). None if
    there is no native code. Raises NotCompiledError: see `build.uncompiled`."""
    address, word = ctypes.c_void_p, ctypes.c_int64
    try:
        if not build.available():
            return None
        numbers = build.function("jsontext", "numbers", address, word, word, address, address, address)
    except build.NotCompiledError:
        raise
    except (MsedgeError, OSError):  # the compiler failed or the cache cannot be written: use the general path
        return None
    powers = _powers()
    table, words, memory = powers.ctypes.data, word * (LEFTOVERS + 3 * PATIENCE), word * 0

    def scan(text: bytes, at: int, held: Array = powers) -> tuple[Array | None, int]:
        values, said = np.empty((len(text) - at) // 2), words()
        # An empty ctypes view: getting its address costs a quarter of `values.ctypes.data`.
        numbers(text, at, len(text), memory.from_buffer(values.data), table, said)
        kind, stop, count, depth, left = said[: LEFT + 1]
        if not kind or count < FEWEST:
            return None, stop
        array = values[:count] if kind != INTEGERS else values[:count].view(np.int64)
        for i in range(LEFTOVERS, LEFTOVERS + 3 * left, 3):
            element, start, end = said[i : i + 3]
            array[element] = real = float(text[start:end])
            if isinf(real):
                return None, stop
        return array.reshape(said[EXTENTS : EXTENTS + depth]) if depth > 1 else array, stop

    return scan


def _powers() -> Array:
    """The native code's table: 10^0 … 10^22 as float64, 10^0 … 10^19, and 5^q in 128 bits."""
    words = [int(bits) for bits in np.array([10.0**k for k in range(23)]).view(np.uint64)]
    words += [10**k for k in range(20)]
    for q in range(LEAST, MOST + 1):
        five = _five(q)
        words += five >> 64, five & (1 << 64) - 1
    return np.array(words, np.uint64).view(np.int64)


def _five(q: int) -> int:
    """5^q, shifted so that its highest bit is bit 127, and truncated; for -27 <= q < 0, where 5^-q fits in a word,
    rounded up."""
    power: int = 5 ** abs(q)
    bits = power.bit_length()
    if q >= 0:
        return power << 128 - bits if bits <= 128 else power >> bits - 128
    return (1 << 127 + bits) // power + (q >= -27)
