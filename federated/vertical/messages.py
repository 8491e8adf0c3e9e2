"""The messages between the two parties: what the active one asks, and how it is checked.

    hello     -> hello     the run, how it is trained, whether it continues
    match     -> match     hidden identifiers, for those in common (`federated.vertical.matching`)
    matched   -> matched   the passive party's own points, for it to learn them too
    step      -> values    rows of a step, and the gradient of the step before: the results of these rows
    values    -> values    rows to test with: their results, nothing is learned
    keep      -> kept      the gradient of the last step; then a checkpoint of this step is written
    end       -> ended     the gradient of the last step; then this party's part of the model is written

Messages are numbered. A repeated message gets the same answer and has no other effect, so that a connection that is
lost may be made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from federated.errors import FederatedError
from federated.messages import fields
from federated.messages.packed import pack, unpack
from federated.tree import Array

__all__ = ["VERSION", "Reply", "answer", "ask", "floats", "read", "rows_of"]

VERSION = 1
Reply: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""Fields and arrays."""

_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "hello": {"epochs": (int,), "batch": (int,), "seed": (int,), "test": (float,), "resume": (int,)},
    "match": {},
    "matched": {"size": (int,)},
    "step": {"step": (int,)},
    "values": {},
    "keep": {"step": (int,)},
    "end": {},
}


def ask(kind: str, run: str, number: int, words: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    """A message of the active party."""
    return pack({"version": VERSION, "kind": kind, "run": run, "number": number, **words}, body)


def read(message: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """At the passive party: fields and arrays, the fields checked. Raises FederatedError."""
    words, body = unpack(message)
    kind = str(words.get("kind"))
    if words.get("version") != VERSION or kind not in _FIELDS:
        raise FederatedError(
            f"vertical: expected one of {', '.join(_FIELDS)} in messages of version {VERSION}, got {kind[:40]!r} in "
            f"version {str(words.get('version'))[:20]}; both parties need the same msedge"
        )
    fields.check(kind, words, {"run": (str,), "number": (int,), **_FIELDS[kind]})
    return words, body


def answer(reply: bytes, kind: str, run: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """At the active party: the answer to a message. Raises FederatedError for a refusal, or another answer."""
    words, body = unpack(reply)
    if words.get("kind") == "refusal":
        why = "".join(letter if letter.isprintable() else "?" for letter in str(words.get("why"))[:500])
        raise FederatedError(f"the passive party refuses: {why}")
    wanted = {"version": VERSION, "kind": kind, "run": run, "number": number}
    if got := {key: words.get(key) for key, value in wanted.items() if words.get(key) != value}:
        raise FederatedError(f"the passive party: expected {wanted}, got {got!r:.200}")
    return words, body


def rows_of(body: Mapping[str, Any], common: int) -> Array:
    """Numbers of common rows, each once (int64 [n], at least one). Raises FederatedError."""
    rows = body.get("rows")
    if not (isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1 and 0 < len(rows) <= common):
        raise FederatedError(f"rows: expected numbers int64 of up to {common} rows")
    if rows.min() < 0 or rows.max() >= common or len(np.unique(rows)) != len(rows):
        raise FederatedError(f"rows: expected each number from 0 to {common - 1} at most once")
    return rows


def floats(body: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Array:
    """A float32 array of this shape, all of it finite. Raises FederatedError."""
    found = body.get(name)
    if not (isinstance(found, np.ndarray) and found.dtype == np.float32 and found.shape == shape):
        got = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else "none"
        raise FederatedError(f"{name}: expected float32 {list(shape)}, got {got}")
    if not np.isfinite(found).all():
        raise FederatedError(f"{name}: expected finite numbers; the model diverged: lower learning.rate")
    return found
