"""Ways to damage a flatbuffer that keep it one: every field in place, offsets to other parts among them.

`Layout` is a format: its tables, the kinds of its unions, and the type of its root.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import NamedTuple

from converter.frontends.flatbuffer import Field

__all__ = ["REALS", "TEXTS", "Layout", "spoil"]

_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f4": "f", "f8": "d",
          "b": "B"}  # fmt: skip
_WHOLE = (0, 1, 2, 3, 4, 5, 7, 16, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-8, 3e38, -3e38, *map(float, ("nan", "inf", "-inf")))
TEXTS = (b"", b"x", b"serving_default", b"\x1b[31m", b"\xff\xfe", b"line\nline", b"Flex", b"name " * 300)


class Layout:
    """What a format's files consist of. `unions`: by field, the tables that its kind selects. `named`: the ends of
    names of fields whose texts are names."""

    def __init__(
        self,
        root: str,
        tables: Mapping[str, tuple[Field | None, ...]],
        unions: Mapping[str, tuple[str, ...]],
        named: tuple[str, ...],
    ) -> None:
        self.root, self.tables, self.unions, self.named = root, tables, unions, named


class Site(NamedTuple):
    """Where a file holds something: `kind` is a scalar's type, "length", "offset", "slot" (of a vtable) or "bytes"."""

    kind: str
    at: int
    field: str
    size: int = 0


def spoil(rng: Random, data: bytes, layout: Layout) -> bytes:
    """One more change of the file `data`."""
    try:
        sites = _sites(data, layout)
    except (IndexError, struct.error, RecursionError):
        return data
    if not sites:
        return data
    raw = bytearray(data)
    fields = sorted({(s.field, s.kind) for s in sites})
    chosen = rng.choice(fields)  # every field as often, however many tables have it
    _change(rng, raw, rng.choice([s for s in sites if (s.field, s.kind) == chosen]), sites, layout)
    return bytes(raw)


@lru_cache(maxsize=2000)
def _sites(data: bytes, layout: Layout) -> list[Site]:
    found: list[Site] = []
    _table(data, struct.unpack_from("<I", data, 0)[0], layout.root, found, set(), layout)
    return found


def _table(data: bytes, at: int, name: str, found: list[Site], seen: set[int], layout: Layout) -> None:
    if at in seen or len(found) > 20_000:
        return
    seen.add(at)
    vtable = at - struct.unpack_from("<i", data, at)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    kind = 0
    for slot, field in enumerate(layout.tables.get(name, ())):
        place = vtable + 4 + 2 * slot
        if field is None or 4 + 2 * slot + 2 > size or not struct.unpack_from("<H", data, place)[0]:
            continue
        here = at + struct.unpack_from("<H", data, place)[0]
        title = f"{name}.{field.name}"
        found.append(Site("slot", place, title))
        if field.type in _CODES and not field.vector:
            found.append(Site(field.type, here, title))
            kind = data[here]
            continue
        target = here + struct.unpack_from("<I", data, here)[0]
        found.append(Site("offset", here, title))
        if not field.vector and field.type != "str":
            kinds = layout.unions.get(field.name, ())
            inner = field.type if field.type != "union" else kinds[kind] if kind < len(kinds) else ""
            _table(data, target, inner, found, seen, layout)
        else:
            _vector(data, target, field, title, found, seen, layout)


def _vector(data: bytes, at: int, field: Field, title: str, found: list[Site], seen: set[int], layout: Layout) -> None:
    count = struct.unpack_from("<I", data, at)[0]
    found.append(Site("length", at, title))
    if (field.type == "str" and not field.vector) or field.type == "u1":
        found.append(Site("bytes", at + 4, title, min(count, len(data) - at - 4)))
    elif field.type in _CODES:
        width = struct.calcsize("<" + _CODES[field.type])
        found += [Site(field.type, at + 4 + width * i, title) for i in range(min(count, 4096))]
    else:
        for i in range(min(count, 4096)):
            place = at + 4 + 4 * i
            found.append(Site("offset", place, f"{title}[]"))
            if field.type == "str":
                text = Field(field.name, "str", False, 0)
                _vector(data, place + struct.unpack_from("<I", data, place)[0], text, f"{title}[]", found, seen, layout)
                continue
            _table(data, place + struct.unpack_from("<I", data, place)[0], field.type, found, seen, layout)


def _change(rng: Random, raw: bytearray, site: Site, sites: list[Site], layout: Layout) -> None:
    if site.at + 8 > len(raw):
        return
    if site.kind == "slot":
        struct.pack_into("<H", raw, site.at, rng.choice((0, 0, 4, 6, 8, 0xFFFF)))
    elif site.kind == "length":
        now = struct.unpack_from("<I", raw, site.at)[0]
        counts = (0, 1, max(now, 1) - 1, now + 1, now * 2, 2**31, 2**32 - 1)
        struct.pack_into("<I", raw, site.at, rng.choice(counts) % 2**32)
    elif site.kind == "offset":
        alike = [s for s in sites if s.kind == "offset" and (s.field == site.field or rng.random() < 0.02)]
        other = rng.choice(alike or [site])
        target = other.at + struct.unpack_from("<I", raw, other.at)[0]
        if rng.random() < 0.2:
            target = rng.choice((site.at, site.at + 4, rng.randrange(len(raw)), len(raw)))
        struct.pack_into("<I", raw, site.at, (target - site.at) % 2**32)
    elif site.kind == "bytes":
        _contents(rng, raw, site, layout)
    elif site.kind in ("f4", "f8"):
        struct.pack_into("<" + _CODES[site.kind], raw, site.at, rng.choice(REALS))
    else:
        code = "<" + _CODES[site.kind]
        small = rng.randrange(-3, 9) if rng.random() < 0.6 else rng.choice(_WHOLE) * rng.choice((1, 1, -1))
        bits = 8 * struct.calcsize(code)
        if site.kind in ("i1", "u1") and rng.random() < 0.5:
            small = rng.randrange(160)
        struct.pack_into(code.upper(), raw, site.at, small % 2**bits)


def _contents(rng: Random, raw: bytearray, site: Site, layout: Layout) -> None:
    """Texts; and contents of buffers, which are axes, shapes, weights or packed options."""
    if not site.size:
        return
    if site.field.endswith(layout.named) and rng.random() < 0.7:
        text = rng.choice(TEXTS)[: site.size]
        raw[site.at : site.at + len(text)] = text
    elif site.size >= 4 and rng.random() < 0.6:
        at = site.at + 4 * rng.randrange(site.size // 4)
        if rng.random() < 0.7:
            struct.pack_into("<i", raw, at, rng.choice((*range(-3, 9), 255, 65536, 2**31 - 1, -(2**31))))
        else:
            struct.pack_into("<f", raw, at, rng.choice(REALS))
    else:
        raw[site.at + rng.randrange(site.size)] = rng.randrange(256)
