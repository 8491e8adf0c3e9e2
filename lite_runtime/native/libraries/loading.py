"""A shared library of kernels that came with the runtime: what is in it, and the addresses of its kernels.

    <target>.dylib, <target>.dll   the library; it exports every kernel as FAMILY.KERNEL
    <target>.txt                   a line of `HEAD`, with the digest of the lines after it: the runtime's identity, the
                                   library's digest, and one line for each family, with its name and its kernels'

Both lie in the runtime's own folder and are trusted as its Python files are; digests (BLAKE2b-128) detect damage.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache

from lite_runtime._blake import blake2b
from lite_runtime.native.images import BuildError, Image
from lite_runtime.targets import Target

__all__ = ["Library", "description", "library"]

HEAD = "msedge kernels 1 "
"""The beginning of a description."""


def description(identity: str, content: bytes, families: Mapping[str, Sequence[str]]) -> bytes:
    """The text that describes a library with these bytes."""
    rows = [identity, _digest(content), *(" ".join((family, *names)) for family, names in sorted(families.items()))]
    text = "\n".join(rows)
    return f"{HEAD}{_digest(text.encode())}\n{text}".encode()


@cache
def library(folder: str, target: Target) -> Library | None:
    """A target's library in a folder; None if there is none. Raises BuildError if its description is damaged."""
    path = os.path.join(folder, target.name)
    try:
        with open(f"{path}.txt", "rb") as file:
            return Library(file.read(), path, target.library)
    except (FileNotFoundError, NotADirectoryError):  # the latter in an archive, from which systems load no library
        return None


class Library:
    """Families' machine code in a shared library, which is loaded when the first of them is used."""

    def __init__(self, text: bytes, path: str, suffix: str) -> None:
        """text: the description; path: the library's, without its suffix. Raises BuildError if the text is damaged."""
        self._path = f"{path}{suffix}"
        self._loaded: ctypes.CDLL | None = None
        head, _, rest = text.partition(b"\n")
        if head != f"{HEAD}{_digest(rest)}".encode():
            raise _damaged(f"{path}.txt", f"{HEAD!r} and the digest {_digest(rest)} at its start", repr(head[:60]))
        self.identity, self._digest, *rows = rest.decode().split("\n")
        self.families: Mapping[str, list[str]] = {row[0]: row[1:] for row in map(str.split, rows)}

    def image(self, family: str) -> Image:
        """A family's code. Raises BuildError for a library that is damaged, or that the system does not load."""
        if self._loaded is None:
            self._loaded = self._load()
        loaded, found = self._loaded, {}
        for name in self.families[family]:
            try:
                found[name] = ctypes.cast(loaded[f"{family}.{name}"], ctypes.c_void_p).value or 0
            except AttributeError:
                raise _damaged(self._path, f"the kernel {family}.{name}", "none of that name") from None
        return Image(found, loaded)

    def _load(self) -> ctypes.CDLL:
        try:
            with open(self._path, "rb") as file:
                digest = _digest(file.read())
            if digest != self._digest:
                raise _damaged(self._path, f"a library with the digest {self._digest}", digest)
            return ctypes.CDLL(self._path)
        except OSError as problem:
            raise BuildError(
                f"{self._path}: expected a library that {sys.platform} loads, got: {problem}; install the runtime "
                "again, or run with MSEDGE_TARGET=none"
            ) from None


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _damaged(path: str, expected: str, got: str) -> BuildError:
    return BuildError(f"{path} is damaged: expected {expected}, got {got}; install the runtime again")
