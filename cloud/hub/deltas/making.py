"""Makes a delta: operations for each part of the new file, each the shortest of those that are known."""

from __future__ import annotations

import hashlib
import lzma
import zlib
from collections.abc import Iterable, Iterator

from cloud.hub.deltas.coding import Encoder
from cloud.hub.deltas.matching import Copy, Literal, matched
from cloud.hub.deltas.planning import Part, planned
from cloud.hub.deltas.tensors import Coded, coded, symbols_in
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.delta.coding import Model
from lite_runtime.updates.delta.elements import KINDS, ONE, Kind, Layout, integers, model
from lite_runtime.updates.delta.layout import (
    CLASSED,
    COLUMNS,
    COPY,
    DIGEST,
    FILTERS,
    LITERAL,
    MAGIC,
    MAX_TEXT,
    PACKED,
    ROWS,
    TENSOR,
)
from lite_runtime.updates.delta.rebuilding import CHUNK

__all__ = ["delta_of"]

_FRAME = 1 << 18
"""About the most bytes of a frame."""
_LEVELS = (9, 0, 6, 1)
"""zlib's levels that bundles are written with, the usual first."""
_WORTH = 64
"""Bytes from which differences of a tensor are coded as such."""


class Packed(NamedTuple):
    """A zlib stream, by its content."""

    place: int
    old_size: int
    level: int
    size: int
    stored: int
    checksum: bytes
    content: list[Copy | Literal]


class Tensor(NamedTuple):
    """A tensor at `start` of the new file, by differences from the one at `place` of the old."""

    place: int
    start: int
    nbytes: int
    coded: Coded


Operation = Copy | Literal | Packed | Tensor


def delta_of(old: memoryview, new: memoryview) -> bytes:
    """The delta that makes `new` of `old`."""
    operations = list(_merged(_operations(old, new), old))
    digests = b"".join(hashlib.sha256(data).digest()[:DIGEST] for data in (old, new))
    control = lzma.compress(_control(operations), lzma.FORMAT_RAW, filters=[{**FILTERS[0], "preset": 9}])
    frames = _frames([one for one in operations if isinstance(one, Tensor)], old, new)
    head = MAGIC + b"".join(map(_varint, (len(old), len(new), len(control)))) + digests
    return b"".join([head, control, *frames])


# -- operations --------------------------------------------------------------------------------------------------------


def _operations(old: memoryview, new: memoryview) -> Iterator[Operation]:
    at = 0
    for part in planned(old, new):
        if part.start >= at:
            yield from _between(old, new[at : part.start], at)
            yield from _part(old, new, part)
            at = part.start + part.size
    yield from _between(old, new[at:], at)


def _between(old: memoryview, new: memoryview, at: int) -> Iterator[Operation]:
    """Bytes of no part: a header, zeros between tensors, or the whole file."""
    if len(new) < _WORTH and not any(new):
        yield from [Literal(bytes(new))] if new else []
    else:
        yield from matched(new, old, at)


def _part(old: memoryview, new: memoryview, part: Part) -> Iterator[Operation]:
    after, before = new[part.start : part.start + part.size], old[part.old : part.old + part.old_size]
    if before == after:
        yield Copy(part.old, part.size)
        return
    if part.dtype and part.size >= _WORTH:
        best = coded(bytes(before), bytes(after), part.dtype, part.shape)
        if best is not None and best.size < part.size:
            yield Tensor(part.old, part.start, part.size, best)
            return
    packed = _packed(before, after, part) if part.packed else None  # at most manifest and golden arrays
    if packed is not None:
        yield packed
    else:
        yield from (_moved(one, part.old) for one in matched(after, before))


def _moved(one: Copy | Literal, by: int) -> Copy | Literal:
    return Copy(one.place + by, one.size) if isinstance(one, Copy) else one


def _packed(before: memoryview, after: memoryview, part: Part) -> Packed | None:
    """A zlib stream by its content; None if zlib makes another stream of it."""
    contents = [zlib.decompress(side) for side in (before, after)]
    level = next((level for level in _LEVELS if zlib.compress(contents[1], level) == after), None)
    if level is None or max(map(len, contents)) > MAX_TEXT or len(before) > MAX_TEXT:
        return None
    ends = zlib.crc32(after).to_bytes(4, "little")
    found = list(matched(memoryview(contents[1]), memoryview(contents[0])))
    return Packed(part.old, part.old_size, level, len(contents[1]), len(after), ends, found)


