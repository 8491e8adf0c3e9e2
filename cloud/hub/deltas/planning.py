"""What of a new file follows from which part of the old one: sections, and tensors by name and order.

Names of constants end in counters that another conversion counts otherwise, so that they are compared without them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher

from lite_runtime.bundle.contents import TensorRecord
from lite_runtime.bundle.decoding import Tensors
from lite_runtime.bundle.layout import MAGIC, File, Section
from lite_runtime.bundle.opening import opened
from lite_runtime.bundle.reading import manifest_of, section_of
from lite_runtime.bundle.refusal import mapping_of
from lite_runtime.errors import BundleError
from lite_runtime.frozen import NamedTuple

__all__ = ["Part", "planned"]

_ZLIB = 0x78
"""The first byte of a zlib stream."""
_COUNTER = re.compile(r"~\d+")


class Part(NamedTuple):
    """Bytes of the new file, and those of the old that they may follow from (`old_size` 0: any). packed: both are zlib
    streams. dtype, shape: of a tensor, else ""."""

    start: int
    size: int
    old: int
    old_size: int
    packed: bool = False
    dtype: str = ""
    shape: tuple[int, ...] = ()


def planned(old: memoryview, new: memoryview) -> list[Part]:
    """Parts of the new file, in order and apart; bytes between them are in none. None of a file that is no bundle."""
    files = [_bundle(old), _bundle(new)]
    if files[0] is None or files[1] is None:
        return []
    parts = [*_sections(files[0], files[1]), *_tensors(files[0], files[1])]
    return sorted(parts, key=lambda part: part.start)


def _bundle(data: memoryview) -> File | None:
    try:
        return opened(data) if data[: len(MAGIC)] == MAGIC else None
    except BundleError:
        return None


def _sections(old: File, new: File) -> Iterator[Part]:
    for name, section in new.sections.items():
        if name in old.sections and name != "weights" and section.size:
            before = old.sections[name]
            firsts = {old.data[before.offset], new.data[section.offset]} if before.size else set()
            both = name in ("manifest", "golden") and firsts == {_ZLIB}
            yield Part(section.offset, section.size, before.offset, before.size, both)


def _tensors(old: File, new: File) -> Iterator[Part]:
    """Stored tensors of the new file that have one of the same dtype and shape in the old: the same bytes first, then
    by name, then in order."""
    if "weights" not in old.sections or "weights" not in new.sections:
        return
    before, after = _named(old), _named(new)
    same = {record.digest: record for _, record in before}
    found = {i: same[record.digest] for i, (_, record) in enumerate(after) if record.digest in same}
    rest = [i for i in range(len(after)) if i not in found]
    used = {record.digest for record in found.values()}
    free = [(name, record) for name, record in before if record.digest not in used]
    keys = [[(name, record.dtype, record.shape) for name, record in side] for side in (free, [after[i] for i in rest])]
    for cut in (slice(None), slice(1, None)):
        old_keys, new_keys = ([key[cut] for key in side] for side in keys)
        _align(free, rest, found, old_keys, new_keys)
    of, into = old.sections["weights"], new.sections["weights"]
    for i, record in sorted(found.items()):
        own = after[i][1]
        yield Part(_place(into, own), own.nbytes, _place(of, record), record.nbytes, dtype=own.dtype, shape=own.shape)


def _align(
    free: list[tuple[str, TensorRecord]],
    rest: list[int],
    found: dict[int, TensorRecord],
    old: Sequence[Hashable],
    new: Sequence[Hashable],
) -> None:
    """Add to `found` what has the same key in the same order."""
    for at, to, count in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        for k in range(count):
            found.setdefault(rest[to + k], free[at + k][1])


def _place(section: Section, record: TensorRecord) -> int:
    return section.offset + record.offset


def _named(file: File) -> list[tuple[str, TensorRecord]]:
    """Stored tensors with the names of the constants or state that they are of, in the order of the table."""
    document = mapping_of(manifest_of(file), "manifest")
    tables = mapping_of(document.get("tensors"), "manifest, tensors")
    records = Tensors(tables.get("weights"), section_of(file, "weights"), "weights", False).records
    names: defaultdict[int, set[str]] = defaultdict(set)
    signatures = mapping_of(document.get("signatures"), "manifest, signatures")
    graphs = [mapping_of(graph, "graph").get("constants") for graph in signatures.values()]
    for table in (*graphs, document.get("state", {})):
        for name, row in mapping_of(table, "constants").items():
            if type(row) is int:
                names[row].add(_COUNTER.sub("", name))
    found: dict[int, tuple[str, TensorRecord]] = {}
    for row, record in enumerate(records):
        if record.nbytes and record.offset >= 0 and record.offset not in found:
            found[record.offset] = (min(names[row], default=""), record)
    return list(found.values())
