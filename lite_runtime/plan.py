"""A graph and its inputs' types -> a plan: a native program, nodes only a reference can run, what waits for values.

Everything here is a function of types; nothing runs, except that nodes whose operands are all known are evaluated now.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lite_runtime.errors import MsedgeError, ShapeError
from lite_runtime.graph import Array, Graph, Node, Value, dtype_name, numpy_dtype
from lite_runtime.memory import Lifetime, arrange
from lite_runtime.ops import chain
from lite_runtime.ops.registry import BINDS, INFERS, DataDependent, Inference, NoKernel, Operand, Spec

__all__ = ["FAULT", "Plan", "Step", "fold", "plan"]

NULL, FAULT, ARENA, FIRST_FREE = 0, 1, 2, 3
"""Entries of the table of base addresses: always 0; the fault cell; the arena; then constants, inputs and outputs."""
PARALLEL, MEET = 1, 2
BEFORE = -2
"""First step of a buffer that the caller fills."""
_NEVER_FOLD = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli".split()
    + "If Loop Scan SequenceMap".split()
)


@dataclass(frozen=True)
class Step:
    """One piece of a plan in order: a run of native steps, or a node for its reference."""

    nodes: tuple[Node, ...]
    begin: int = 0
    end: int = 0
    """Words [begin, end) of the program; both 0 for a reference step."""


@dataclass(frozen=True)
class Kernel:
    """One record of the program, for reports: what runs, for which nodes, on which operands."""

    name: str
    unit: int
    begin: int
    end: int


@dataclass(frozen=True)
class Plan:
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
    specs: Mapping[str, Spec] = field(default_factory=dict)


def spec_of(array: Any) -> Spec | None:
    """The type of a run-time value; None for sequences, optionals and strings, which live outside the arena."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OUST":
        return None
    return Spec(dtype_name(array.dtype), array.shape)


def fold(graph: Graph, limit: int) -> Graph:
    """The graph with every node evaluated whose operands are constants: done once, whatever the inputs' shapes."""
    known = dict(graph.constants)
    rest = []
    for node in graph.nodes:
        if all(name in known for name in node.inputs if name):
            specs = {name: spec for name in node.inputs if name and (spec := spec_of(known[name])) is not None}
            if all(name in specs for name in node.inputs if name):
                _check_sizes(node, _infer(node, specs, known) or (), limit)
            if _evaluate(node, known):
                continue
        rest.append(node)
    return Graph(graph.inputs, graph.outputs, tuple(rest), known, graph.name)


def _check_sizes(node: Node, results: Sequence[Spec], limit: int) -> None:
    """Refuse results that memory is not meant to hold, before anything makes them."""
    for spec in results:
        if spec.nbytes > limit:
            raise MsedgeError(
                f"{node.where}: its result {spec.dtype}{list(spec.shape)} exceeds the limit of {limit} bytes"
            )


def _evaluate(node: Node, known: dict[str, Array]) -> bool:
    """Evaluate a node whose operands are all known; whether it was."""
    from lite_runtime import reference

    if node.op in _NEVER_FOLD or any(name and name not in known for name in node.inputs):
        return False
    results = reference.evaluate(node, [known[name] if name else None for name in node.inputs])
    if not all(isinstance(result, np.ndarray) for result in results):
        return False
    known.update((name, result) for name, result in zip(node.outputs, results, strict=False) if name)
    return True


@dataclass
class _Slot:
    """A buffer: `base` is fixed for constants, inputs and outputs; arena buffers get an offset from their lifetime."""

    nbytes: int
    base: int = ARENA
    first: int = -1
    last: int = -1
    offset: int = 0
    home: int = -1
    """The slot whose memory this one takes over, -1: its own."""


@dataclass(frozen=True)
class _Record:
    kernel: str
    operands: tuple[Operand | None, ...]
    numbers: tuple[int | float, ...]
    parallel: bool
    unit: int


