"""Flat files taken apart by what their format says, and changed ones with a right digest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from converter.ahead.flat import DIGEST, TABLES

COLUMNS = {
    "sizes": ("size",),
    "kernels": ("text",),
    "constants": ("block", "bytes"),
    "states": ("text", "dtype", "rank", "sizes", "block"),
    "buffers": ("bytes", "role"),
    "ports": ("text", "dtype", "rank", "sizes", "base", "offset", "state", "sample"),
    "nodes": ("text",),
    "signatures": (
        *("text", "runs", "tolerance", "steps", "program", "words", "operands", "operand_words"),
        *("node", "nodes", "buffer", "buffers", "port", "inputs", "outputs"),
    ),
}
"""Names of the words of a row."""


class Table(NamedTuple):
    """A table's place, and its rows."""

    at: int
    rows: list[dict[str, int]]


def table(flat: bytes, name: str) -> Table:
    """A table of words."""
    at, count = struct.unpack_from("<2I", flat, 64 + 8 * list(TABLES).index(name))
    width = TABLES[name]
    assert width == len(COLUMNS[name])
    rows = [struct.unpack_from(f"<{width}I", flat, at + 4 * width * i) for i in range(count)]
    return Table(at, [dict(zip(COLUMNS[name], row, strict=True)) for row in rows])


def text(flat: bytes, offset: int) -> str:
    """A text by its offset."""
    at, _ = struct.unpack_from("<2I", flat, 64)
    return flat[at + offset : flat.index(b"\0", at + offset)].decode()


def words(flat: bytes) -> Iterator[tuple[str, int]]:
    """Every word of the header and of the tables: what it is, and its place."""
    yield from (("bytes", 12), ("arena", 16), ("made_by", 20), ("bundle", 24), ("target", 28))
    for i, name in enumerate(TABLES):
        yield from ((f"{name} at", 64 + 8 * i), (f"{name} count", 68 + 8 * i))
        for row in range(len(table(flat, name).rows) if name != "texts" else 0):
            for column, what in enumerate(COLUMNS[name]):
                yield f"{name}.{what}", table(flat, name).at + 4 * (TABLES[name] * row + column)


def sealed(flat: bytes) -> bytes:
    """The file with a right digest."""
    content = flat[:-DIGEST]
    return content + hashlib.sha256(content).digest()


def with_word(flat: bytes, at: int, value: int, form: str = "<I") -> bytes:
    """The file with another word at a place, and a right digest."""
    data = bytearray(flat)
    struct.pack_into(form, data, at, value)
    return sealed(bytes(data))


class Program(NamedTuple):
    """A signature's program and the words on its operands, with their places."""

    name: str
    at: int
    words: np.ndarray
    rows_at: int
    rows: np.ndarray


def programs(flat: bytes) -> list[Program]:
    """The programs of all signatures."""
    found = []
    for row in table(flat, "signatures").rows:
        program = np.frombuffer(flat, "<i8", row["words"], row["program"])
        rows = np.frombuffer(flat, "<u4", row["operand_words"], row["operands"])
        found.append(Program(text(flat, row["text"]), row["program"], program, row["operands"], rows))
    return found


def wrong_words(flat: bytes) -> list[tuple[bytes, str]]:
    """Files that name memory outside their buffers, or steps that are none, with what a reader calls the mistake."""
    found = []
    held = 3 + len(table(flat, "constants").rows) + len(table(flat, "states").rows)
    buffers = table(flat, "buffers").rows
    for program, signature in zip(programs(flat), table(flat, "signatures").rows, strict=True):
        own = buffers[signature["buffer"] :][: signature["buffers"]]
        read_only = {*range(3, held), *(held + i for i, buffer in enumerate(own) if not buffer["role"])}

        def change(at: int, value: int, told: str, start: int = program.at) -> None:
            found.append((with_word(flat, start + 8 * at, value, "<q"), told))

        def change_row(at: int, value: int, told: str, start: int = program.rows_at) -> None:
            found.append((with_word(flat, start + 4 * at, value), told))

        at = row = 0
        while at < len(program.words):
            change(at, len(table(flat, "kernels").rows), "its kernel")
            change(at, -1, "its kernel")
            change(at + 1, len(program.words) + 1, "its length")
            change(at + 1, 0, "its length")
            change(at + 2, int(program.words[at + 2]) | 4, "no jump")
            change_row(row, 1000, "its operands")
            for i in range(int(program.rows[row])):
                base = at + 3 + 2 * i
                if program.words[base] == 0:
                    continue
                for value in (-1, 1, held + len(own), 2**40):
                    change(base, value, "in a buffer")
                for value in (-1, 2**33, 2**62):
                    change(base + 1, value, "its offset")
                change_row(row + 1 + 2 * i, 2**32 - 1, "its offset")
                change_row(row + 2 + 2 * i, 4, "its role")
                if int(program.words[base]) in read_only:
                    change_row(row + 2 + 2 * i, 1, "to be read")
            at, row = at + int(program.words[at + 1]), row + 1 + 2 * int(program.rows[row])
    return found
