"""The memory that a built model needs on a processor of 32 bits: what `msedge_open` (`c/msedge.c`) takes, and stack."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

import numpy as np

from converter.ahead.flat import DTYPES, FIRST_FREE, TABLES
from lite_runtime.frozen import NamedTuple
from lite_runtime.native.codegen.thumb_stack import depths
from lite_runtime.planning.program import ARENA, Plan
from lite_runtime.steps.reading import read

__all__ = ["ALIGN", "Needs", "largest_step", "needs_of"]

ALIGN = 8
"""MSEDGE_ALIGN of microcontrollers."""
_BASE, _SIGNATURE, _PORT = 8, 32, 32
"""Bytes of a base, of `struct msedge_signature`, of `struct msedge_port`."""
_DIRECTORY, _ARENA = 64, 16
_BUFFER, _BUFFERS, _PORTS, _INPUTS, _OUTPUTS = range(10, 15)
"""Words of a signature's row."""
_READER = 640
"""Bytes of stack of the reader's deepest chain of functions, `msedge_open`, as gcc 12 compiles it for size; the chain
to a kernel, `msedge_run`, takes less than half of that."""


class Needs(NamedTuple):
    """Bytes. tables: addresses, and descriptions of signatures and their ports. buffers: inputs and outputs of the
    signature with the largest. stack: of `msedge_open`, or of `msedge_run` with the deepest kernel."""

    tables: int
    arena: int
    state: int
    buffers: int
    stack: int

    @property
    def memory(self) -> int:
        """The bytes that `msedge_open` is given."""
        return self.total - self.stack

    @property
    def total(self) -> int:
        """Memory and stack."""
        return sum(self)


def needs_of(flat: bytes, kernels: bytes) -> Needs:
    """What a flat file and the object file of its kernels need."""
    states, buffers, ports, signatures = (_rows(flat, name) for name in ("states", "buffers", "ports", "signatures"))
    first_state = FIRST_FREE + len(_rows(flat, "constants"))
    first_buffer = first_state + len(states)
    own = [buffers[row[_BUFFER] :][: row[_BUFFERS]] for row in signatures]
    seen = len(states)
    for row in signatures:
        inputs, outputs = ports[row[_PORTS] :][: row[_INPUTS]], ports[row[_PORTS] + row[_INPUTS] :][: row[_OUTPUTS]]
        seen += sum(not first_state <= port[4] < first_buffer for port in inputs) + sum(not port[6] for port in outputs)
    tables = (_BASE * (first_buffer + max(map(len, own))), _SIGNATURE * len(signatures), _PORT * seen)
    (arena,) = struct.unpack_from("<I", flat, _ARENA)
    deepest = max(depths(kernels).values(), default=0)
    return Needs(
        tables=sum(map(_aligned, tables)),
        arena=_aligned(arena),
        state=sum(_aligned(_bytes(flat, row)) for row in states),
        buffers=max(sum(_aligned(row[0]) for row in rows) for rows in own),
        stack=max(_READER, _READER // 2 + deepest),
    )


def largest_step(made: Plan) -> tuple[int, str]:
    """The most bytes of the arena that one step reads and writes, and the operators that it computes."""
    found = (0, "no step")
    for record, extents in zip(made.records, made.extents, strict=True):
        places = read(record.name, made.program[record.begin : record.end].tolist()).operands
        held = {p.offset: size for p, size in zip(places, extents, strict=True) if p.base == ARENA}
        names = " + ".join(node.where for node in made.units[record.unit])
        found = max(found, (sum(held.values()), names), key=lambda step: step[0])
    return found


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _rows(flat: bytes, name: str) -> list[Sequence[int]]:
    at, count = struct.unpack_from("<2I", flat, _DIRECTORY + 8 * list(TABLES).index(name))
    return [struct.unpack_from(f"<{TABLES[name]}I", flat, at + 4 * TABLES[name] * i) for i in range(count)]


def _bytes(flat: bytes, row: Sequence[int]) -> int:
    """Bytes of a state."""
    shape = (size for (size,) in _rows(flat, "sizes")[row[3] :][: row[2]])
    return np.dtype(DTYPES[row[1]]).itemsize * prod(shape)
