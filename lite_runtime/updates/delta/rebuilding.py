"""Makes the new file of the old one and a delta: streaming, in bounded memory, and never a file that is wrong."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO

from lite_runtime._files import write_atomically
from lite_runtime.bundle.refusal import refuse
from lite_runtime.errors import BundleError
from lite_runtime.updates.delta.coding import Decoder, Model
from lite_runtime.updates.delta.elements import Kind, decoded, integers, model, predicted, stored
from lite_runtime.updates.delta.layout import (
    COPY,
    DIGEST,
    LITERAL,
    MAX_TEXT,
    PACKED,
    TENSOR,
    Control,
    Head,
    exactly,
    read_head,
    read_layout,
)

__all__ = ["CHUNK", "rebuild"]

CHUNK = 1 << 16
"""Bytes that are copied, or of a tensor that are decoded, at once."""
MAX_OPERATIONS = 1 << 20
"""Most operations: a hostile delta must not keep a device busy with parts of one byte."""

STEPS = 1 << 17
"""Most steps of the entropy coder for each 64 KiB of a delta, and twice as many at first: eight times what
`cloud.hub.deltas` takes at most. A step takes some 30 microseconds."""
MAX_PACKED = 16
"""Most zlib streams: a byte of a delta can make megabytes to compress of one."""

Path = str | os.PathLike[str]


def rebuild(old: Path, delta: Path | bytes, new: Path, *, size: int, sha256: str) -> None:
    """Write the new file. It is replaced atomically, and only by bytes of this size and this SHA-256 (in hex), which a
    signed document says.

    Memory stays below 64 MB whatever the files' sizes. A process that is killed leaves nothing but a temporary file,
    which the next that writes to the folder removes (`lite_runtime._files`); rebuilding starts again from the
    beginning. Raises BundleError for a delta that is damaged or hostile, for another old file than that which the delta
    was made from, and for files that cannot be read or written.
    """
    with ExitStack() as stack:
        patch = stack.enter_context(io.BytesIO(delta) if isinstance(delta, bytes) else _opened(delta))
        base = stack.enter_context(_opened(old))
        head = read_head(patch)
        if head.new != size or not sha256.startswith(head.new_digest.hex()):
            refuse("delta", f"a delta to {sha256[:16]}… of {size} bytes", f"one to {head.new_digest.hex()[:16]}…")
        _check_old(base, head, os.fspath(old))
        write_atomically(new, _whole(base, patch, head, sha256), BundleError)


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"cannot read {os.fspath(path)!r}: {reason}; check the path and its permissions") from error


def _check_old(base: IO[bytes], head: Head, path: str) -> None:
    """The old file is that which the delta was made from."""
    found = base.seek(0, os.SEEK_END)
    if found == head.old:
        digest = hashlib.sha256()
        for part in _range(base, 0, head.old):
            digest.update(part)
        if digest.digest()[:DIGEST] == head.old_digest:
            return
    expected = f"the file that the delta was made from, {head.old_digest.hex()[:16]}… of {head.old} bytes"
    refuse(repr(path), expected, f"another of {found} bytes", "download the pieces instead")


def _whole(base: IO[bytes], patch: IO[bytes], head: Head, sha256: str) -> Iterator[bytes]:
    """The new file's bytes, checked before the last of them is taken for good."""
    digest = hashlib.sha256()
    for part in _Operations(base, patch, head).parts():
        digest.update(part)
        yield part
    if digest.hexdigest() != sha256:
        refuse("delta", f"a result with SHA-256 {sha256[:16]}…", f"one with {digest.hexdigest()[:16]}…")


def _range(file: IO[bytes], at: int, count: int) -> Iterator[bytes]:
    """Bytes of an open file, in parts."""
    while count:
        try:
            file.seek(at)
            part = file.read(min(count, CHUNK))
        except OSError as error:
            raise BundleError(f"cannot read the old file: {error.strerror or error}; check the disk") from error
        if len(part) < min(count, CHUNK):
            refuse("old file", f"{count} more bytes", f"{len(part)}: it was cut short")
        at, count = at + len(part), count - len(part)
        yield part


