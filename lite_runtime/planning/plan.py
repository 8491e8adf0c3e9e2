"""Plans a graph for given input types: a native program, nodes run by reference, and nodes that depend on values.

Everything here is a function of types; nothing is run, except that nodes whose operands are all known are evaluated:

    next_stage    the nodes whose types are known
    bind_stage    their kernels and buffers
    _outputs      the buffers that the caller receives
    _lay_out      the memory of the other buffers
    _write        the program
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Node
from lite_runtime.ops.registry import Operand, Spec
from lite_runtime.planning import cost
from lite_runtime.planning.bind import BoundUnit, bind_stage
from lite_runtime.planning.memory import Lifetime, Spans, arrange
from lite_runtime.planning.program import ARENA, NULL, Kernel, Plan, Step
from lite_runtime.planning.stage import fold, next_stage
from lite_runtime.planning.workspace import BEFORE, Choose, Pack, Workspace
from lite_runtime.steps.control import GoTo
from lite_runtime.steps.declaration import LENGTH
from lite_runtime.targets import Target

__all__ = ["Kernel", "Plan", "Step", "fold", "plan"]

PARALLEL, MEET, JUMP = 1, 2, 4
"""Flags of a step: its work is shared; all workers must have finished the steps before it; the walker executes it
(`kernels/walker.py`)."""


def plan(
    graph: Graph,
    given: Mapping[str, Spec],
    *,
    pack: Pack,
    target: Target,
    native: bool = True,
    limit: int = 4 << 30,
    separate: bool = False,
    choose: Choose | None = None,
    turns: int = 100_000,
    orders: int = 0,
) -> Plan:
    """Plan a run of `graph` (its constants folded) on inputs of these types.

    target: whose kernels will run it, on this machine or another. native=False: references only. limit: greatest size
    in bytes of a plan's memory. separate: every buffer gets its own base instead of a place in the arena, so that a run
    can put each next to a guard page. choose: chooses among ways to compute a step; by default the rules' own. turns:
    of a loop, with the loops inside it, in one run. orders: see `memory.arrange`. Raises ShapeError for incompatible
    operands, MsedgeError above the limit.
    """
    stage = next_stage(graph, given, limit)
    space = Workspace(pack, target, choose or _by_rule, turns)
    inputs = {v.name: space.external(given[v.name]) for v in graph.inputs if v.name in given}
    for operand in inputs.values():
        space.slots[operand.slot].first = BEFORE
    space.operands.update(inputs)
    bound = bind_stage(space, stage, native)
    made = [name for name in stage.outputs if name in space.operands and name not in stage.known]
    outputs = _outputs(space, made, stage.later, inputs)
    copies = [name for name in made if name not in outputs]
    copies += [name for name in sorted(stage.later) if name in space.operands and name not in stage.known]
    space.unit = len(space.units)  # after all
    for name in copies:
        space.touch(space.operands[name])
    arena, slots = _lay_out(space, separate, orders)
    if arena + sum(slots.values()) > limit:
        raise MsedgeError(
            f"this model needs {arena + sum(slots.values())} bytes of buffers for these inputs, the limit is {limit};"
            " load it with a higher limit, or run smaller inputs"
        )
    program, kernels, records = _write(space, stage.specs, separate)
    extents = tuple(tuple(_extent(space, o) for o in record.step.operands) for record in space.records)
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
        refusals=space.refusals,
        extents=extents,
        frontier=stage.frontier,
        rest=stage.rest,
    )


def _by_rule(_: str, __: str, options: Sequence[str]) -> str:
    return options[0]


def _outputs(
    space: Workspace, names: Sequence[str], later: frozenset[str], inputs: Mapping[str, Operand]
) -> dict[str, int]:
    """Give every output with a buffer of its own a base, so that it is written directly to the caller's memory."""
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


