"""A device's key to sign with in secure sums, kept in its state; and the keys that its operator pinned.

    python -m federated.client.identity STATE DEVICE      prints the public key, for files of pinned keys
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from federated.client.state import StateStore
from federated.errors import FederatedError
from federated.privacy.secure.identity import Identity, who

__all__ = ["identity", "pins"]

_OWN = b"own"


def identity(store: StateStore, device: str, pinned: frozenset[bytes] | None = None) -> Identity:
    """The device's identity; its key is made at the first call and then kept."""
    secret = store.meet(device, {_OWN: os.urandom(32)})[_OWN]
    return Identity(secret, who(device), partial(store.meet, device), pinned)


def pins(path: str | os.PathLike[str]) -> frozenset[bytes]:
    """The public keys in a file: a line of 64 hexadecimal digits each; what follows them, and lines that begin with
    `#`, are comments. Raises FederatedError, naming the line."""
    shown = os.fspath(path)
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise FederatedError(f"--node-config: cannot read peers={shown!r}: {problem}") from problem
    found = set()
    for at, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            key = bytes.fromhex(words[0])
        except ValueError:
            key = b""
        if len(key) != 32:
            raise FederatedError(f"{shown}:{at}: expected a public key of 64 hexadecimal digits, got {line[:80]!r}")
        found.add(key)
    if not found:
        raise FederatedError(f"{shown}: expected public keys, got none")
    return frozenset(found)


def main(words: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if len(words) != 2:
        print("usage: python -m federated.client.identity STATE DEVICE", file=sys.stderr)
        return 2
    store = StateStore(words[0])
    try:
        print(identity(store, words[1]).public.hex(), words[1])
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