class _Planner:
    """State of one planning: values' operands, slots, records."""

    def __init__(self, pack: Callable[[Operand, str, Callable[[Array], Array]], Array], lanes: int) -> None:
        self.pack, self.lanes = pack, lanes
        self.slots: list[_Slot] = []
        self.bases = FIRST_FREE
        self.constants: dict[int, Array] = {}
        self.operands: dict[str, Operand] = {}
        self.records: list[_Record] = []
        self.reuses: list[tuple[int, int, int]] = []
        self.packed_slots: dict[tuple[int, str], Operand] = {}
        self.fixed_values: dict[int, Operand] = {}
        self.unit = 0

    def slot(self, nbytes: int, base: int = ARENA) -> int:
        self.slots.append(_Slot(nbytes, base))
        return len(self.slots) - 1

    def external(self, spec: Spec) -> Operand:
        """An operand with a base of its own."""
        slot = self.slot(spec.nbytes, self.bases)
        self.bases += 1
        return Operand(spec, slot)

    def fixed(self, array: Array) -> Operand:
        """A constant's operand, one a distinct array."""
        held = self.fixed_values.get(id(array))
        if held is not None and held.spec.shape == array.shape:
            return held
        array = np.ascontiguousarray(array).reshape(array.shape)
        operand = self.external(Spec(dtype_name(array.dtype), array.shape))
        self.constants[self.slots[operand.slot].base] = array
        operand = Operand(operand.spec, operand.slot, 0, array)
        self.fixed_values[id(array)] = operand
        return operand

    def touch(self, operand: Operand | None) -> None:
        if operand is not None:
            slot = self.slots[operand.slot]
            slot.first = self.unit if slot.first == -1 else slot.first
            slot.last = max(slot.last, self.unit)


class _NodeBinder:
    """The `Binder` of one unit: a node, or a chain of elementwise nodes."""

    def __init__(self, planner: _Planner, nodes: tuple[Node, ...], specs: Mapping[str, Spec]) -> None:
        self._planner = planner
        self.node = nodes[-1]
        self.lanes = planner.lanes
        self._specs = specs
        inner = {name for node in nodes[:-1] for name in node.outputs}
        names = (
            [name for node in nodes for name in node.inputs if name not in inner]
            if len(nodes) > 1
            else self.node.inputs
        )
        self.inputs = [self.operand(name) for name in names]
        self.results: list[Operand | None] = [
            Operand(specs[name], planner.slot(specs[name].nbytes)) if name else None for name in self.node.outputs
        ]
        self.outputs: Sequence[Operand | None] = list(self.results)

    def operand(self, name: str) -> Operand | None:
        return self._planner.operands[name] if name else None

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)

    def constant(self, array: Array) -> Operand:
        return self._planner.fixed(np.asarray(array))

    def packed(self, source: Operand, layout: str, pack: Callable[[Array], Array]) -> Operand:
        key = (source.slot, layout)
        if key not in self._planner.packed_slots:
            self._planner.packed_slots[key] = self._planner.fixed(self._planner.pack(source, layout, pack))
        return self._planner.packed_slots[key]

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Operand:
        spec = Spec(dtype, tuple(int(d) for d in shape))
        return Operand(spec, self._planner.slot(spec.nbytes))

    def emit(
        self,
        kernel: str,
        operands: Sequence[Operand | None],
        numbers: Sequence[int | float] = (),
        *,
        parallel: bool = True,
    ) -> None:
        record = _Record(kernel, tuple(operands), tuple(numbers), parallel, self._planner.unit)
        self._planner.records.append(record)
        for operand in operands:
            self._planner.touch(operand)

    def view(self, output: int, of: Operand, offset: int = 0) -> None:
        result = self.results[output]
        assert result is not None
        if of.value is not None:
            raise NoKernel("a view of a constant")
        self.results[output] = Operand(result.spec, of.slot, of.offset + offset)

    def reuse(self, output: int, of: Operand | None) -> None:
        result = self.outputs[output]
        if of is not None and result is not None and of.offset == 0 and of.value is None:
            self._planner.reuses.append((result.slot, of.slot, self._planner.unit))