class _Operations:
    """The operations of one delta, as they are carried out."""

    def __init__(self, base: IO[bytes], patch: IO[bytes], head: Head) -> None:
        self._base, self._patch, self._head = base, patch, head
        self._control = Control(patch, head)
        self._frames = head.start + head.control
        size = patch.seek(0, os.SEEK_END)
        self._decoder = Decoder(self._frame, STEPS * (2 + (size >> 16)) + (head.new >> 9))
        self._models: dict[Kind, Model] = {}
        self._left = head.new
        self._place = 0
        self._count = self._streams = 0

    def parts(self) -> Iterator[bytes]:
        """The new file."""
        while self._left:
            operation = self._operation(TENSOR)
            if operation == PACKED:
                yield self._packed()
            elif operation == TENSOR:
                yield from self._tensor()
            elif operation == LITERAL:
                for count in _cut(self._size()):
                    yield self._control.read(count)
            else:
                self._place += self._control.signed()
                count = self._size()
                yield from _range(self._base, self._within(self._head.old, count), count)
                self._place += count
        self._control.finish()
        self._patch.seek(0, os.SEEK_END)
        if self._patch.tell() != self._frames:
            refuse("delta", f"{self._frames} bytes", f"{self._patch.tell()}: bytes follow its end")

    def _operation(self, most: int) -> int:
        self._count += 1
        if self._count > MAX_OPERATIONS:
            refuse("delta, control", f"at most {MAX_OPERATIONS} operations", "more")
        return self._control.number(most, "an operation")

    def _size(self) -> int:
        """The next operand, a number of bytes that the new file still lacks."""
        count = self._some(self._left)
        self._left -= count
        return count

    def _some(self, most: int) -> int:
        """The next operand, a number of bytes."""
        count = self._control.number(most, "a number of bytes")
        if not count:
            refuse("delta, control", "at least one byte", "none")
        return count

    def _within(self, size: int, count: int) -> int:
        """The place, from which `count` bytes are within `size`."""
        if not 0 <= self._place <= size - count:
            refuse("delta, control", f"a place within {size} bytes", f"{count} bytes at {self._place}")
        return self._place

    # -- zlib streams --------------------------------------------------------------------------------------------------

    def _packed(self) -> bytes:
        self._streams += 1
        if self._streams > MAX_PACKED:
            refuse("delta, control", f"at most {MAX_PACKED} compressed sections", "more")
        self._place += self._control.signed()
        count = self._control.number(MAX_TEXT, "a compressed size")
        level = self._control.number(9, "a level")
        size = self._control.number(MAX_TEXT, "a size")
        end = self._size(), self._control.read(4)
        raw = b"".join(_range(self._base, self._within(self._head.old, count), count))
        after = self._place + count
        held = _inflated(raw)
        made = bytearray()
        self._place = 0
        while len(made) < size:
            operation, most = self._operation(LITERAL), size - len(made)
            if operation == COPY:
                self._place += self._control.signed()
            length = self._some(most)
            if operation == LITERAL:
                made += self._control.read(length)
            else:
                start = self._within(len(held), length)
                made += held[start : start + length]
                self._place += length
        self._place = after
        packed = zlib.compress(made, level)
        if (len(packed), zlib.crc32(packed).to_bytes(4, "little")) != end:
            fix = "download the pieces instead: this machine's zlib compresses differently"
            refuse("delta, compressed section", f"{end[0]} bytes", f"{len(packed)} bytes, or other content", fix)
        return packed

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _tensor(self) -> Iterator[bytes]:
        self._place += self._control.signed()
        layout = read_layout(self._control)
        rows, columns, inner = layout.shape
        bits = rows * columns * inner * layout.kind.bits
        total = bits >> 3
        if bits & 7 or total > self._left:
            refuse("delta, tensor", f"at most {self._left} whole bytes", f"{bits} bits")
        self._left -= total
        start = self._within(self._head.old, total)
        self._place += total
        if layout.kind not in self._models:
            self._models[layout.kind] = model(layout.kind)
        first = 0
        for raw in _range(self._base, start, total):
            held = integers(raw, layout.kind)
            predictions, contexts = predicted(held, layout, first)
            first += len(held)
            self._decoder.begin()
            differences = decoded(self._decoder, self._models[layout.kind], contexts)
            self._decoder.end()
            yield stored(predictions + differences, layout.kind)

    def _frame(self, count: int) -> bytes:
        """The next bytes of the frames."""
        self._patch.seek(self._frames)
        self._frames += count
        return exactly(self._patch, count)


def _inflated(raw: bytes) -> bytes:
    """The content of a zlib stream in the old file."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(raw, MAX_TEXT)
    except zlib.error as error:
        refuse("delta, compressed section", "a zlib stream in the old file", str(error))
    if not stream.eof or stream.unused_data:
        refuse("delta, compressed section", f"a zlib stream of up to {MAX_TEXT} bytes", "another")
    return content


def _cut(count: int) -> Iterator[int]:
    """A number of bytes as sizes of parts."""
    while count:
        yield min(count, CHUNK)
        count -= min(count, CHUNK)
