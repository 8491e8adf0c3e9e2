"""What stands where in a bundle: numbers of the format, and what a reader hands out."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping

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
    "STATE",
    "File",
    "Kind",
    "Section",
    "align",
    "cut",
    "digest_of",
    "may_name_section",
    "need_little_endian",
    "packed_version",
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
"""The first msedge that reads what `write` makes."""
FEATURES: frozenset[str] = frozenset({"state"})
"""Manifest features beyond the format's own that this reader knows: `state` (what signatures keep between runs)."""
KNOWN = ("manifest", "golden", "weights")
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_./+-")
MAX_SECTIONS = 1024
MAX_MANIFEST = 1 << 25
MAX_RATIO = 256
"""Bytes of JSON that one byte of a compressed manifest may unfold to (zlib's own limit is 1032)."""
INLINE = 64
"""Bytes up to which an array stands in the manifest itself: a scale would else take 64 aligned bytes and a digest."""
ZEROS = 8
"""Bytes of zeros that initial state may have for each byte of its section: slots of optimisers are twice what they
belong to."""
PAGE_FROM = 1 << 20
"""Bytes of weights from which they begin at a page's start, so that processes share whole pages."""
AGAIN = "the file is damaged; fetch or make it again"
INT64 = 1 << 63


class Kind(NamedTuple):
    """What a container holds: the magic it begins with, how errors call it, how to make one."""

    magic: bytes
    name: str
    make: str


BUNDLE = Kind(MAGIC, "bundle", "to make one: msedge convert MODEL -o out.mslite")
STATE = Kind(b"\x89MSSTAT\n", "state file", "to make one: Model.save_state(path)")


class Section(NamedTuple):
    """One row of the section table; `offset` and `size` in bytes, `digest` the BLAKE2b-256 in hex."""

    name: str
    offset: int
    size: int
    required: bool
    digest: str


class File(NamedTuple):
    """A bundle's bytes, whole: its digest (see `contents.Bundle`), its sections by name, all of it."""

    digest: str
    sections: Mapping[str, Section]
    data: memoryview


def may_name_section(name: str) -> bool:
    """Whether a text may name a section."""
    return 1 <= len(name) <= 32 and NAME_CHARACTERS.issuperset(name)


def need_little_endian() -> None:
    """Raise BundleError where bytes would have to be swapped."""
    if sys.byteorder != "little":
        raise BundleError("expected a little-endian machine, got a big-endian one; msedge does not run there")


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    """BLAKE2b-256."""
    return blake2b(data, digest_size=32).digest()


def align(offset: int, to: int) -> int:
    """The first multiple of `to` from `offset` on."""
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