def plan(
    graph: Graph,
    given: Mapping[str, Spec],
    *,
    pack: Callable[[Operand, str, Callable[[Array], Array]], Array],
    lanes: int,
    native: bool = True,
    limit: int = 4 << 30,
    separate: bool = False,
) -> Plan:
    """Plan a run of `graph` (its constants folded) on inputs of these types.

    pack: makes and keeps packed constants. lanes: float32 in a vector of the target. native=False: references only.
    limit: bytes any plan may hold at a time. separate: every buffer gets a base of its own instead of a place in the
    arena, so that a run can put each against a guard page.
    Raises ShapeError where operands do not fit, MsedgeError beyond the limit.
    """
    known = dict(graph.constants)
    specs: dict[str, Spec] = dict(given)
    ready, frontier, waiting = _sort_out(graph, specs, known, limit)
    wanted = {v.name for v in graph.outputs} | {
        n for node in (*frontier, *waiting) for n in (*node.inputs, *node.captures)
    }
    ready = _prune(ready, wanted)
    planner = _Planner(pack, lanes)
    inputs = {v.name: planner.external(specs[v.name]) for v in graph.inputs if v.name in specs}
    for operand in inputs.values():
        planner.slots[operand.slot].first = BEFORE
    planner.operands.update(inputs)
    for name in {n for node in ready for n in (*node.inputs, *node.captures)} | wanted:
        if name in known and spec_of(known[name]) is not None:
            planner.operands[name] = planner.fixed(known[name])
    units = _units(ready, specs, wanted, native)
    steps = _bind_all(planner, units, specs, native)
    outputs, copies = _outputs(planner, graph, frontier, waiting, inputs, known)
    return _finish(
        planner, graph, steps, units, inputs, outputs, copies, specs, known, frontier, waiting, limit, separate
    )


def _sort_out(
    graph: Graph, specs: dict[str, Spec], known: dict[str, Array], limit: int
) -> tuple[list[Node], list[Node], list[Node]]:
    """Nodes whose results' types are known now; those that must run to tell; those that wait for them."""
    for name, array in known.items():
        spec = spec_of(array)
        if spec is not None:
            specs[name] = spec
    ready: list[Node] = []
    frontier: list[Node] = []
    waiting: list[Node] = []
    unknown: set[str] = {v.name for v in graph.inputs if v.name not in specs}
    late: set[str] = set()
    for node in graph.nodes:
        reads = [n for n in (*node.inputs, *node.captures) if n]
        if any(n in late for n in reads):
            waiting.append(node)
            late.update(node.outputs)
            continue
        results = None if any(n in unknown or n not in specs for n in reads) else _infer(node, specs, known)
        if results is None:
            frontier.append(node)
            late.update(node.outputs)
            continue
        _check_sizes(node, results, limit)
        specs.update(zip(node.outputs, results, strict=False))
        if node.op == "Shape" or node.op == "Size":
            shape = specs[node.inputs[0]].shape
            known[node.outputs[0]] = _shape_value(node, shape)
        elif all(n in known for n in reads) and all(s.size <= 1 << 16 for s in results):
            _evaluate(node, known)
        if not all(n in known for n in node.outputs if n):
            ready.append(node)
    return ready, frontier, waiting


def _shape_value(node: Node, shape: tuple[int, ...]) -> Array:
    """Shape's and Size's result, which hangs on a type only."""
    if node.op == "Size":
        return np.array(int(np.prod(shape, dtype=np.int64)), np.int64)
    start: Any = node.attrs.get("start")
    end: Any = node.attrs.get("end")
    return np.array(shape[start:end], np.int64)


