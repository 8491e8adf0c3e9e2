"""A party's checkpoint. Each party has its own; a run continues from a step that both have kept.

The passive party keeps the newest two: it writes first, and the active party may stop before it has written its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from federated.errors import FederatedError
from federated.messages.packed import pack, unpack
from federated.vertical.config import Party
from lite_runtime._files import write_atomically

__all__ = ["load", "save"]

VERSION = 1
_FREE = ("state", "report")
"""What may change between a run and its continuation."""


def save(party: Party, step: int, meta: Mapping[str, Any], body: Mapping[str, Any], *, newest: int = 1) -> None:
    """Keep the state after a step, and the newest of those kept before."""
    path = party.path(party.state.checkpoint)
    earlier = sorted((number, each) for number, each in _kept(party, path).items() if number != step)
    states = {**dict(earlier[len(earlier) - newest + 1 :] if newest > 1 else []), step: (dict(meta), dict(body))}
    steps = {str(number): each for number, (each, _) in states.items()}
    words = {"version": VERSION, "config": _fingerprint(party), "steps": steps}
    write_atomically(path, pack(words, {str(number): tree for number, (_, tree) in states.items()}), FederatedError)


def load(party: Party, step: int | None = None) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The state after a step (None: the newest): its number, fields and arrays. Raises FederatedError."""
    if not party.state.checkpoint:
        raise FederatedError("state.checkpoint: expected the file to continue from, got none")
    path = party.path(party.state.checkpoint)
    found = _kept(party, path)
    if not found:
        raise FederatedError(f"cannot read checkpoint {str(path)!r}: there is none; begin a new run")
    number = max(found) if step is None else step
    if number not in found:
        raise FederatedError(f"checkpoint {str(path)!r}: expected the state after step {number}, got {sorted(found)}")
    words, body = found[number]
    return number, words, body


def _kept(party: Party, path: Path) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """The states in a file, by step. Raises FederatedError for a damaged file, or one of another run."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    words, body = unpack(data, f"checkpoint {str(path)!r}", most=len(data))
    if words.get("version") != VERSION or words.get("config") != _fingerprint(party):
        raise FederatedError(
            f"checkpoint {str(path)!r}: it belongs to a run with other settings; undo the change, or move the file"
        )
    return {int(number): (each, body.get(number, {})) for number, each in words["steps"].items()}


def _fingerprint(party: Party) -> str:
    kept = {name: section for name, section in party.source.items() if name not in _FREE}
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
