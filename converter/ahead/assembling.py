"""Plans of signatures as one flat file: they share kernels, constants, state and the arena."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from converter.ahead.flat import FIRST_FREE, Flat
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Spec, StateUse, dtype_name
from lite_runtime.planning.program import ARENA, FAULT, NULL, Plan
from lite_runtime.steps.copy import Segments
from lite_runtime.steps.declaration import HEAD, KERNEL
from lite_runtime.steps.operand import Operand
from lite_runtime.steps.reading import read

__all__ = ["Part", "Sample", "assembled", "kernels_of", "records_of"]

_ROLES = {"read": 0, "written": 1, "read and written": 2, "scratch": 3}
_COPY = "copy.rows"
LARGE = 1 << 16
"""Bytes above which an output has no sample if a smaller one has: gradients are as large as parameters, and the loss
beside them depends on most of what they do."""


class Sample(NamedTuple):
    """Inputs, and the outputs of the last of `runs` runs, by name; by what share of an output's largest magnitude
    floats may differ."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    runs: int
    tolerance: float


class Part(NamedTuple):
    """A signature: its graph, its plan, all of whose steps are native, the state it uses, and its sample."""

    name: str
    graph: Graph
    plan: Plan
    use: StateUse
    sample: Sample


class _Record(NamedTuple):
    """A step: its words; for each operand its base, bytes and role."""

    kernel: str
    words: list[int]
    operands: list[tuple[int, int, int]]


class _Signature(NamedTuple):
    """A part with what its plan leaves open: the base, offset and type of every output, constants that are outputs, and
    records of copies."""

    part: Part
    records: list[_Record]
    outputs: dict[str, tuple[int, int, Spec]]
    constants: dict[int, Array]
    buffers: dict[int, tuple[int, int]]
    """By base: bytes, and 1 if steps write it."""


def kernels_of(parts: Sequence[Part]) -> list[str]:
    """The kernels that the parts use, each once."""
    return list(dict.fromkeys(record.kernel for part in parts for record in _completed(part).records))


def records_of(parts: Sequence[Part]) -> Iterator[tuple[str, list[int]]]:
    """The kernel and the words of every step."""
    for part in parts:
        yield from ((record.kernel, record.words) for record in _completed(part).records)


def assembled(parts: Sequence[Part], state: Mapping[str, Array], facts: Sequence[str], digest: bytes) -> bytes:
    """The flat file of these signatures. state: initial values of the states that they use. facts, digest: see
    `Flat.file`. Raises MsedgeError above 4 GiB."""
    flat = Flat()
    whole = [_completed(part) for part in parts]
    kernels = {name: flat.row("kernels", flat.text(name)) for name in kernels_of(parts)}
    constants: dict[tuple[int, int], int] = {}
    for signature in whole:
        for array in signature.constants.values():
            row = _block(flat, array), array.nbytes
            if row not in constants:
                constants[row] = FIRST_FREE + flat.row("constants", *row)
    states = {
        name: FIRST_FREE + len(constants) + flat.row("states", *_tensor(flat, name, array), _block(flat, array))
        for name, array in state.items()
    }
    free = FIRST_FREE + len(constants) + len(states)
    for signature in whole:
        bases = {NULL: NULL, FAULT: FAULT, ARENA: ARENA}
        bases |= {base: constants[_block(flat, a), a.nbytes] for base, a in signature.constants.items()}
        made, use = signature.part.plan, signature.part.use
        bases |= {made.inputs[name]: states[of] for name, of in use.reads.items()}
        bases |= {base: free + i for i, base in enumerate(signature.buffers)}
        _add(flat, signature, bases, kernels, {name: base - free + len(states) + 1 for name, base in states.items()})
    return flat.file(max(part.plan.arena_bytes for part in parts), facts, digest)


