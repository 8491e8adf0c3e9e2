"""A flat file (`.msflat`), version 2: programs, constants and state that a small reader runs without planning.

All numbers are little-endian; a word is a u32. Where something lies is a byte offset from the start of the file.

    0    8 bytes   `MSFLAT` and CR LF
    8    words     version, bytes of the file, bytes of the arena, then three texts: the version of msedge that made it,
                   the bundle's digest (hex), the target
    32   32 bytes  SHA-256 of the module of kernels that belongs to it, or of the list of such modules (kernels.json)
    64   words     for each table, in the order below: where it lies, and its number of rows
    192  ...       blocks: arrays in row-major order, each at a multiple of 64
    ...            the tables, each at a multiple of 4
    end - 32       SHA-256 of all bytes before it

Tables, with the words of a row:

    texts        (bytes) UTF-8, each ended by a zero byte; elsewhere a text is its offset in this table
    sizes        a dimension
    kernels      text; a record's first word is an index into this table
    constants    block, bytes
    states       text, dtype, rank, first row of sizes, block of the initial value
    buffers      bytes, 1 if steps write it
    ports        text, dtype, rank, first row of sizes, base, offset, state, sample
    nodes        text: an operator, for messages
    signatures   text, runs, tolerance, steps; program: block, number of int64 words; operands: block, number of words;
                 then first row and number of nodes, of buffers, and of ports: first row, inputs, outputs

dtype is an index into `DTYPES`. A text, dtype or block takes one word.

**Bases.** Operands name memory by a base and an offset. 0 is nothing, 1 the fault cell, 2 the arena, then come the
constants, the states, and the buffers of the signature that runs. Signatures run one at a time, so they share the
arena and the memory of their buffers.

**Ports.** An input whose base is a state reads it, and is not the caller's. An output with a state (its row plus 1; 0:
none) gives its next value: after a run without a fault it is copied there, after a run with one it is not. The other
ports are the caller's, and have a sample: a block with its value, or 0 for an output that is not compared.

**The sample.** From the initial state, `runs` runs on the sample's inputs give its outputs: two where a signature
changes state, so that the second shows what the first left. Integers are equal; floats may differ by `tolerance` (the
bits of a float32), a share of an output's largest magnitude.

**Programs** are records (`lite_runtime.steps.declaration`). Words on operands: for each record their number, then for
each the bytes that it has from its offset on, and its role: 0 read, 1 written, 2 read and written, 3 scratch. A reader
can so check that every operand lies in its buffer, and that none that is written lies in a constant, a state or an
input. It cannot check what a kernel does with the integers of its record.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from lite_runtime.errors import MsedgeError

__all__ = ["ALIGN", "DIGEST", "DTYPES", "FIRST_FREE", "HEADER", "MAGIC", "TABLES", "VERSION", "Flat"]

MAGIC, VERSION = b"MSFLAT\r\n", 2
FIRST_FREE = 3
"""The first base that is a constant."""
DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)
TABLES = {
    "texts": 0,
    "sizes": 1,
    "kernels": 1,
    "constants": 2,
    "states": 5,
    "buffers": 2,
    "ports": 8,
    "nodes": 1,
    "signatures": 15,
}
"""Words of a row; texts are bytes."""
HEADER, ALIGN, DIGEST = 192, 64, 32
_HEAD = struct.Struct("<8s6I32s")
_LARGEST = (1 << 32) - 1


class Flat:
    """A flat file while it is written."""

    def __init__(self) -> None:
        self._blocks = [bytes(HEADER)]
        self._end = HEADER
        self._places: dict[bytes, int] = {}
        self._texts: dict[str, int] = {}
        self._text_end = 0
        self._rows: dict[str, list[int]] = {name: [] for name in TABLES}

    def text(self, text: str) -> int:
        """Where a text lies. Raises MsedgeError for one with a zero byte."""
        if "\0" in text:
            raise MsedgeError(f"expected names without zero bytes, got {text!r}; rename it in the model")
        if text not in self._texts:
            self._texts[text] = self._text_end
            self._text_end += len(text.encode()) + 1
        return self._texts[text]

    def block(self, content: bytes) -> int:
        """Where a block with this content lies; equal ones are stored once."""
        if content not in self._places:
            self._places[content] = self._end
            self._blocks += [content, bytes(-len(content) % ALIGN)]
            self._end += len(content) + len(self._blocks[-1])
        return self._places[content]

    def row(self, table: str, *words: int) -> int:
        """Add a row; its number."""
        self._rows[table] += words
        return len(self._rows[table]) // TABLES[table] - 1

    def rows(self, table: str) -> int:
        """The number of rows so far."""
        return len(self._rows[table]) // TABLES[table]

    def tensor(self, name: str, dtype: str, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """The first words of a port or a state."""
        first = self.rows("sizes")
        for size in shape:
            self.row("sizes", size)
        return self.text(name), DTYPES.index(dtype), len(shape), first

    def file(self, arena: int, facts: Sequence[str], kernels: bytes) -> bytes:
        """The whole file. facts: the three texts of the header; kernels: their SHA-256. Raises MsedgeError above
        4 GiB."""
        named = [self.text(fact) for fact in facts]
        texts = b"".join(text.encode() + b"\0" for text in self._texts)
        tables, directory = [], list[int]()
        at = self._end
        for name, words in TABLES.items():
            content = struct.pack(f"<{len(self._rows[name])}I", *self._rows[name]) if words else texts
            directory += [at, len(content) // (4 * words or 1)]
            tables += [content, bytes(-len(content) % 4)]
            at += len(content) + len(tables[-1])
        size = at + DIGEST
        if size > _LARGEST or arena > _LARGEST:
            raise MsedgeError(
                f"expected a model and an arena of less than 4 GiB each, got {size} and {arena} bytes; "
                "build a smaller one"
            )
        head = _HEAD.pack(MAGIC, VERSION, size, arena, *named, kernels)
        head += struct.pack(f"<{len(directory)}I", *directory)
        content = b"".join((head.ljust(HEADER, b"\0"), *self._blocks[1:], *tables))
        return content + hashlib.sha256(content).digest()
