"""A graph and its inputs' types -> a plan: a native program, nodes only a reference can run, what waits for values.

Everything here is a function of types; nothing runs, except that nodes whose operands are all known are evaluated now:

    next_stage    which nodes' types are known
    bind_stage    their kernels and buffers
    _outputs      which buffers the caller gets
    _lay_out      where the others lie
    _write        the program
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lite_runtime.bind import ARENA, BEFORE, FAULT, NULL, BoundUnit, Pack, Workspace, bind_stage
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Graph, Node
from lite_runtime.memory import Lifetime, arrange
from lite_runtime.ops.registry import Operand, Spec
from lite_runtime.stage import fold, next_stage, spec_of

__all__ = ["ARENA", "FAULT", "Kernel", "Plan", "Step", "fold", "plan", "spec_of"]

PARALLEL, MEET = 1, 2
"""Flags of a step: its work is shared; all workers must have finished what came before (`kernels/walker.py`)."""


class Step(NamedTuple):
    """One piece of a plan in order: a run of native steps, or a node for its reference."""

    nodes: tuple[Node, ...]
    begin: int = 0
    end: int = 0
    """Words [begin, end) of the program; both 0 for a reference step."""


class Kernel(NamedTuple):
    """One record of the program, for reports: what runs, for which nodes, on which operands."""

    name: str
    unit: int
    begin: int
    end: int


class Plan(NamedTuple):
    """What a run of a graph with these input types does.

    `program` and `kernels` (names; a record's first word indexes them) drive native code; `where` gives each value's
    base and byte offset; `constants`, `inputs` and `outputs` say which base holds what. Outputs that are windows of
    something else are `copies`. `frontier` are nodes whose results' types only a run tells, to be run by reference when
    `steps` are done; `rest` is the graph that remains after them.
    """

    program: Array
    kernels: tuple[str, ...]
    records: tuple[Kernel, ...]
    units: tuple[tuple[Node, ...], ...]
    steps: tuple[Step, ...]
    where: Mapping[str, tuple[int, int, Spec]]
    bases: int
    arena_bytes: int
    constants: Mapping[int, Array]
    slots: Mapping[int, int]
    """Bytes of the bases that hold one buffer each, when planned with `separate`."""
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    copies: tuple[str, ...]
    known: Mapping[str, Array]
    frontier: tuple[Node, ...] = ()
    rest: Graph | None = None


def plan(
    graph: Graph,
    given: Mapping[str, Spec],
    *,
    pack: Pack,
    lanes: int,
    native: bool = True,
    limit: int = 4 << 30,
    separate: bool = False,
) -> Plan:
    """Plan a run of `graph` (its constants folded) on inputs of these types.

    lanes: float32 in a vector of the target. native=False: references only. limit: bytes any plan may hold at a time.
    separate: every buffer gets a base of its own instead of a place in the arena, so that a run can put each against a
    guard page. Raises ShapeError where operands do not fit, MsedgeError beyond the limit.
    """
    stage = next_stage(graph, given, limit)
    space = Workspace(pack, lanes)
    inputs = {v.name: space.external(given[v.name]) for v in graph.inputs if v.name in given}
    for operand in inputs.values():
        space.slots[operand.slot].first = BEFORE
    space.operands.update(inputs)
    bound = bind_stage(space, stage, native)
    made = [name for name in stage.outputs if name in space.operands and name not in stage.known]
    outputs = _outputs(space, made, stage.later, inputs)
    copies = [name for name in made if name not in outputs]
    copies += [name for name in sorted(stage.later) if name in space.operands and name not in stage.known]
    for name in copies:
        space.touch(space.operands[name])
    arena, slots = _lay_out(space, separate)
    if arena + sum(slots.values()) > limit:
        raise MsedgeError(
            f"this model needs {arena + sum(slots.values())} bytes of buffers for these inputs, the limit is {limit};"
            " load it with a higher limit, or run smaller inputs"
        )
    program, kernels, records = _write(space)
    return Plan(
        program=program,
        kernels=kernels,
        records=records,
        units=tuple(space.units),
        steps=_steps(bound, space.units, records),
        where={
            name: (space.slots[o.slot].base, o.offset + space.slots[o.slot].offset, o.spec)
            for name, o in space.operands.items()
        },
        bases=space.bases,
        arena_bytes=arena,
        constants=space.constants,
        slots=slots,
        inputs={name: space.slots[o.slot].base for name, o in inputs.items()},
        outputs=outputs,
        copies=tuple(dict.fromkeys(copies)),
        known=stage.known,
        frontier=stage.frontier,
        rest=stage.rest,
    )


def _outputs(
    space: Workspace, names: Sequence[str], later: frozenset[str], inputs: Mapping[str, Operand]
) -> dict[str, int]:
    """Give every output that fills a buffer of its own a base, so that it is written where the caller gets it."""
    outer = {o.slot for o in inputs.values()}
    outputs: dict[str, int] = {}
    for name in names:
        operand = space.operands[name]
        slot = space.slots[operand.slot]
        alone = slot.base == ARENA and operand.offset == 0 and slot.nbytes == operand.spec.nbytes
        if alone and operand.slot not in outer and name not in later:
            slot.base = outputs[name] = space.bases
            space.bases += 1
    return outputs


def _share(space: Workspace) -> None:
    """Let results take over the memory of operands that die in the same step."""

    def root(i: int) -> int:
        while space.slots[i].home >= 0:
            i = space.slots[i].home
        return i

    for result, source, unit in space.reuses:
        into, out_of = space.slots[result], space.slots[root(source)]
        if into.home >= 0 or into.base != ARENA or out_of.base != ARENA or into is out_of:
            continue
        if out_of.last == unit and into.first == unit and out_of.nbytes == into.nbytes:
            into.home = root(source)
            out_of.last = max(out_of.last, into.last)


def _lay_out(space: Workspace, separate: bool) -> tuple[int, dict[int, int]]:
    """Give every arena buffer its place; the arena's size and, with `separate`, the bytes of each buffer's own base."""
    _share(space)
    own = [s for s in space.slots if s.base == ARENA and s.home < 0 and s.first >= 0]
    slots: dict[int, int] = {}
    arena = 0
    if separate:
        for slot in own:
            slot.base = space.bases
            slots[slot.base] = slot.nbytes
            space.bases += 1
    else:
        offsets, arena = arrange([Lifetime(s.nbytes, s.first, s.last) for s in own])
        for slot, offset in zip(own, offsets, strict=True):
            slot.offset = offset
    for slot in space.slots:
        home = slot
        while home.home >= 0:
            home = space.slots[home.home]
        slot.base, slot.offset = home.base, home.offset
    return arena, slots


def _write(space: Workspace) -> tuple[Array, tuple[str, ...], tuple[Kernel, ...]]:
    """The program's words, the kernels they index, and which words are whose."""
    kernels: dict[str, int] = {}
    words: list[int] = []
    records: list[Kernel] = []
    touched: list[_Span] = []
    for record in space.records:
        begin = len(words)
        spans = [_span(space, o, record.unit) for o in record.operands if o is not None and o.value is None]
        meet = any(_clash(a, b) for a in spans for b in touched)
        if meet:
            touched = []
        touched.extend(spans)
        flags = (PARALLEL if record.parallel else 0) | (MEET if meet else 0) | (record.unit << 8)
        words += [kernels.setdefault(record.kernel, len(kernels)), 0, flags]
        for operand in record.operands:
            if operand is None:
                words += [NULL, 0]
            else:
                slot = space.slots[operand.slot]
                words += [slot.base, operand.offset + slot.offset]
        words += [_word(n) for n in record.numbers]
        words[begin + 1] = len(words) - begin
        records.append(Kernel(record.kernel, record.unit, begin, len(words)))
    return np.array(words, np.int64), tuple(kernels), tuple(records)


def _steps(
    bound: Sequence[BoundUnit], units: Sequence[tuple[Node, ...]], records: Sequence[Kernel]
) -> tuple[Step, ...]:
    """Neighbouring native units walk in one call."""
    steps: list[Step] = []
    for unit, begin, end in bound:
        if begin == end:
            steps.append(Step(units[unit]))
        elif steps and steps[-1].end:
            steps[-1] = Step(steps[-1].nodes + units[unit], steps[-1].begin, records[end - 1].end)
        else:
            steps.append(Step(units[unit], records[begin].begin, records[end - 1].end))
    return tuple(steps)


class _Span(NamedTuple):
    """Bytes a step touches; `writes` unless the buffer was filled by an earlier unit or by the caller."""

    base: int
    start: int
    end: int
    writes: bool


def _span(space: Workspace, operand: Operand, unit: int) -> _Span:
    slot = space.slots[operand.slot]
    start = operand.offset + slot.offset
    return _Span(slot.base, start, start + operand.spec.nbytes, slot.first == unit)


def _clash(a: _Span, b: _Span) -> bool:
    """Whether one of two steps must wait for the other."""
    return (a.writes or b.writes) and a.base == b.base and a.start < b.end and b.start < a.end


def _word(number: int | float) -> int:
    """A number of a step record: an integer as it is, a float as the bits of the nearest float32."""
    if isinstance(number, float | np.floating):
        return int.from_bytes(bytes(ctypes.c_float(number)), "little")
    return int(number)
