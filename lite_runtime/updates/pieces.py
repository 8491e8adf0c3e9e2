"""Cuts a file into pieces, by which a repository stores it and a device downloads it.

Pieces are named by their contents. A bundle is cut where what versions may share begins and ends: sections, and tensors
of at least `LARGE` bytes. So two versions share the pieces whose bytes did not change, wherever they are in the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

from lite_runtime._mapping import mapped
from lite_runtime.bundle.decoding import Tensors
from lite_runtime.bundle.layout import ALIGN, MAGIC, align
from lite_runtime.bundle.layout import File as Container
from lite_runtime.bundle.opening import opened
from lite_runtime.bundle.reading import manifest_of, section_of
from lite_runtime.bundle.refusal import mapping_of, named, refuse
from lite_runtime.errors import BundleError
from lite_runtime.updates.release import MAX_PIECES, File, Piece

__all__ = ["LARGE", "LONGEST", "file_of", "missing", "pieces_of"]

LARGE = 1 << 14
"""Bytes from which a tensor is a piece of its own. Smaller ones share pieces: a request for each costs a device more
than their bytes."""
LONGEST = 1 << 22
"""Most bytes of a piece, unless there would be more than `MAX_PIECES`."""


def pieces_of(path: str | os.PathLike[str]) -> tuple[Piece, ...]:
    """The pieces of a file, in order: at most `MAX_PIECES`, none for an empty file. Equal files give equal pieces.

    A file that is no bundle is cut every `LONGEST` bytes. Raises BundleError for a file that cannot be read and for a
    bundle that is damaged.
    """
    return _pieces(*_held(path))


def file_of(path: str | os.PathLike[str]) -> File:
    """A bundle as a release lists it. Raises BundleError for a file that is no bundle, or is damaged."""
    data, bundle = _held(path)
    if bundle is None:
        refuse(repr(os.fspath(path)), "a bundle", "another file", "to make one: msedge convert MODEL -o out.mslite")
    return File(len(data), hashlib.sha256(data).hexdigest(), bundle.digest, _pieces(data, bundle))


def missing(wanted: Sequence[Piece], held: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces of `wanted` that are not in `held`, each once: what a device has to download."""
    there = set(held)
    return tuple(piece for piece in dict.fromkeys(wanted) if piece not in there)


def _held(path: str | os.PathLike[str]) -> tuple[memoryview, Container | None]:
    """A file's bytes; and what they contain if they are a bundle."""
    shown = os.fspath(path)
    try:
        data = mapped(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"cannot read {shown!r}: {reason}; check the path and its permissions") from error
    if data is None:
        raise BundleError(f"{shown!r}: expected a file, got a device or pipe; give the path of a file")
    return data, named(repr(shown), opened, data) if data[: len(MAGIC)] == MAGIC else None


def _pieces(data: memoryview, bundle: Container | None) -> tuple[Piece, ...]:
    """The pieces of these bytes, with the least thresholds that give few enough of them."""
    large, longest = LARGE, LONGEST
    while len(ends := _ends(bundle, len(data), large, longest)) > MAX_PIECES:
        large, longest = 2 * large, 2 * longest
    cuts = pairwise([0, *ends])
    return tuple([Piece(end - start, hashlib.sha256(data[start:end]).hexdigest()) for start, end in cuts])


def _ends(bundle: Container | None, size: int, large: int, longest: int) -> list[int]:
    """Where pieces end, in ascending order."""
    marks = sorted({0, size, *(_marks(bundle, large) if bundle else ())})
    return [min(at + longest, end) for start, end in pairwise(marks) for at in range(start, end, longest)]


def _marks(bundle: Container, large: int) -> set[int]:
    """Where sections and large tensors begin and end. The first section, the manifest, is not cut from the header and
    the table: each version has its own. Zeros before a section are no part of other pieces: how many there are depends
    on what precedes them."""
    sections = list(bundle.sections.values())
    marks = {end for one in sections for end in (one.offset, one.offset + one.size)} - {sections[0].offset}
    if "weights" in bundle.sections:
        _, first, size, *_ = bundle.sections["weights"]
        for offset, nbytes in _tensors(bundle):
            if nbytes >= large:
                marks |= {first + offset, first + min(align(offset + nbytes, ALIGN), size)}
    return marks


def _tensors(bundle: Container) -> list[tuple[int, int]]:
    """Offset in `weights` and bytes of each stored tensor."""
    tables = mapping_of(mapping_of(manifest_of(bundle), "manifest").get("tensors"), "manifest, tensors")
    tensors = Tensors(tables.get("weights"), section_of(bundle, "weights"), "weights", False)
    return [(record.offset, record.nbytes) for record in tensors.records if record.nbytes and record.offset >= 0]
