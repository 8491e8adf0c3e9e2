"""Opens a container (a bundle or a state file) from a path or from memory, and checks its table and digests.

`reading` interprets the contents.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from threading import Thread

import numpy as np

from lite_runtime._mapping import mapped
from lite_runtime.bundle.layout import (
    ALIGN,
    BUNDLE,
    ENDIAN,
    ENTRY,
    FORMAT,
    HEADER,
    KNOWN,
    MAX_SECTIONS,
    PAGE,
    REQUIRED,
    File,
    Kind,
    Section,
    cut,
    digest_of,
    identity_of,
    may_name_section,
    need_little_endian,
    version_text,
)
from lite_runtime.bundle.refusal import named, refuse
from lite_runtime.errors import BundleError

__all__ = ["Source", "opened"]

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, or the bytes themselves in any object with the buffer protocol (including `mmap.mmap`)."""


_TOO_LARGE = (errno.EFBIG, errno.ENOMEM)
"""Errors of files that fit into no memory, or not beside what is there: 2 or 3 GiB on 32-bit systems."""


def opened(source: Source, kind: Kind = BUNDLE) -> File:
    """A container's sections from a path, which is mapped, or from memory, which is not copied; all digests are
    checked.

    Raises BundleError if header, section table or a section's contents are damaged.
    """
    need_little_endian()
    if isinstance(source, str | os.PathLike):
        made: File = named(repr(os.fspath(source)), _opened, _map(source, kind), kind)
        return made
    return _opened(_view(source), kind)


def _opened(data: memoryview, kind: Kind) -> File:
    digest, sections = _read_table(data, kind)
    wrong = _changed(data, list(sections.values()))
    if wrong is not None:
        refuse(f"section {wrong.name!r}", f"BLAKE2b-256 {wrong.digest[:16]}…", "other contents")
    return File(digest, sections, data)


_THREADS = 4
_ALONE = 4 << 20
"""Bytes that one thread hashes in the time that others take to start: a few milliseconds."""


def _changed(data: memoryview, sections: Sequence[Section]) -> Section | None:
    """A section whose bytes do not have its digest. Large files of several sections are hashed by several threads:
    hashing releases the interpreter's lock."""
    wrong: list[Section] = []

    def check(own: Sequence[Section]) -> None:
        wrong.extend(s for s in own if digest_of(cut(data, s)) != bytes.fromhex(s.digest))

    count = min(len(sections), os.cpu_count() or 1, _THREADS) if len(data) > _ALONE else 1
    largest_first = sorted(sections, key=lambda section: -section.size)
    others = [Thread(target=check, args=(largest_first[i::count],)) for i in range(1, count)]
    for thread in others:
        thread.start()
    check(largest_first[::count])
    for thread in others:
        thread.join()
    return min(wrong, key=lambda section: section.offset, default=None)


def _map(path: str | os.PathLike[str], kind: Kind) -> memoryview:
    """The file as read-only memory; it must not be truncated while in use (`write` replaces files, never truncates)."""
    shown = os.fspath(path)
    try:
        data = mapped(path)
    except FileNotFoundError:
        fix = f"check the path, or {kind.make}"
        raise BundleError(f"{shown!r}: expected a file, got no file of that name; {fix}") from None
    except (OSError, ValueError) as error:
        reason, number = getattr(error, "strerror", None) or error, getattr(error, "errno", None)
        fix = "use a 64-bit system" if number in _TOO_LARGE else "check the path and its permissions"
        raise BundleError(f"cannot read {shown!r}: {reason}; {fix}") from error
    if data is None:
        raise BundleError(f"{shown!r}: expected a file, got a folder or device; give the path of a file")
    if not data:
        raise BundleError(f"{shown!r}: expected a {kind.name}, got an empty file; {kind.make}")
    return data