def _merged(operations: Iterable[Operation], old: memoryview) -> Iterator[Operation]:
    """The operations, with neighbours made one where they can be."""
    last: Operation | None = None
    for one in operations:
        if isinstance(last, Copy) and isinstance(one, Copy) and last.place + last.size == one.place:
            last = Copy(last.place, last.size + one.size)
        elif isinstance(last, Copy) and isinstance(one, Literal) and _follows(last, one, old):
            last = Copy(last.place, last.size + len(one.content))
        elif isinstance(last, Literal) and isinstance(one, Literal):
            last = Literal(last.content + one.content)
        else:
            if last is not None:
                yield last
            last = one
    if last is not None:
        yield last


def _follows(copy: Copy, literal: Literal, old: memoryview) -> bool:
    """Whether the literal is what follows the copied bytes."""
    end = copy.place + copy.size
    return old[end : end + len(literal.content)] == literal.content


# -- writing -----------------------------------------------------------------------------------------------------------


def _control(operations: Iterable[Operation]) -> bytes:
    made = bytearray()
    place = 0
    for one in operations:
        if isinstance(one, Literal):
            made += _literal(one)
            continue
        name = COPY if isinstance(one, Copy) else PACKED if isinstance(one, Packed) else TENSOR
        made += bytes([name]) + _signed(one.place - place)
        if isinstance(one, Copy):
            made += _varint(one.size)
            place = one.place + one.size
        elif isinstance(one, Tensor):
            made += _layout(one.coded.layout)
            place = one.place + one.nbytes
        else:
            made += b"".join(map(_varint, (one.old_size, one.level, one.size, one.stored))) + one.checksum
            made += _control(one.content)
            place = one.place + one.old_size
    return bytes(made)


def _literal(one: Literal) -> bytes:
    return bytes([LITERAL]) + _varint(len(one.content)) + one.content


def _layout(layout: Layout) -> bytes:
    number = next(number for number, kind in KINDS.items() if kind == layout.kind)
    flags = ROWS * (layout.rows is not None) | COLUMNS * (layout.columns is not None)
    flags |= CLASSED * (layout.classes is not None)
    made = [_varint(number), *map(_varint, layout.shape), _signed(layout.zero), _varint(layout.base), _varint(flags)]
    made += [_signed(int(f) - ONE) for side in (layout.rows, layout.columns) if side is not None for f in side]
    return b"".join(made) + (b"" if layout.classes is None else layout.classes.astype("u1").tobytes())


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _signed(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


# -- frames ------------------------------------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    tensor: Tensor
    at: int
    nbytes: int
    size: float


def _frames(tensors: Iterable[Tensor], old: memoryview, new: memoryview) -> list[bytes]:
    encoder = Encoder()
    models: dict[Kind, Model] = {}
    for group in _groups(_chunks(tensors)):
        elements = sum(8 * chunk.nbytes // chunk.tensor.coded.layout.kind.bits for chunk in group)
        encoder.open(sum(chunk.size for chunk in group), elements)
        for tensor, at, nbytes, _ in group:
            layout = tensor.coded.layout
            before, after = (
                integers(bytes(data[start + at : start + at + nbytes]), layout.kind)
                for data, start in ((old, tensor.place), (new, tensor.start))
            )
            symbols, contexts, rests = symbols_in(before, after, layout, 8 * at // layout.kind.bits)
            if layout.kind not in models:
                models[layout.kind] = model(layout.kind)
            encoder.chunk(models[layout.kind], contexts, symbols, rests)
        encoder.close()
    return encoder.frames


def _chunks(tensors: Iterable[Tensor]) -> Iterator[_Chunk]:
    for tensor in tensors:
        for at in range(0, tensor.nbytes, CHUNK):
            nbytes = min(CHUNK, tensor.nbytes - at)
            yield _Chunk(tensor, at, nbytes, tensor.coded.size * nbytes / tensor.nbytes)


def _groups(chunks: Iterable[_Chunk]) -> Iterator[list[_Chunk]]:
    """Chunks that share a frame."""
    group: list[_Chunk] = []
    size = 0.0
    for chunk in chunks:
        if group and size + chunk.size > _FRAME:
            yield group
            group, size = [], 0.0
        group.append(chunk)
        size += chunk.size
    if group:
        yield group
