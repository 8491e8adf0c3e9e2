"""A plan as one file that a small reader runs without planning: a *flat file* (`.msflat`), version 1.

    0   8 bytes  `MSFLAT` and CR LF
    8   u32      version
    12  u32      bytes of the head
    16  u32      bytes of the file
    64           the head: a JSON object, padded with spaces to a multiple of 64
    ...          blocks, each at a multiple of 64, which the head names as {"at": offset in the file, "bytes": size}
    end - 32     SHA-256 of all bytes before it

All numbers are little-endian. The head's members:

    made_by, bundle, signature, target    the version of msedge, the bundle's digest (hex), what was built
    kernels            names of kernels; a record's first word is an index into them
    kernels_sha256     of the module of kernels that belongs to it, hex
    nodes              by unit: the operators that it computes, for messages
    arena              bytes of the arena
    bases              number of entries of the table of bases: 0 is always 0, 1 the fault cell, 2 the arena
    steps, program     number of records; their int64 words (`lite_runtime.steps.declaration`)
    operands           uint32 words: for each record the number of its operands, then for each operand the bytes that it
                       has from its offset on, and its role: 0 read, 1 written, 2 read and written, 3 scratch
    constants          {"base", "at", "bytes"} of each that a step reads
    inputs, outputs    {"name", "dtype", "shape", "base", "offset"} in order
    sample             "inputs" and "outputs": a block for each port, in order; "tolerance": the share of an output's
                       largest magnitude by which floats may differ

A reader can so check that every operand of every record lies in its buffer, and that none that is written lies in a
constant or an input. It cannot check what a kernel does with the integers of its record.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Spec, dtype_name
from lite_runtime.planning.program import Plan
from lite_runtime.steps.reading import read

__all__ = ["MAGIC", "VERSION", "Sample", "flat_file"]

MAGIC, VERSION = b"MSFLAT\r\n", 1
_HEAD = struct.Struct("<8sIII44x")
_ALIGN, _LARGEST = 64, (1 << 32) - 1
_ROLES = {"read": 0, "written": 1, "read and written": 2, "scratch": 3}


class Sample(NamedTuple):
    """Inputs and outputs by name, and by what share of an output's largest magnitude floats may differ."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    tolerance: float


class _Blocks:
    """Blocks in the order of the file; offsets from the first until the head's size is known."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, array: Array) -> dict[str, int]:
        """A block with an array's elements."""
        data = np.ascontiguousarray(array).tobytes()
        row = {"at": self.size, "bytes": len(data)}
        self.parts += [data, bytes(-len(data) % _ALIGN)]
        self.size += len(data) + len(self.parts[-1])
        return row


def flat_file(graph: Graph, made: Plan, sample: Sample, facts: Mapping[str, Any]) -> bytes:
    """The flat file of a graph's plan, all of whose steps are native. facts: the head's members that are not of the
    plan. Raises MsedgeError above 4 GiB."""
    blocks = _Blocks()
    program, operands, read_bases = _steps(made)
    constants = {base: array for base, array in made.constants.items() if base in read_bases}
    bases, outputs = made.bases, []
    for value in graph.outputs:
        if value.name in made.known:
            base, offset, spec = bases, 0, _spec(made.known[value.name])
            constants[base] = made.known[value.name]
            bases += 1
        else:
            base, offset, spec = made.where[value.name]
            if base in made.constants:
                constants[base] = made.constants[base]
        outputs.append(_port(value.name, spec, base, offset))
    head = {
        **facts,
        "kernels": list(made.kernels),
        "nodes": [" + ".join(node.where for node in unit) for unit in made.units],
        "arena": made.arena_bytes,
        "bases": bases,
        "steps": len(made.records),
        "program": blocks.add(program),
        "operands": blocks.add(operands),
        "constants": [{"base": base, **blocks.add(array)} for base, array in constants.items()],
        "inputs": [_port(v.name, made.where[v.name][2], made.inputs[v.name], 0) for v in graph.inputs],
        "outputs": outputs,
        "sample": {
            "inputs": [blocks.add(sample.inputs[v.name]) for v in graph.inputs],
            "outputs": [blocks.add(sample.outputs[v.name]) for v in graph.outputs],
            "tolerance": sample.tolerance,
        },
    }
    return _file(head, blocks)


def _file(head: Mapping[str, Any], blocks: _Blocks) -> bytes:
    """Header, head, blocks, digest. Blocks' offsets depend on the head's size, which depends on their digits."""
    start = 0
    while True:
        text = json.dumps(_moved(head, start), ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGN)
        if _HEAD.size + len(text) <= start:
            text = text.ljust(start - _HEAD.size)
            break
        start = _HEAD.size + len(text)
    size = start + blocks.size + 32
    if size > _LARGEST:
        raise MsedgeError(f"expected a model of less than 4 GiB for the target, got {size} bytes; build a smaller one")
    content = b"".join((_HEAD.pack(MAGIC, VERSION, len(text), size), text, *blocks.parts))
    return content + hashlib.sha256(content).digest()


def _moved(value: Any, by: int) -> Any:
    """The same values with every block's offset moved."""
    if isinstance(value, dict):
        return {key: inner + by if key == "at" else _moved(inner, by) for key, inner in value.items()}
    return [_moved(inner, by) for inner in value] if isinstance(value, list) else value


def _steps(made: Plan) -> tuple[Array, Array, set[int]]:
    """The program of all records, the words on their operands, and the bases that they name."""
    words: list[int] = []
    bases: set[int] = set()
    for record, extents in zip(made.records, made.extents, strict=True):
        places = read(record.name, made.program[record.begin : record.end].tolist()).operands
        words.append(len(places))
        for place, extent in zip(places, extents, strict=True):
            words += [extent, _ROLES[place.role]]
            bases.add(place.base)
    return made.program.astype("<i8"), np.array(words, "<u4"), bases


def _spec(array: Array) -> Spec:
    return Spec(dtype_name(array.dtype), array.shape)


def _port(name: str, spec: Spec, base: int, offset: int) -> dict[str, Any]:
    shape: Sequence[int] = spec.shape
    return {"name": name, "dtype": spec.dtype, "shape": list(shape), "base": base, "offset": offset}