def _infer(node: Node, specs: Mapping[str, Spec], known: Mapping[str, Array]) -> Sequence[Spec] | None:
    """The node's results' types; None where only a run tells."""
    rule = INFERS.get(node.op)
    if rule is None:
        return None
    operands = [specs[name] if name else None for name in node.inputs]
    try:
        results = rule(Inference(node, operands, [known.get(name) if name else None for name in node.inputs]))
    except DataDependent:
        return None
    if len(results) < len([n for n in node.outputs if n]):
        raise ShapeError(f"{node.where}: gives {len(results)} results, {len(node.outputs)} are asked for")
    if any(spec.dtype == "string" for spec in results):
        return None
    return results


def _prune(nodes: Sequence[Node], wanted: Iterable[str]) -> list[Node]:
    """The nodes that something wanted hangs on, in order."""
    needed = set(wanted)
    kept: list[Node] = []
    for node in reversed(nodes):
        if needed.intersection(n for n in node.outputs if n):
            kept.append(node)
            needed.update((*node.inputs, *node.captures))
    return kept[::-1]


def _units(
    nodes: Sequence[Node], specs: Mapping[str, Spec], wanted: Iterable[str], native: bool
) -> list[tuple[Node, ...]]:
    """Nodes grouped into what is bound together."""
    if not native:
        return [(node,) for node in nodes]
    uses = Counter(name for node in nodes for name in dict.fromkeys((*node.inputs, *node.captures)))
    uses.update(wanted)
    return chain.group(nodes, specs, uses, frozenset(wanted))


def _bind_all(
    planner: _Planner, units: list[tuple[Node, ...]], specs: Mapping[str, Spec], native: bool
) -> list[tuple[int, int, int]]:
    """Bind every unit, splitting chains no kernel takes; (unit, first record, last record + 1), equal: reference."""
    steps: list[tuple[int, int, int]] = []
    pending = list(reversed(units))
    units.clear()
    while pending:
        nodes = pending.pop()
        planner.unit = len(units)
        begin = len(planner.records)
        is_native = native and _bind(planner, nodes, specs)
        if not is_native and len(nodes) > 1:
            pending.extend((node,) for node in reversed(nodes))
            continue
        if not is_native:
            _bind_reference(planner, nodes[0], specs)
        units.append(nodes)
        if is_native and len(planner.records) == begin:
            continue  # views only
        steps.append((planner.unit, begin, len(planner.records)))
    return steps


def _bind(planner: _Planner, nodes: tuple[Node, ...], specs: Mapping[str, Spec]) -> bool:
    """Emit a unit's native steps; False, and nothing changed, where no kernel takes it."""
    node = nodes[-1]
    rule = BINDS.get(node.op)
    if any(node.attrs.get("__never__") for node in nodes) or (rule is None and len(nodes) == 1):
        return False
    marks = len(planner.records), len(planner.reuses), [(s.first, s.last) for s in planner.slots]
    binder = _NodeBinder(planner, nodes, specs)
    try:
        if all(r is None or r.size == 0 for r in binder.results):
            pass  # nothing to compute
        elif len(nodes) > 1:
            chain.bind_chain(binder, nodes)
        else:
            assert rule is not None
            rule(binder)
    except NoKernel:
        del planner.records[marks[0] :], planner.reuses[marks[1] :], planner.slots[len(marks[2]) :]
        for slot, (first, last) in zip(planner.slots, marks[2], strict=True):
            slot.first, slot.last = first, last
        _forget(planner)
        return False
    for name, result in zip(node.outputs, binder.results, strict=True):
        if name:
            assert result is not None
            planner.operands[name] = result
            planner.touch(result)
    for operand in binder.inputs:
        planner.touch(operand)
    return True


def _forget(planner: _Planner) -> None:
    """Drop constants whose slots were rolled back."""
    alive = len(planner.slots)
    planner.packed_slots = {k: o for k, o in planner.packed_slots.items() if o.slot < alive}
    planner.fixed_values = {k: o for k, o in planner.fixed_values.items() if o.slot < alive}
    bases = {s.base for s in planner.slots}
    planner.constants = {base: array for base, array in planner.constants.items() if base in bases}


