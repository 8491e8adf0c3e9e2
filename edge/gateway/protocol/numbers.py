"""Numbers out of JSON in native code: a body's large arrays are cut out before anything else parses it.

`orjson` and NumPy make a Python object of every number on the way; reading the text of "data" straight into an array
is several times as fast. What is unusual in any way stays in the body, for the general path to read or refuse.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from math import isinf
from typing import NamedTuple

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.native import build

__all__ = ["Cut", "cut", "prepare"]

WORTH = 1024
"""Bytes of a body below which cutting costs as much as it saves."""
FEWEST = 16
"""Elements of an array that is cut out; shorter ones stay."""
KEYS = 256
"""Places looked at, at most: each costs a microsecond, and a body could hold millions."""
_KEY = b'"data"'
_SPACE = b" ", b"\t", b"\n", b"\r"
_MARK = secrets.token_hex(12)
"""How this process's placeholders begin: no client knows, so that none can name another input's numbers."""

KIND, STOP, COUNT, DEPTH, LEFT, EXTENTS, LEFTOVERS, PATIENCE = 0, 1, 2, 3, 4, 8, 24, 64
INTEGERS = 1
"""Words of what the native code says (`lite_runtime/kernels/jsontext.py`)."""
LEAST, MOST = -342, 308
"""Powers of five that its table holds (`lite_runtime/kernels/_decimal.py`)."""


class Cut(NamedTuple):
    """A body without its large arrays of numbers.

    header: JSON, valid exactly where the body was, with a string in the place of each array cut out. arrays: what stood
    there, by that string, an array of int64 where all its elements were written as integers, else of float64; its shape
    is the text's nesting, [n] for a flat one.
    """

    header: bytes
    arrays: Mapping[str, Array]


def prepare() -> bool:
    """Have the native code ready before requests come (compiled here, it takes seconds); whether there is any."""
    return _scanner() is not None


def cut(body: bytes | bytearray | memoryview) -> Cut | None:
    """Take the arrays of numbers out that are values of keys named "data"; None where there is nothing to gain.

    Numbers are, bit for bit, what Python's `json.loads` gives. An array stays where it is ragged or short, holds
    anything but numbers, an integer beyond int64 (beyond 2^53 among reals) or a real beyond float64, or is no JSON.
    Bodies may be anything at all: never raises.

    Nothing but such keys is looked for. In valid JSON a quote that no backslash stands before begins or ends a string,
    and behind one that ends nothing but punctuation follows: `"data"` is a string of its own wherever it stands. In
    JSON that is not valid, the fault lies before the array or stays with what is kept.
    """
    if len(body) < WORTH or (scan := _scanner()) is None:
        return None
    text = bytes(body)
    at = text.find(_KEY)
    arrays: dict[str, Array] = {}
    kept: list[bytes] = []
    done = 0
    for _ in range(KEYS):
        if at < 0 or len(text) - at < WORTH // 2:
            break
        start = _value(text, at)
        stop = at + len(_KEY)
        if start:
            array, stop = scan(text, start)
            if array is not None:
                mark = f"{_MARK}{len(arrays)}"
                arrays[mark] = array
                kept += text[done:start], b'"', mark.encode(), b'"'
                done = stop
        at = text.find(_KEY, stop)
    if not arrays:
        return None
    kept.append(text[done:])
    return Cut(b"".join(kept), arrays)


def _value(text: bytes, key: int) -> int:
    """Where the array begins whose key is found at `key`; 0 where that is no key, or its value no array."""
    if text.startswith(b"\\", key - 1):
        return 0
    at = key + len(_KEY)
    for sign in b":", b"[":
        while text.startswith(_SPACE, at):
            at += 1
        if not text.startswith(sign, at):
            return 0
        at += 1
    return at - 1


@cache
def _scanner() -> Callable[[bytes, int], tuple[Array | None, int]] | None:
    """(text, where an array begins) -> the array or None, and where reading stopped. None without native code."""
    address, word = ctypes.c_void_p, ctypes.c_int64
    try:
        if not build.available():
            return None
        numbers = build.function("jsontext", "numbers", address, word, word, address, address, address)
    except (MsedgeError, OSError):  # a compiler that fails, a cache that cannot be written: the general path is there
        return None
    powers = _powers()
    table, words, memory = powers.ctypes.data, word * (LEFTOVERS + 3 * PATIENCE), word * 0

    def scan(text: bytes, at: int, held: Array = powers) -> tuple[Array | None, int]:
        values, said = np.empty((len(text) - at) // 2), words()
        # A ctypes view of no words: its address costs a quarter of what `values.ctypes.data` does.
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
    """5^q, its highest bit moved to bit 127 and cut off there; for -27 <= q < 0, where 5^-q is a word, rounded up."""
    power: int = 5 ** abs(q)
    bits = power.bit_length()
    if q >= 0:
        return power << 128 - bits if bits <= 128 else power >> bits - 128
    return (1 << 127 + bits) // power + (q >= -27)