def _view(source: bytes | bytearray | memoryview) -> memoryview:
    try:
        view = memoryview(source).toreadonly().cast("B")
    except (TypeError, ValueError) as error:
        raise BundleError(
            f"expected a path, bytes, a contiguous memoryview or mmap, got {type(source).__name__}: {error}"
        ) from None
    if len(view) and np.frombuffer(view, np.uint8).__array_interface__["data"][0] % 16:
        return memoryview(bytes(view))
    return view


def _read_table(data: memoryview, kind: Kind) -> tuple[str, dict[str, Section]]:
    """The file's digest and its sections; every extent is checked against the file's size."""
    head = bytes(data[: HEADER.size])
    if not head.startswith(kind.magic):
        if kind.magic.startswith(head):
            refuse("header", f"{HEADER.size} bytes", f"{len(head)}: the file is cut short")
        letters = kind.magic[1:-1]
        got = f"{letters.decode()} with its line ends changed" if letters in head[:10] else repr(head[:8])
        refuse("header", f"{kind.magic!r}", f"{got}: not a {kind.name}", kind.make)
    if len(head) < HEADER.size:
        refuse("header", f"{HEADER.size} bytes", f"{len(head)}: the file is cut short")
    _, endian, version, count, needs, size, digest = HEADER.unpack(head)
    if endian != ENDIAN:
        swapped = endian == int.from_bytes(ENDIAN.to_bytes(4, "little"), "big")
        got = "big-endian: made by something that is not msedge" if swapped else f"byte-order mark {endian:#010x}"
        refuse("header", "a little-endian file", got)
    if version != FORMAT:
        fix = f"install msedge {version_text(needs)} or newer" if version > FORMAT else "convert the model again"
        refuse("header", f"format version {FORMAT}", str(version), fix)
    if size != len(data):
        what = "the file is cut short" if size > len(data) else "bytes follow the bundle's end"
        refuse("header", f"{size} bytes in the file", f"{len(data)}: {what}")
    if not 1 <= count <= MAX_SECTIONS or HEADER.size + count * ENTRY.size > size:
        refuse("header", f"1 to {MAX_SECTIONS} sections that fit the file", str(count))
    end = HEADER.size + count * ENTRY.size
    if digest_of(head[:32] + data[HEADER.size : end]) != digest:
        refuse("header and section table", f"BLAKE2b-256 {digest.hex()[:16]}…", "other contents")
    sections: dict[str, Section] = {}
    for i in range(count):
        section, end = _read_entry(data, i, end)
        if section.name in sections:
            refuse(f"section {section.name!r}", "one section of that name", "two")
        sections[section.name] = section
    if end != size:
        refuse("section table", f"the last section to end at byte {size}", f"{end}: bytes follow it")
    return identity_of(data, kind), sections


def _read_entry(data: memoryview, i: int, end: int) -> tuple[Section, int]:
    """Row `i` of the section table, and the end of its section; the section before it ended at `end`."""
    raw, offset, size, flags, needs, digest = ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size)
    name = raw.rstrip(b"\0").decode("ascii", "replace")
    where = f"section {name!r}"
    if not may_name_section(name):
        refuse(f"section table, row {i}", "a name of 1 to 32 of a-z 0-9 _ . / + -", repr(name))
    if flags & ~REQUIRED or (flags & REQUIRED and name not in KNOWN):
        refuse(
            where,
            "a section that this version can read",
            "a required one that it does not know",
            f"install msedge {version_text(needs)} or newer",
        )
    if offset % ALIGN:
        refuse(where, f"an offset that is a multiple of {ALIGN}", str(offset))
    if offset < end:
        refuse(where, f"an offset of at least {end}, where the section before it ends", f"{offset}: they overlap")
    if offset > len(data) or size > len(data) - offset:
        refuse(where, f"an extent within the file's {len(data)} bytes", f"{size} bytes at {offset}")
    if offset - end >= PAGE or bytes(data[end:offset]).strip(b"\0"):
        refuse(where, f"fewer than {PAGE} bytes before it, all zero", f"{offset - end} bytes from {end}")
    return Section(name, offset, size, bool(flags & REQUIRED), digest.hex()), offset + size