def _bind_reference(planner: _Planner, node: Node, specs: Mapping[str, Spec]) -> None:
    """Give a reference node's results their slots; its operands must still be there when it runs."""
    for name in node.outputs:
        if name:
            planner.operands[name] = Operand(specs[name], planner.slot(specs[name].nbytes))
    for name in (*node.inputs, *node.captures, *node.outputs):
        if name and name in planner.operands:
            planner.touch(planner.operands[name])


def _outputs(
    planner: _Planner,
    graph: Graph,
    frontier: Sequence[Node],
    waiting: Sequence[Node],
    inputs: Mapping[str, Operand],
    known: Mapping[str, Array],
) -> tuple[dict[str, int], list[str]]:
    """Bases of the outputs that are written in place, and the values that must be copied out."""
    planner.unit += 1
    outer = {o.slot for o in inputs.values()}
    produced = {name for node in (*frontier, *waiting) for name in node.outputs}
    later = {n for node in (*frontier, *waiting) for n in (*node.inputs, *node.captures) if n}
    outputs: dict[str, int] = {}
    copies: list[str] = []
    for name in dict.fromkeys(v.name for v in graph.outputs if v.name not in produced):
        operand = planner.operands.get(name)
        if operand is None or name in known:
            continue
        slot = planner.slots[operand.slot]
        direct = slot.base == ARENA and operand.offset == 0 and slot.nbytes == operand.spec.nbytes
        if direct and operand.slot not in outer and name not in later:
            slot.base = planner.bases
            planner.bases += 1
            outputs[name] = slot.base
        else:
            planner.touch(operand)
            copies.append(name)
    for name in later:
        if name in planner.operands and name not in known:
            planner.touch(planner.operands[name])
            copies.append(name)
    return outputs, list(dict.fromkeys(copies))


def _share(planner: _Planner) -> None:
    """Let results take over the memory of operands that die in the same step."""

    def root(i: int) -> int:
        while planner.slots[i].home >= 0:
            i = planner.slots[i].home
        return i

    for result, source, unit in planner.reuses:
        into, out_of = planner.slots[result], planner.slots[root(source)]
        if into.home >= 0 or into.base != ARENA or out_of.base != ARENA or into is out_of:
            continue
        if out_of.last == unit and into.first == unit and out_of.nbytes == into.nbytes:
            into.home = root(source)
            out_of.last = max(out_of.last, into.last)


def _finish(
    planner: _Planner,
    graph: Graph,
    bound: Sequence[tuple[int, int, int]],
    units: Sequence[tuple[Node, ...]],
    inputs: Mapping[str, Operand],
    outputs: Mapping[str, int],
    copies: Sequence[str],
    specs: Mapping[str, Spec],
    known: Mapping[str, Array],
    frontier: Sequence[Node],
    waiting: Sequence[Node],
    limit: int,
    separate: bool,
) -> Plan:
    """Lay out the arena, write the program."""
    arena, slots = _lay_out(planner, separate)
    if arena > limit:
        raise MsedgeError(f"this model needs an arena of {arena} bytes for these inputs, the limit is {limit}")
    kernels: dict[str, int] = {}
    words: list[int] = []
    records: list[Kernel] = []
    starts = [0]
    touched: list[_Span] = []
    for record in planner.records:
        begin = len(words)
        spans = [_span(planner, o, record.unit) for o in record.operands if o is not None and o.value is None]
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
                slot = planner.slots[operand.slot]
                words += [slot.base, operand.offset + slot.offset]
        words += [_word(n) for n in record.numbers]
        words[begin + 1] = len(words) - begin
        records.append(Kernel(record.kernel, record.unit, begin, len(words)))
        starts.append(len(words))
    where = {
        name: (planner.slots[o.slot].base, o.offset + planner.slots[o.slot].offset, o.spec)
        for name, o in planner.operands.items()
    }
    rest = _rest(graph, frontier, waiting, specs, known)
    return Plan(
        np.array(words or [0], np.int64)[: len(words)],
        tuple(kernels),
        tuple(records),
        tuple(units),
        tuple(_merge(bound, units, starts)),
        where,
        planner.bases,
        arena,
        planner.constants,
        slots,
        {name: planner.slots[o.slot].base for name, o in inputs.items()},
        outputs,
        tuple(copies),
        known,
        tuple(frontier),
        rest,
        specs,
    )


