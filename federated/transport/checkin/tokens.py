"""Who may check in: a file with a line for each device, its name and the SHA-256 of its token.

    device-00 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08   # what follows is a comment

The tokens themselves are on the devices alone. The file is read again when it changes: a device whose line was removed
is refused from then on.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock

from federated.errors import FederatedError
from lite_runtime._files import write_atomically

__all__ = ["Tokens", "add"]

_LINE = re.compile(r"(\S+)\s+([0-9a-f]{64})(?:\s+#.*)?")
_NAME = re.compile(r"[\w.@:-]{1,200}")
BYTES = 24


class Tokens:
    """The file. Raises FederatedError, naming the line, for another one; a later change to one that cannot be read
    refuses all devices until it is corrected."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = Lock()
        self._stamp, self._names = _stamp(self._path), _read(self._path)

    def device(self, token: str) -> str | None:
        """The name of the device with this token."""
        with self._lock:
            try:
                stamp = _stamp(self._path)
                if stamp != self._stamp:
                    self._names, self._stamp = _read(self._path), stamp
            except FederatedError:
                return None
            # What the time of a look-up could reveal is the digest, from which no token follows.
            return self._names.get(sha256(token.encode("utf-8", "replace")).hexdigest())


def add(path: str | os.PathLike[str], device: str) -> str:
    """Let a device check in: add it to the file, which is made if there is none, and return its new token. Raises
    FederatedError for a name that is there already, or that is not of letters, digits and . @ : - _"""
    file = Path(path)
    if not _NAME.fullmatch(device):
        raise FederatedError(f"expected a device's name of letters, digits and .@:-_, got {device!r}")
    known = _read(file) if file.exists() else {}
    if device in known.values():
        raise FederatedError(f"{file}: {device} is there already; remove its line to give it a new token")
    token = secrets.token_urlsafe(BYTES)
    before = file.read_text("utf-8").rstrip("\n") if file.exists() else ""
    lines = [*before.splitlines(), f"{device} {sha256(token.encode()).hexdigest()}", ""]
    write_atomically(file, "\n".join(lines).encode(), FederatedError, mode=0o600)
    return token


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as problem:
        raise FederatedError(f"cannot read {str(path)!r}: {problem.strerror}; make it with --add-device") from problem
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> Mapping[str, str]:
    """Names of devices by their tokens' digests."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise FederatedError(f"cannot read {str(path)!r}: {problem}; make it with --add-device") from problem
    found: dict[str, str] = {}
    for at, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not _NAME.fullmatch(match[1]):
            raise FederatedError(f"{path}:{at}: expected a device's name and 64 hexadecimal digits, got {line[:60]!r}")
        if match[1] in found.values() or match[2] in found:
            raise FederatedError(f"{path}:{at}: {match[1]}, or its token, a second time; remove one of the lines")
        found[match[2]] = match[1]
    return found
