"""The layout of a delta: what it contains, and reading that.

    header   magic; then as varints: size of the old file, of the new file, of the control stream; SHA-256 of both
             files, the first 16 bytes of each
    control  LZMA2 (raw): operations that make the new file from its first byte to its last, and literal bytes
    frames   entropy-coded differences of tensors, in the order of the operations

An operation is a byte and its operands. A varint has 7 bits a byte, the lowest first; a signed one is zigzag coded.
Places in the old file are relative to where the operation before stopped reading, so that most are 0.

    COPY     place, n: n bytes of the old file
    LITERAL  n, bytes: n bytes
    PACKED   place, n, level, size, stored, checksum: a zlib stream of `stored` bytes with this CRC-32; its `size` bytes
             of content follow as COPY and LITERAL, whose places are in the content of the old zlib stream at `place`,
             n bytes
    TENSOR   place, kind, rows, columns, inner, zero, base, flags; factors of rows and columns less ONE, and classes of
             columns, where flags say so: a tensor that is predicted from the old one at `place` (`elements`)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from lite_runtime.bundle.refusal import refuse
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.updates.delta.elements import CLASSES, KINDS, ONE, Layout

__all__ = ["CLASSED", "COLUMNS", "COPY", "DIGEST", "FILTERS", "LITERAL", "MAGIC", "MAX_FACTORS", "MAX_TEXT", "PACKED"]
__all__ += ["ROWS", "TENSOR", "Control", "Head", "exactly", "read_head", "read_layout"]

MAGIC = b"\x89MSDELTA1"
COPY, LITERAL, PACKED, TENSOR = range(4)
ROWS, COLUMNS, CLASSED = 1, 2, 4
DIGEST = 16
MAX_SIZE = 1 << 40
MAX_FACTORS = 1 << 20
"""Most rows, and most columns, that have factors or classes."""
MAX_FACTOR = 1 << 16
MAX_TEXT = 1 << 22
"""Most bytes of the content of a zlib stream, old or new: both are in memory."""
FILTERS = [{"id": 0x21, "dict_size": 1 << 23, "lc": 3, "lp": 0, "pb": 0}]
"""LZMA2 with a dictionary of 8 MiB, which is what a reader needs of memory."""
_READ = 1 << 16


class Head(NamedTuple):
    """The header: sizes in bytes, digests cut to DIGEST bytes, and where control and frames begin."""

    old: int
    new: int
    control: int
    old_digest: bytes
    new_digest: bytes
    start: int


def exactly(file: IO[bytes], count: int) -> bytes:
    """The next bytes of an open delta. Raises BundleError at its end."""
    raw = file.read(count)
    if len(raw) < count:
        refuse("delta", f"{count} bytes", f"{len(raw)}: the file is cut short")
    return raw


def read_head(file: IO[bytes]) -> Head:
    """The header at a file's beginning."""
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        refuse("delta", "a delta", "a file of another kind", "to make one: cloud.hub.deltas.make(old, new)")
    old, new, control = (_varint(lambda n: exactly(file, n)) for _ in range(3))
    digests = exactly(file, 2 * DIGEST)
    start = file.tell()
    size = file.seek(0, os.SEEK_END)
    if max(old, new) > MAX_SIZE or control > size - start:
        refuse("delta, header", f"files of up to {MAX_SIZE} bytes, control within {size} bytes", "more")
    return Head(old, new, control, digests[:DIGEST], digests[DIGEST:], start)


def _varint(read: Callable[[int], bytes]) -> int:
    value = 0
    for shift in range(0, 63, 7):
        byte = read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    refuse("delta", "a number of up to 63 bits", "a longer one")


class Control:
    """The control stream, decompressed as it is read, so that memory does not depend on what it would expand to."""

    def __init__(self, file: IO[bytes], head: Head) -> None:
        try:
            from lzma import FORMAT_RAW, LZMADecompressor, LZMAError
        except ImportError:
            raise BundleError("expected a Python with lzma, which deltas need; download the pieces instead") from None
        self._file, self._at, self._end = file, head.start, head.start + head.control
        self._stream: Any = LZMADecompressor(FORMAT_RAW, None, FILTERS)
        self._error: type[Exception] = LZMAError
        self._held, self._used = b"", 0

    def read(self, count: int) -> bytes:
        """The next bytes."""
        parts = []
        while count:
            if self._used == len(self._held):
                self._more()
            part = self._held[self._used : self._used + count]
            self._used += len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _more(self) -> None:
        """Get some bytes into `_held`."""
        self._held, self._used = b"", 0
        while not self._held:
            if self._stream.eof:
                refuse("delta, control", "operations that make the whole file", "fewer")
            self._held = self._decompressed()

    def _decompressed(self) -> bytes:
        """At most _READ bytes, perhaps none."""
        raw = b""
        if self._stream.needs_input:
            self._file.seek(self._at)
            raw = self._file.read(min(_READ, self._end - self._at))
            self._at += len(raw)
            if not raw:
                refuse("delta, control", "a whole LZMA2 stream", "one that is cut short")
        try:
            return bytes(self._stream.decompress(raw, _READ))
        except self._error as error:
            refuse("delta, control", "an LZMA2 stream", str(error))

    def finish(self) -> None:
        """Refuse a stream that goes on."""
        more = self._used < len(self._held)
        while not self._stream.eof and not more:
            more = bool(self._decompressed())
        if more or self._at != self._end or self._stream.unused_data:
            refuse("delta, control", "operations that make the file, and no more", "more")

    def number(self, most: int = MAX_SIZE, what: str = "a number") -> int:
        """The next varint."""
        value = _varint(self.read)
        if value > most:
            refuse("delta, control", f"{what} of at most {most}", str(value))
        return value

    def signed(self) -> int:
        """The next signed varint."""
        value = _varint(self.read)
        return value >> 1 ^ -(value & 1)


def read_layout(control: Control) -> Layout:
    """The operands of a TENSOR, after its place."""
    number = control.number(max(KINDS), "a kind")
    rows, columns, inner = (control.number(what="a dimension") for _ in range(3))
    zero, base = control.signed(), control.number(CLASSES - 1, "a class")
    flags = control.number(ROWS | COLUMNS | CLASSED, "flags")
    if not 0 < rows * columns * inner <= MAX_SIZE or abs(zero) >= 1 << 31:
        refuse("delta, tensor", f"up to {MAX_SIZE} elements", f"{rows} rows, {columns} columns, {inner} each")
    for flag, count in ((ROWS, rows), (COLUMNS | CLASSED, columns)):
        if flags & flag and count > MAX_FACTORS:
            refuse("delta, tensor", f"up to {MAX_FACTORS} factors", str(count))
    return Layout(
        KINDS[number],
        (rows, columns, inner),
        zero,
        _factors(control, rows) if flags & ROWS else None,
        _factors(control, columns) if flags & COLUMNS else None,
        base,
        _classes(control, columns) if flags & CLASSED else None,
    )


def _factors(control: Control, count: int) -> Array:
    factors = np.array([control.signed() for _ in range(count)], np.int64) + ONE
    if np.abs(factors).max() > MAX_FACTOR:
        refuse("delta, tensor", f"factors of up to {MAX_FACTOR}", str(int(np.abs(factors).max())))
    return factors


def _classes(control: Control, count: int) -> Array:
    classes = np.frombuffer(control.read(count), np.uint8).astype(np.int64)
    if classes.max() >= CLASSES:
        refuse("delta, tensor", f"classes below {CLASSES}", str(int(classes.max())))
    return classes