def _lay_out(planner: _Planner, separate: bool) -> tuple[int, dict[int, int]]:
    """Give every arena buffer its place; the arena's size and, with `separate`, the bytes of each buffer's own base."""
    _share(planner)
    own = [s for s in planner.slots if s.base == ARENA and s.home < 0 and s.first >= 0]
    slots: dict[int, int] = {}
    arena = 0
    if separate:
        for slot in own:
            slot.base = planner.bases
            slots[slot.base] = slot.nbytes
            planner.bases += 1
    else:
        offsets, arena = arrange([Lifetime(s.nbytes, s.first, s.last) for s in own])
        for slot, offset in zip(own, offsets, strict=True):
            slot.offset = offset
    for slot in planner.slots:
        home = slot
        while home.home >= 0:
            home = planner.slots[home.home]
        slot.base, slot.offset = home.base, home.offset
    return arena, slots


def _merge(
    bound: Sequence[tuple[int, int, int]], units: Sequence[tuple[Node, ...]], starts: Sequence[int]
) -> list[Step]:
    """Neighbouring native units walk in one call."""
    steps: list[Step] = []
    for unit, begin, end in bound:
        if begin == end:
            steps.append(Step(units[unit]))
        elif steps and steps[-1].end:
            steps[-1] = Step(steps[-1].nodes + units[unit], steps[-1].begin, starts[end])
        else:
            steps.append(Step(units[unit], starts[begin], starts[end]))
    return steps


def _rest(
    graph: Graph,
    frontier: Sequence[Node],
    waiting: Sequence[Node],
    specs: Mapping[str, Spec],
    known: Mapping[str, Array],
) -> Graph | None:
    """The graph that remains once the frontier has run; its inputs are all values it still needs."""
    if not frontier:
        return None
    made = {name for node in waiting for name in node.outputs}
    needs = {n for node in waiting for n in (*node.inputs, *node.captures) if n} | {v.name for v in graph.outputs}
    constants = {n: known[n] for n in needs if n in known}
    inputs = tuple(Value(n, "", None, "any") for n in sorted(needs - made - set(constants)))
    return Graph(inputs, graph.outputs, tuple(waiting), constants, graph.name)


class _Span(NamedTuple):
    """Bytes a step touches; `writes` unless the buffer was filled by an earlier unit or by the caller."""

    base: int
    start: int
    end: int
    writes: bool


def _span(planner: _Planner, operand: Operand, unit: int) -> _Span:
    slot = planner.slots[operand.slot]
    start = operand.offset + slot.offset
    return _Span(slot.base, start, start + operand.spec.nbytes, slot.first == unit)


def _clash(a: _Span, b: _Span) -> bool:
    """Whether one of two steps must wait for the other."""
    return (a.writes or b.writes) and a.base == b.base and a.start < b.end and b.start < a.end


def _word(number: int | float) -> int:
    """A number of a step record: an integer as it is, a float as its float32 bits."""
    if isinstance(number, float | np.floating):
        return int(struct.unpack("<I", struct.pack("<f", number))[0])
    return int(number)


def empty_array(spec: Spec) -> Array:
    """An uninitialised array of a type."""
    return np.empty(spec.shape, numpy_dtype(spec.dtype))
