"""Trees of arrays and facts about them as bytes: what devices and servers keep between rounds.

    magic (8) · length of the head (8, little-endian) · head (JSON in UTF-8) · arrays, each at a multiple of 64 bytes
    · BLAKE2b-256 of everything before it (32)

The head is {"facts": …, "tree": {name: [dtype, shape, offset] or a further tree}}; offsets count from the first
array's place. Reading is pure and copies nothing: arrays are read-only views. Whatever the bytes are, `unseal` either
gives back what was sealed or raises FederatedError.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.tree import Tree
from lite_runtime._files import write_atomically

__all__ = ["read_sealed", "seal", "unseal", "write_sealed"]

MAGIC = b"\x89MSTREE\n"
ALIGN, DIGEST, DEPTH = 64, 32, 16
DTYPES = frozenset("bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split())


def seal(tree: Tree, facts: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a tree of arrays and of JSON facts. Equal arguments give equal bytes."""
    parts: list[bytes] = []
    described = _describe(tree, parts, [0])
    head = json.dumps({"facts": facts or {}, "tree": described}, separators=(",", ":"), allow_nan=False).encode()
    start = len(MAGIC) + 8 + len(head)
    body = b"".join([MAGIC, len(head).to_bytes(8, "little"), head, bytes(-start % ALIGN), *parts])
    return body + _digest(body)


def _describe(tree: Tree, parts: list[bytes], size: list[int]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            described[name] = _describe(leaf, parts, size)
            continue
        array = np.asarray(leaf)
        if array.dtype.name not in DTYPES:
            raise FederatedError(f"{name!r}: expected an array of numbers, got {array.dtype}")
        raw = array.tobytes()
        described[name] = [array.dtype.name, list(array.shape), size[0]]
        parts += [raw, bytes(-len(raw) % ALIGN)]
        size[0] += len(raw) + -len(raw) % ALIGN
    return described


def unseal(data: bytes | memoryview, where: str = "sealed tree") -> tuple[dict[str, Any], dict[str, Any]]:
    """The tree and the facts. `where` opens the error's text."""
    view = memoryview(data).toreadonly().cast("B")
    if bytes(view[: len(MAGIC)]) != MAGIC or len(view) < len(MAGIC) + 8 + DIGEST:
        raise FederatedError(f"{where}: expected a file of msedge's federated state, got {_got(view)}")
    body = view[:-DIGEST]
    if _digest(body) != view[-DIGEST:]:
        raise FederatedError(f"{where}: its digest does not fit its contents; it is damaged or cut short: remove it")
    begin = len(MAGIC) + 8
    end = begin + int.from_bytes(view[len(MAGIC) : begin], "little")
    if end > len(body):
        raise FederatedError(f"{where}: its head leaves the file; remove it")
    try:
        head = json.loads(bytes(view[begin:end]))
        tree, facts = head["tree"], head["facts"]
        if not isinstance(facts, dict):
            raise TypeError("facts are no object")
        return _views(tree, body[end + -end % ALIGN :], DEPTH), facts
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError) as error:
        raise FederatedError(f"{where}: its head is malformed ({error}); remove it") from None


def _views(described: Any, body: memoryview, depth: int) -> dict[str, Any]:
    if not isinstance(described, dict) or not depth:
        raise ValueError("a tree that is no object, or too deep")
    tree: dict[str, Any] = {}
    for name, entry in described.items():
        if isinstance(entry, dict):
            tree[name] = _views(entry, body, depth - 1)
            continue
        dtype, shape, offset = entry
        sizes = tuple(shape)
        if dtype not in DTYPES or not all(type(n) is int and n >= 0 for n in (*sizes, offset)):
            raise ValueError(f"{name!r} is {dtype}{shape} at {offset}")
        count = prod(sizes)
        if offset % ALIGN or offset + count * np.dtype(dtype).itemsize > len(body):
            raise ValueError(f"{name!r} leaves the file")
        tree[name] = np.frombuffer(body, dtype, count, offset if count else 0).reshape(sizes)
    return tree


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def _got(view: memoryview) -> str:
    return f"{len(view)} bytes that begin with {bytes(view[:8])!r}"


def write_sealed(path: str | os.PathLike[str], tree: Tree, facts: Mapping[str, Any] | None = None) -> None:
    """Seal into a file, atomically. Raises FederatedError where it cannot be written."""
    write_atomically(path, seal(tree, facts), FederatedError)


def read_sealed(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Tree and facts of a file; None where there is none. Raises FederatedError for a damaged one."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FederatedError(f"cannot read {os.fspath(path)!r}: {error.strerror}; check its permissions") from error
    return unseal(data, repr(os.fspath(path)))