def _completed(part: Part) -> _Signature:
    """The signature's records and buffers. An output that is a view of a state that the same signature replaces gets
    memory of its own and a copy at the end of the program: its value would change with the state."""
    made, use = part.plan, part.use
    constants, outputs, free = dict(made.constants), dict[str, tuple[int, int, Spec]](), made.bases
    records = list(_records(made))
    replaced = {made.inputs[name] for name, state in use.reads.items() if state in use.writes.values()}
    buffers = {base: (made.where[n][2].nbytes, 0) for n, base in made.inputs.items() if n not in use.reads}
    buffers |= {base: (made.where[n][2].nbytes, 1) for n, base in made.outputs.items()}
    for value in part.graph.outputs:
        if value.name in made.known:
            array = made.known[value.name]
            place = free, 0, Spec(dtype_name(array.dtype), array.shape)
            constants[free] = array
            free += 1
        else:
            place = made.where[value.name]
            if place[0] in replaced:
                records.append(_copy(place, free))
                place = free, 0, place[2]
                buffers[free] = place[2].nbytes, 1
                free += 1
        outputs[value.name] = place
    used = {base for record in records for base, _, _ in record.operands} | {base for base, _, _ in outputs.values()}
    return _Signature(part, records, outputs, {b: a for b, a in constants.items() if b in used}, buffers)


def _records(made: Plan) -> list[_Record]:
    found = []
    for record, extents in zip(made.records, made.extents, strict=True):
        words = made.program[record.begin : record.end].tolist()
        places = read(record.name, words).operands
        rows = [(p.base, extent, _ROLES[p.role]) for p, extent in zip(places, extents, strict=True)]
        found.append(_Record(record.name, words, rows))
    return found


def _copy(source: tuple[int, int, Spec], target: int) -> _Record:
    """A record that copies a dense array."""
    base, offset, spec = source
    size = spec.nbytes
    made = Segments(
        source=Operand(spec, base, offset),
        target=Operand(spec, target),
        **dict.fromkeys(("source_start", "target_start", "outer", "whole"), 0),
        **dict.fromkeys(("rows", "run_source", "run_target"), 1),
        **dict.fromkeys(("row_source", "row_target", "run"), size),
        dims=(),
    )
    numbers = made.numbers()
    words = [0, HEAD + 4 + len(numbers), 0, base, offset, target, 0, *numbers]
    return _Record(_COPY, words, [(base, size, _ROLES["read"]), (target, size, _ROLES["written"])])


def _add(
    flat: Flat,
    signature: _Signature,
    bases: Mapping[int, int],
    kernels: Mapping[str, int],
    states: Mapping[str, int],
) -> None:
    """Add a signature's rows. bases: of the file, by those of the plan; states: rows plus 1."""
    (name, graph, made, use, sample), records = signature.part, signature.records
    words: list[int] = []
    operands: list[int] = []
    for record in records:
        begin = len(words)
        words += record.words
        words[begin + KERNEL] = kernels[record.kernel]
        operands.append(len(record.operands))
        for i, (base, extent, role) in enumerate(record.operands):
            words[begin + HEAD + 2 * i] = bases[base]
            operands += [extent, role]
    first = [flat.rows(table) for table in ("nodes", "buffers", "ports")]
    for unit in made.units:
        flat.row("nodes", flat.text(" + ".join(node.where for node in unit)))
    for row in signature.buffers.values():
        flat.row("buffers", *row)
    for value in graph.inputs:
        spec, held = made.where[value.name][2], sample.inputs.get(value.name)
        block = 0 if held is None else _block(flat, held)
        tensor = flat.tensor(value.name, spec.dtype, spec.shape)
        flat.row("ports", *tensor, bases[made.inputs[value.name]], 0, 0, block)
    least = min((array.nbytes for name, array in sample.outputs.items() if name not in use.writes), default=0)
    for value in graph.outputs:
        base, offset, spec = signature.outputs[value.name]
        state = states[use.writes[value.name]] if value.name in use.writes else 0
        shown = not state and spec.nbytes <= max(LARGE, least)
        block = _block(flat, sample.outputs[value.name]) if shown else 0
        flat.row("ports", *flat.tensor(value.name, spec.dtype, spec.shape), bases[base], offset, state, block)
    (tolerance,) = struct.unpack("<I", struct.pack("<f", sample.tolerance))
    program, rows = flat.block(np.array(words, "<i8").tobytes()), flat.block(np.array(operands, "<u4").tobytes())
    nodes, buffers, ports = first
    flat.row(
        "signatures",
        *(flat.text(name), sample.runs, tolerance, len(records)),
        *(program, len(words), rows, len(operands)),
        *(nodes, len(made.units), buffers, len(signature.buffers)),
        *(ports, len(graph.inputs), len(graph.outputs)),
    )


def _block(flat: Flat, array: Array) -> int:
    return flat.block(np.ascontiguousarray(array).tobytes())


def _tensor(flat: Flat, name: str, array: Array) -> tuple[int, int, int, int]:
    return flat.tensor(name, dtype_name(array.dtype), array.shape)
