"""Image files: the machine code of one or more kernel families, which is mapped and run.

A header, then the code, each family's position-independent with all its internal references resolved. A file is mapped
as a whole. A family's code is checked against its digest when it is first used; the header has a digest too. Digests
detect damage, but do not show who wrote a file: `lite_runtime.native.trust` decides which files are opened.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from lite_runtime._blake import blake2b
from lite_runtime.errors import MsedgeError

__all__ = ["ALIGN", "HEAD", "MAGIC", "BuildError", "Image", "ImageFile", "image_file"]

MAGIC = b"MSKIMG05"
"""The first bytes of an image file."""
HEAD = struct.Struct("<8sI16s")
"""Magic, bytes of the header's text, BLAKE2b-128 of the text."""
ALIGN = 64
"""Bytes at whose multiples the code of families begins, as vectors are loaded from it."""


class BuildError(MsedgeError):
    """Kernels could not be compiled, or the stored image is unusable."""


class Image:
    """One family's machine code. `addresses`: kernel name -> address, valid as long as the image exists."""

    def __init__(self, addresses: Mapping[str, int], file: object) -> None:
        """file: holds the code in memory."""
        self.addresses, self._file = addresses, file


class ImageFile:
    """Families' machine code, mapped. Raises BuildError for a file that is not an image; `image` checks a family's
    code."""

    def __init__(self, file: BinaryIO, shown: str) -> None:
        self._shown = shown
        head = file.read(HEAD.size)
        if len(head) < HEAD.size:
            raise self._damaged(f"a header of {HEAD.size} bytes or more", f"a file of {len(head)}")
        magic, length, digest = HEAD.unpack(head)
        if magic != MAGIC:
            raise self._damaged(f"{MAGIC!r} at its start", repr(magic))
        text = file.read(length)
        if len(text) != length or blake2b(text, digest_size=16).digest() != digest:
            raise self._damaged(f"a header text of {length} bytes with the digest {digest.hex()}", "another text")
        try:
            self.identity, *rows = text.decode().split("\n")
            self.families: Mapping[str, list[str]] = {row[0]: row[1:] for row in map(str.split, rows)}
            # Private and executable, like the text section of a shared library.
            self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        except (IndexError, OSError, ValueError) as problem:
            raise self._damaged("families' rows and their code", str(problem)) from None
        self._code = memoryview(self._map)[_aligned(HEAD.size + length) :]

    def _damaged(self, expected: str, got: str) -> BuildError:
        return BuildError(f"{self._shown} is damaged: expected {expected}, got {got}; delete it and run again")

    def code(self, family: str) -> tuple[memoryview, Mapping[str, int]]:
        """A family's bytes and its kernels' offsets into them; raises BuildError if they differ from what was
        stored."""
        if family not in self.families:
            raise self._damaged(f"the family {family}", f"only {' '.join(self.families) or 'none'}")
        try:
            start, size, digest, *kernels = self.families[family]
            begin, end = int(start), int(start) + int(size)
            offsets = dict(zip(kernels[::2], map(int, kernels[1::2]), strict=True))
        except ValueError:
            row = " ".join(self.families[family])[:80]
            raise self._damaged(f"start, size, digest and kernels of {family}", repr(row)) from None
        if not 0 <= begin <= end <= len(self._code):
            raise self._damaged(f"{family} within {len(self._code)} bytes of code", f"bytes {begin} to {end}")
        code = self._code[begin:end]
        if _digest(code) != digest:
            raise self._damaged(f"code of {family} with the digest {digest}", _digest(code))
        if outside := [name for name, offset in offsets.items() if not 0 <= offset < len(code)]:
            raise self._damaged(f"kernels of {family} within its {len(code)} bytes", f"{outside[0]} outside")
        return code, offsets

    def image(self, family: str) -> Image:
        """A family's code, verified."""
        code, kernels = self.code(family)
        base = _address_of(code)
        return Image({name: base + offset for name, offset in kernels.items()}, self)


def _address_of(view: memoryview) -> int:
    """Address of a buffer, which may be read-only."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _digest(code: bytes | memoryview) -> str:
    return blake2b(code, digest_size=16).hexdigest()


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def image_file(images: Mapping[str, tuple[bytes | memoryview, Mapping[str, int]]], identity: str = "") -> bytes:
    """The bytes of an image file. families: family -> (code, kernels' offsets). identity: that of its runtime.

    Its header is text that can be read quickly: the identity, then one line per family with its name, the start, size
    and digest of its code, and each kernel's name and offset into the code. The code begins at the next multiple of
    ALIGN, and each family's at a multiple of that.
    """
    rows = [identity]
    body = bytearray()
    for family, (code, kernels) in sorted(images.items()):
        body += bytes(_aligned(len(body)) - len(body))
        offsets = " ".join(f"{name} {offset}" for name, offset in kernels.items())
        rows.append(f"{family} {len(body)} {len(code)} {_digest(code)} {offsets}")
        body += code
    header = "\n".join(rows).encode()
    head = HEAD.pack(MAGIC, len(header), blake2b(header, digest_size=16).digest()) + header
    return head.ljust(_aligned(len(head)), b"\0") + body
