"""A JSON object and a tree of arrays as one byte string, the format of messages and checkpoints.

    magic "MSF1" | head's length, uint32 | SHA-256 of all that follows | 8 zeros | head | arrays

The head is JSON, {"meta": {...}, "arrays": [[path, dtype, shape], ...]}, padded with spaces so that arrays begin at
multiples of 16 bytes; arrays follow in the order of the head, each padded to 16 bytes, little-endian and in C order.
Reading copies nothing: arrays are read-only views of the bytes, which are validated before a view is created.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from federated.errors import FederatedError
from federated.tree import Tree

__all__ = ["dtype_name", "pack", "unpack"]

MAGIC = b"MSF1"
ALIGN = 16
FRONT = struct.Struct("<4sI32s8x")  # 48 bytes, a multiple of ALIGN
MOST_HEAD = 1 << 22
"""The most bytes of a message's head, enough for some 50,000 arrays."""
MOST_CLAIMED = 1 << 48
"""The most elements of a shape, ignoring sizes of 0: NumPy creates no larger array, not even an empty one."""
DEEPEST = 16
DTYPES = {
    name: np.dtype(np.dtype(name).newbyteorder("<").str)  # NumPy's singleton if possible: 23 µs less in a first run
    for name in "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
}

Path = tuple[str, ...]


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which NumPy computes at every access: some µs per array."""
    return dtype.name


def pack(meta: Mapping[str, Any], tree: Tree) -> bytes:
    """One byte string; equal arguments give equal bytes. Raises ValueError for NaN in `meta`, or another dtype."""
    arrays = [(path, np.asarray(leaf)) for path, leaf in _leaves(tree, ())]
    for path, array in arrays:
        if dtype_name(array.dtype) not in DTYPES:
            raise ValueError(f"{'/'.join(path)}: expected one of {', '.join(DTYPES)}, got {array.dtype}")
    rows = [(path, dtype_name(array.dtype), array.shape) for path, array in arrays]
    head = _ENCODER.encode({"meta": meta, "arrays": rows}).encode()
    parts = [head + b" " * (-len(head) % ALIGN)]
    for _, array in arrays:
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        parts += [data, bytes(-len(data) % ALIGN)]
    body = b"".join(parts)
    return FRONT.pack(MAGIC, len(parts[0]), hashlib.sha256(body).digest()) + body


def unpack(data: bytes, what: str = "message", most: int = MOST_HEAD) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object and the tree. Raises FederatedError, naming `what`, for anything that `pack` does not write, and for a
    head of more than `most` bytes."""
    if len(data) < FRONT.size or data[:4] != MAGIC:
        _refuse(what, f"{len(data)} bytes that do not begin with {MAGIC!r}")
    _, length, digest = FRONT.unpack_from(data)
    body = memoryview(data)[FRONT.size :]
    if length > min(most, len(body)):
        _refuse(what, f"a head of {length} bytes in {len(data)}")
    if hashlib.sha256(body).digest() != digest:
        _refuse(what, "bytes that do not match their digest: they are damaged or cut short")
    meta, rows = _head(bytes(body[:length]), what)
    tree: dict[str, Any] = {}
    at = FRONT.size + length
    for row in rows:
        path, dtype, shape = _row(row, what)
        count = math.prod(shape)
        size = count * dtype.itemsize
        if at + size > len(data):
            _refuse(what, f"array {'/'.join(path)} {list(shape)} that reaches past the end")
        _place(tree, path, np.frombuffer(data, dtype, count, at).reshape(shape), what)
        at += size + -size % ALIGN
    if at != len(data):
        _refuse(what, f"{len(data)} bytes where the arrays take {at}")
    return meta, tree


def _leaves(tree: Tree, prefix: Path) -> Iterator[tuple[Path, Any]]:
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            yield from _leaves(leaf, (*prefix, name))
        else:
            yield (*prefix, name), leaf


def _head(text: bytes, what: str) -> tuple[dict[str, Any], list[Any]]:
    try:
        head = _DECODER.decode(text.decode())
    except (ValueError, RecursionError) as problem:
        _refuse(what, f"a head that is not JSON ({problem})")
    match head:
        case {"meta": dict(meta), "arrays": list(rows)}:
            return meta, rows
    _refuse(what, 'a head without "meta" and "arrays"')


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""Made once: `json.dumps` and `json.loads` make new ones in every call."""


def _row(row: Any, what: str) -> tuple[Path, np.dtype, tuple[int, ...]]:
    match row:
        case [list(path), str(name), list(shape)] if (
            name in DTYPES
            and 0 < len(path) <= DEEPEST
            and all(isinstance(part, str) for part in path)
            and len(shape) <= 8
            and all(type(side) is int and side >= 0 for side in shape)
            and math.prod(side or 1 for side in shape) <= MOST_CLAIMED
        ):
            return tuple(path), DTYPES[name], tuple(shape)
    _refuse(what, f"an array described as {str(row)[:80]}")


def _place(tree: dict[str, Any], path: Path, array: np.ndarray, what: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            _refuse(what, f"{'/'.join(path)} below what is an array")
    if path[-1] in tree:
        _refuse(what, f"{'/'.join(path)} twice")
    tree[path[-1]] = array


def _refuse(what: str, got: str) -> NoReturn:
    raise FederatedError(f"{what}: expected this msedge's format, got {got}; both ends need the same one")
