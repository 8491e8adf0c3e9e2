"""The binary layout of a bundle: the format's constants, and the records that a reader returns."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence

from lite_runtime._blake import blake2b
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple

__all__ = [
    "AGAIN",
    "ALIGN",
    "BUNDLE",
    "ENDIAN",
    "ENTRY",
    "FEATURES",
    "FORMAT",
    "HEADER",
    "INLINE",
    "INT64",
    "KNOWN",
    "MAGIC",
    "MAX_MANIFEST",
    "MAX_RATIO",
    "MAX_SECTIONS",
    "NAME_CHARACTERS",
    "NEEDS",
    "PAGE",
    "PAGE_FROM",
    "REQUIRED",
    "SESSION",
    "SIGNATURE",
    "STATE",
    "File",
    "Kind",
    "Row",
    "Section",
    "align",
    "cut",
    "digest_of",
    "identity_of",
    "may_name_section",
    "need_little_endian",
    "packed_version",
    "rows_of",
    "table_digest",
    "table_of",
    "version_text",
]

MAGIC = b"\x89MSLITE\n"
FORMAT = 2

ALIGN, PAGE = 64, 4096
ENDIAN = 0x01020304
HEADER = struct.Struct("<8sIHHI4xQ32s")
ENTRY = struct.Struct("<32sQQII8x32s")
REQUIRED = 1
NEEDS = (0, 1, 0)
"""The first msedge version that reads the files that `write` makes."""
FEATURES: frozenset[str] = frozenset({"state"})
"""Manifest features beyond the base format that this reader knows: `state` (values kept between runs)."""
KNOWN = ("manifest", "golden", "weights")
SIGNATURE = "signature"
"""The section of signatures (`bundle.signatures`). It is no part of the contents: see `identity_of`."""
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_./+-")
MAX_SECTIONS = 1024
MAX_MANIFEST = 1 << 25
MAX_RATIO = 256
"""Bytes of JSON that one byte of a compressed manifest may expand to (zlib's own limit is 1032)."""
INLINE = 64
"""Greatest size in bytes of an array stored in the manifest itself: a scale would otherwise need 64 aligned bytes and a
digest."""
ZEROS = 8
"""Bytes of zeros that initial state may have for each byte of its section: optimiser slots are twice the size of their
parameters."""
PAGE_FROM = 1 << 20
"""Size in bytes from which weights start at a page boundary, so that processes share complete pages."""
AGAIN = "the file is damaged; fetch or make it again"
INT64 = 1 << 63


class Kind(NamedTuple):
    """The kind of a container: the magic it begins with, its name in errors, how to make one."""

    magic: bytes
    name: str
    make: str


BUNDLE = Kind(MAGIC, "bundle", "to make one: msedge convert MODEL -o out.mslite")
STATE = Kind(b"\x89MSSTAT\n", "state file", "to make one: Model.save_state(path)")
SESSION = Kind(b"\x89MSSESS\n", "session", "to make one: Session.save(path)")


class Section(NamedTuple):
    """One row of the section table; `offset` and `size` in bytes, `digest` the BLAKE2b-256 in hex."""

    name: str
    offset: int
    size: int
    required: bool
    digest: str


class Row(NamedTuple):
    """A section's row of the table, without its offset: `digest` is the BLAKE2b-256 of the section."""

    name: str
    size: int
    flags: int
    needs: int
    digest: bytes


class File(NamedTuple):
    """A bundle's bytes: the digest (see `contents.Bundle`), the sections by name, the complete file."""

    digest: str
    sections: Mapping[str, Section]
    data: memoryview


def may_name_section(name: str) -> bool:
    """Whether a text is a valid section name."""
    return 1 <= len(name) <= 32 and NAME_CHARACTERS.issuperset(name)


def need_little_endian() -> None:
    """Raise BundleError on a big-endian machine, where bytes would have to be swapped."""
    if sys.byteorder != "little":
        raise BundleError("expected a little-endian machine, got a big-endian one; msedge does not run there")


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    """BLAKE2b-256."""
    return blake2b(data, digest_size=32).digest()


def align(offset: int, to: int) -> int:
    """The first multiple of `to` that is at least `offset`."""
    return -(-offset // to) * to


def packed_version(version: tuple[int, int, int]) -> int:
    """A version as one number: 12, 10 and 10 bits."""
    major, minor, patch = version
    return major << 20 | minor << 10 | patch


def version_text(packed: int) -> str:
    """The text of a packed version."""
    return f"{packed >> 20}.{packed >> 10 & 1023}.{packed & 1023}"


def cut(data: memoryview, section: Section) -> memoryview:
    """The bytes of a section."""
    return data[section.offset : section.offset + section.size]


def table_of(rows: Sequence[Row], needs: int, kind: Kind) -> tuple[bytes, list[int]]:
    """The header and the table of sections in this order, and the sections' offsets: each section is at the first place
    that its alignment allows.

    needs: the version of msedge that reads the file, packed.
    """
    table, offsets = bytearray(), []
    end = HEADER.size + ENTRY.size * len(rows)
    for name, size, *rest in rows:
        offset = align(end, PAGE if name == "weights" and size >= PAGE_FROM else ALIGN)
        table += ENTRY.pack(name.encode("ascii"), offset, size, *rest)
        offsets.append(offset)
        end = offset + size
    head = HEADER.pack(kind.magic, ENDIAN, FORMAT, len(rows), needs, end, b"")[:_SIGNED]
    return head + digest_of(head + table) + table, offsets


_SIGNED = HEADER.size - 32
"""Bytes of the header before its digest."""


def rows_of(data: memoryview) -> tuple[list[Row], int]:
    """The rows of a checked table, and the packed version that the file needs."""
    _, _, _, count, needs, _, _ = HEADER.unpack_from(data)
    found = []
    for i in range(count):
        raw, _, size, flags, version, digest = ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size)
        found.append(Row(raw.rstrip(b"\0").decode("ascii"), size, flags, version, digest))
    return found, needs


def table_digest(data: memoryview) -> str:
    """The digest in a checked file's header, in hex: of this file as it is, with its signatures and offsets."""
    return bytes(data[_SIGNED : HEADER.size]).hex()


def identity_of(data: memoryview, kind: Kind) -> str:
    """The digest of a checked file's contents, in hex: the digest that its header would have without signatures.

    So a bundle has the same digest before and after it is signed, and whoever signed it.
    """
    rows, needs = rows_of(data)
    contents = [row for row in rows if row.name != SIGNATURE]
    if len(contents) == len(rows):
        return table_digest(data)
    return table_digest(memoryview(table_of(contents, needs, kind)[0]))