def _home(space: Workspace, i: int) -> int:
    """The slot whose memory slot `i` uses; chains of slots that reuse one another are shortened on the way."""
    slots = space.slots
    end = i
    while slots[end].home >= 0:
        end = slots[end].home
    while slots[i].home >= 0:
        slots[i].home, i = end, slots[i].home
    return end


def _share(space: Workspace) -> None:
    """Let results reuse the memory of operands whose lifetime ends in the same step."""

    for result, source, unit in space.reuses:
        home = _home(space, source)
        into, out_of = space.slots[result], space.slots[home]
        if into.home >= 0 or into.base != ARENA or out_of.base != ARENA or into is out_of:
            continue
        if out_of.last == unit and into.first == unit and out_of.nbytes == into.nbytes:
            into.home = home
            out_of.last = max(out_of.last, into.last)


def _lifetimes(space: Workspace, own: Sequence[int]) -> list[Lifetime]:
    """When buffers are needed, counted in records, with one more for each unit: within a unit's records, a buffer is
    needed from the first to the last that has it as an operand. With jumps, records repeat, and whole units count."""
    counts = [0] * (len(space.units) + 1)
    for record in space.records:
        counts[record.unit] += 1
    begins = [0, *accumulate(count + 1 for count in counts)]
    touching: dict[int, list[int]] = {}
    for i in range(len(space.slots) if not space.jumps else 0):
        touching.setdefault(_home(space, i), []).extend(space.touching(i))
    found = []
    for number in own:
        slot = space.slots[number]
        records = [i + space.records[i].unit for i in touching.get(number, ())]
        first, last = begins[slot.first], begins[slot.last + 1] - 1
        starts = [at for at in records if at < begins[slot.first + 1]]
        ends = [at for at in records if at >= begins[slot.last]]
        found.append(Lifetime(slot.nbytes, min(starts, default=first), max(ends, default=last)))
    return found


def _lay_out(space: Workspace, separate: bool, orders: int) -> tuple[int, dict[int, int]]:
    """Place every arena buffer; returns the arena's size and, with `separate`, the bytes of each buffer's own base."""
    _share(space)
    own = [i for i, s in enumerate(space.slots) if s.base == ARENA and s.home < 0 and s.first >= 0]
    slots: dict[int, int] = {}
    arena = 0
    if separate:
        for i in own:
            space.slots[i].base = space.bases
            slots[space.bases] = space.slots[i].nbytes
            space.bases += 1
    else:
        offsets, arena = arrange(_lifetimes(space, own), orders)
        for i, offset in zip(own, offsets, strict=True):
            space.slots[i].offset = offset
    for i, slot in enumerate(space.slots):
        home = space.slots[_home(space, i)]
        slot.base, slot.offset = home.base, home.offset
    return arena, slots


def _write(
    space: Workspace, specs: Mapping[str, Spec], separate: bool
) -> tuple[Array, tuple[str, ...], tuple[Kernel, ...]]:
    """The program's words, the names of its kernels, and the word range of each record.

    Steps too small to gain from sharing are not shared, except in plans with `separate`, which exist to test kernels.
    """
    kernels: dict[str, int] = {}
    words: list[int] = []
    records: list[Kernel] = []
    touched = _Touched()
    for record, (operations, nbytes) in zip(space.records, _work(space, specs), strict=True):
        begin, jumps = len(words), len(records) in space.jumps
        seconds = cost.seconds(record.kernel, operations, nbytes, space.target.lanes)
        shared = record.parallel and (separate or cost.shared(seconds))
        operands = record.step.operands
        spans = [_span(space, o, record.unit) for o in operands if o is not None and o.value is None]
        meets = jumps or any(touched.clash(span, shared) for span in spans)
        if meets:
            touched = _Touched()
        for span in spans:
            touched.add(span, shared or jumps)
        flags = (PARALLEL if shared else 0) | (MEET if meets else 0) | (JUMP if jumps else 0) | (record.unit << 8)
        words += [-1 if jumps else kernels.setdefault(record.kernel, len(kernels)), 0, flags]
        for operand in operands:
            if operand is None:
                words += [NULL, 0]
            else:
                slot = space.slots[operand.slot]
                words += [slot.base, operand.offset + slot.offset]
        words += record.step.numbers()
        words[begin + LENGTH] = len(words) - begin
        end = len(words)
        records.append(Kernel(record.kernel, record.unit, begin, end, operations, nbytes, seconds, shared, meets))
    starts = [*(record.begin for record in records), len(words)]
    for number, target in space.jumps.items():
        words[starts[number] + _WORDS] = starts[target] - starts[number]
        words[starts[number] + _STEPS] = target - number
    return np.array(words, np.int64), tuple(kernels), tuple(records)


_WORDS, _STEPS = (GoTo.layout.by_name[name].word for name in ("words", "steps"))
"""Positions of a jump's distances in its record."""
_MOVES = ("copy.", "pad", "pack", "transpose")
"""Parts of the names of kernels that do no arithmetic."""


def _work(space: Workspace, specs: Mapping[str, Spec]) -> list[tuple[int, int]]:
    """Operations and bytes of every record: a unit's operations are divided among its computing records by bytes."""
    sizes = [cost.touched(record.step) for record in space.records]
    of_unit: dict[int, list[int]] = {}
    for i, record in enumerate(space.records):
        of_unit.setdefault(record.unit, []).append(i)
    counts = [0] * len(sizes)
    for unit, mine in of_unit.items():
        total = sum(
            cost.operations(n, [specs.get(x) for x in n.inputs], [specs.get(x) for x in n.outputs])
            for n in space.units[unit]
        )
        computing = [i for i in mine if not any(word in space.records[i].kernel for word in _MOVES)] or mine
        weight = sum(sizes[i] for i in computing) or 1
        for i in computing:
            counts[i] = total * sizes[i] // weight
    return list(zip(counts, sizes, strict=True))


def _steps(
    bound: Sequence[BoundUnit], units: Sequence[tuple[Node, ...]], records: Sequence[Kernel]
) -> tuple[Step, ...]:
    """Merge neighbouring native units into one call."""
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
    """Byte range that a step accesses; `writes` unless an earlier unit or the caller filled the buffer."""

    base: int
    start: int
    end: int
    writes: bool


def _span(space: Workspace, operand: Operand, unit: int) -> _Span:
    slot = space.slots[operand.slot]
    if slot.scratch:
        return _Span(slot.base, slot.offset, slot.offset + slot.nbytes, True)
    start = operand.offset + slot.offset
    return _Span(slot.base, start, start + operand.spec.nbytes, slot.shared or slot.first == unit)


def _extent(space: Workspace, operand: Operand | None) -> int:
    """The bytes that an operand has from its offset on; a part of scratch memory has all that follows."""
    if operand is None:
        return 0
    slot = space.slots[operand.slot]
    return slot.nbytes - operand.offset if slot.scratch else operand.spec.nbytes


class _Touched:
    """The accesses of steps since the last barrier, and whether a new step conflicts with one of them.

    Two steps may not run at the same time if they access the same byte and one of them writes it. The first worker need
    not wait for steps that it ran alone: such a step conflicts only with steps shared by all workers.
    """

    def __init__(self) -> None:
        self._ranges: dict[tuple[int, bool, bool], Spans] = {}
        """By base; the key also says whether the step writes, and whether all workers shared it."""

    def add(self, span: _Span, shared: bool) -> None:
        """Record a step's access."""
        self._ranges.setdefault((span.base, span.writes, shared), Spans()).add(span.start, span.end)

    def clash(self, span: _Span, shared: bool) -> bool:
        """Whether a step that accesses `span` must wait for one of the recorded steps."""
        for by_all in (True, False) if shared else (True,):
            for writes in (True, False) if span.writes else (True,):
                there = self._ranges.get((span.base, writes, by_all))
                if there is not None and there.overlaps(span.start, span.end):
                    return True
        return False
