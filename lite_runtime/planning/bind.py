"""Binds each unit of a stage to kernels and gives its values buffers; memory addresses are assigned later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime import ops as _registers_all_rules  # noqa: F401
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Node, dtype_name, itemsize
from lite_runtime.ops import chain
from lite_runtime.ops.registry import BINDS, NoKernel, Operand, Spec
from lite_runtime.planning.program import ARENA, FIRST_FREE
from lite_runtime.planning.stage import Stage, spec_of
from lite_runtime.steps.declaration import Gaps, Step

__all__ = ["BEFORE", "BoundUnit", "Choose", "Pack", "Record", "Slot", "Workspace", "bind_stage"]

BEFORE = -2
"""First unit of a buffer that the caller fills."""
LITERAL_BYTES = 4096
"""Largest constant of a binder that is compared by its contents."""
Pack = Callable[[Operand, str, Callable[[Array], Array]], Array]
"""Packs and caches a constant in the order in which a kernel reads it: (source, name of the order, function)."""

Choose = Callable[[str, str, Sequence[str]], str]
"""Chooses one of several ways to compute something: (operators, key, options) -> option; see `tuning.Choices`."""


class Slot:
    """A buffer of `nbytes`. `base` is fixed for constants, inputs and outputs; an arena buffer gets an `offset` from
    its lifetime, the units `first` to `last`. `home`: the slot whose memory it reuses, -1: its own. `shared`: several
    units write it. `scratch`: each worker may have a part of it that no operand names."""

    __slots__ = ("base", "first", "home", "last", "nbytes", "offset", "scratch", "shared")

    def __init__(self, nbytes: int, base: int) -> None:
        self.nbytes, self.base = nbytes, base
        self.first = self.last = self.home = -1
        self.offset = 0
        self.shared = self.scratch = False


class Record(NamedTuple):
    """A step whose operands have no addresses yet."""

    kernel: str
    step: Step
    parallel: bool
    unit: int


class BoundUnit(NamedTuple):
    """Records [begin, end) compute unit `unit`; an empty range means that its reference does."""

    unit: int
    begin: int
    end: int


def _makes_rows(step: Step, gaps: Gaps, operand: Operand) -> bool:
    """Whether the step writes all of `operand` in consecutive rows, between which it could leave gaps."""
    made = getattr(step, gaps.operand)
    alone = not gaps.absent or getattr(step, gaps.absent) is None
    whole = made.slot == operand.slot and made.size == operand.size and operand.offset == 0
    dense = getattr(step, gaps.batches) == 1 and operand.shape[-1] == getattr(step, gaps.row)
    return bool(whole and alone and dense)


_Undo = tuple[Callable[..., Any], tuple[Any, ...]]
"""Undoes one change: a function and its arguments."""


class Workspace:
    """State while planning: operands of values, slots, records, units.

    Every change made by binding a unit is recorded in an undo log, so that undoing a unit without a kernel costs only
    as much as the unit changed, however large the plan is.
    """

    def __init__(self, pack: Pack, lanes: int, choose: Choose) -> None:
        self.pack, self.lanes, self.choose = pack, lanes, choose
        self.slots: list[Slot] = []
        self.bases = FIRST_FREE
        self.constants: dict[int, Array] = {}
        self.operands: dict[str, Operand] = {}
        self.records: list[Record] = []
        self.units: list[tuple[Node, ...]] = []
        self.reuses: list[tuple[int, int, int]] = []
        self.packed_slots: dict[tuple[int, str], Operand] = {}
        self.fixed_values: dict[int, Operand] = {}
        self.literals: dict[tuple[str, tuple[int, ...], bytes], Operand] = {}
        self.uses: Mapping[str, int] = {}
        """Number of readers of every value; values that leave the plan count one more."""
        self.unit = 0
        self._touching: dict[int, list[int]] = {}
        """Numbers of the records with an operand in a slot, by slot, in order."""
        self._undo: list[_Undo] = []

    def begin(self) -> None:
        """Start recording changes that can be undone."""
        self._undo.clear()

    def take_back(self) -> None:
        """Undo every change since `begin`, in reverse order. Base numbers are not reused."""
        for change, arguments in reversed(self._undo):
            change(*arguments)
        self._undo.clear()

    def slot(self, nbytes: int, base: int = ARENA) -> int:
        """The number of a new buffer."""
        self.slots.append(Slot(nbytes, base))
        self._undo.append((self.slots.pop, ()))
        return len(self.slots) - 1

    def external(self, spec: Spec) -> Operand:
        """An operand with its own base."""
        slot = self.slot(spec.nbytes, self.bases)
        self.bases += 1
        return Operand(spec, slot)

    def fixed(self, array: Array) -> Operand:
        """A constant's operand; each distinct array has one."""
        held = self.fixed_values.get(id(array))
        if held is not None and held.spec.shape == array.shape:
            return held
        array = np.ascontiguousarray(array).reshape(array.shape)
        operand = self.external(Spec(dtype_name(array.dtype), array.shape))
        base = self.slots[operand.slot].base
        self.constants[base] = array
        operand = Operand(operand.spec, operand.slot, 0, array)
        self._undo += [(self.constants.pop, (base,)), _restore(self.fixed_values, id(array))]
        self.fixed_values[id(array)] = operand
        return operand

    def literal(self, array: Array) -> Operand:
        """A constant that an operator's binder makes; small ones with equal contents share one operand."""
        if array.nbytes > LITERAL_BYTES:
            return self.fixed(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.literals:
            operand = self.fixed(array)
            self._undo.append((self.literals.pop, (key,)))
            self.literals[key] = operand
        return self.literals[key]

    def packed(self, source: Operand, layout: str, pack: Callable[[Array], Array]) -> Operand:
        """A constant in the order in which a kernel reads it; one per source and order."""
        key = (source.slot, layout)
        if key not in self.packed_slots:
            operand = self.fixed(self.pack(source, layout, pack))
            self._undo.append((self.packed_slots.pop, (key,)))
            self.packed_slots[key] = operand
        return self.packed_slots[key]

    def touch(self, operand: Operand | None) -> None:
        """Extend the lifetime of this operand's buffer to the current unit."""
        if operand is not None:
            self._live(operand.slot, self.unit)

    def _live(self, number: int, unit: int) -> None:
        """Include `unit` in a slot's lifetime."""
        slot = self.slots[number]
        if slot.first == -1 or unit < slot.first or unit > slot.last:
            self._undo.append((_set_life, (slot, slot.first, slot.last)))
            slot.first = unit if slot.first == -1 else min(slot.first, unit)
            slot.last = max(slot.last, unit)

    def append(self, record: Record) -> None:
        """Add a record of the current unit."""
        for slot in {operand.slot for operand in record.step.operands if operand is not None}:
            there = self._touching.setdefault(slot, [])
            there.append(len(self.records))
            self._undo.append((there.pop, ()))
        self.records.append(record)
        self._undo.append((self.records.pop, ()))
        for operand in record.step.operands:
            self.touch(operand)

    def only_record(self, slot: int) -> int | None:
        """The number of the only record with an operand in a slot; None if there are none or several."""
        there = self._touching.get(slot, ())
        return there[0] if len(there) == 1 else None

    def redirect(self, number: int, record: Record, old: int, new: int) -> None:
        """Replace a record that wrote slot `old` by one that writes slot `new`; `old` has no other users."""
        replaced, slot, shared = self.records[number], self.slots[new], self.slots[new].shared
        held = self.slots[old]
        self._undo += [
            (_set_life, (held, held.first, held.last)),
            (self.records.__setitem__, (number, replaced)),
            (setattr, (slot, "shared", shared)),
            _restore(self._touching, old),
            _restore(self._touching, new),
        ]
        self.records[number] = record
        held.first = held.last = -1
        self._touching[old] = []
        self._touching[new] = sorted({*self._touching.get(new, ()), number})
        slot.shared = True
        self._live(new, record.unit)

    def reuse(self, result: Operand, of: Operand) -> None:
        """Allow the current unit's result to reuse the memory of an operand."""
        self.reuses.append((result.slot, of.slot, self.unit))
        self._undo.append((self.reuses.pop, ()))


def _set_life(slot: Slot, first: int, last: int) -> None:
    slot.first, slot.last = first, last


def _restore(table: dict[Any, Any], key: Any) -> _Undo:
    """An undo entry that restores the current value of a table's key."""
    return (table.__setitem__, (key, table[key])) if key in table else (table.pop, (key, None))


class _NodeBinder:
    """The `Binder` of one unit: a node, or a chain of elementwise nodes."""

    def __init__(self, space: Workspace, nodes: tuple[Node, ...], specs: Mapping[str, Spec]) -> None:
        self._space = space
        self.node = nodes[-1]
        self.label = f"{'+'.join(node.op for node in nodes)} {self.node.name or self.node.outputs[0]}"
        self.lanes = space.lanes
        inner = {name for node in nodes[:-1] for name in node.outputs}
        names = (
            [name for node in nodes for name in node.inputs if name not in inner]
            if len(nodes) > 1
            else self.node.inputs
        )
        self.inputs = [self.operand(name) for name in names]
        self.results: list[Operand | None] = [
            Operand(specs[name], space.slot(specs[name].nbytes)) if name else None for name in self.node.outputs
        ]
        self.outputs: Sequence[Operand | None] = list(self.results)

    def operand(self, name: str) -> Operand | None:
        return self._space.operands[name] if name else None

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)

    def constant(self, array: Array) -> Operand:
        return self._space.literal(np.asarray(array))

    def packed(self, source: Operand, layout: str, pack: Callable[[Array], Array]) -> Operand:
        return self._space.packed(source, layout, pack)

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Operand:
        spec = Spec(dtype, tuple(int(d) for d in shape))
        operand = Operand(spec, self._space.slot(spec.nbytes))
        self._space.slots[operand.slot].scratch = True
        return operand

    def emit(self, step: Step, *, kernel: str | None = None, parallel: bool = True) -> None:
        self._space.append(Record(step.kernel(kernel), step, parallel, self._space.unit))

    def view(self, output: int, of: Operand, offset: int = 0) -> None:
        result = self.results[output]
        assert result is not None
        if of.value is not None:
            raise NoKernel("a view of a constant")
        self.results[output] = Operand(result.spec, of.slot, of.offset + offset)

    def choose(self, key: str, options: Sequence[str]) -> str:
        return self._space.choose(self.label, key, options)

    def place(self, part: int, target: Operand, at: int, row: int) -> bool:
        space, name, operand = self._space, self.node.inputs[part], self.inputs[part]
        assert operand is not None
        at_record = space.only_record(operand.slot)
        once = space.uses.get(name, 0) == 1 == list(self.node.inputs).count(name)
        if at_record is None or not once or space.slots[operand.slot].base != ARENA:
            return False
        record = space.records[at_record]
        step, gaps = record.step, record.step.gaps
        if gaps is None or name not in space.units[record.unit][-1].outputs or not _makes_rows(step, gaps, operand):
            return False
        run = int(getattr(step, gaps.row))
        rows = operand.size // run
        spec = Spec(operand.dtype, ((rows - 1) * row + run,))
        into = Operand(spec, target.slot, target.offset + at * itemsize(operand.dtype))
        apart = step.replace(**{gaps.operand: into, gaps.row: row})
        space.redirect(at_record, record._replace(step=apart), operand.slot, target.slot)
        return True

    def reuse(self, output: int, of: Operand | None) -> None:
        result = self.outputs[output]
        if of is not None and result is not None and of.offset == 0 and of.value is None:
            self._space.reuse(result, of)


def bind_stage(space: Workspace, stage: Stage, native: bool) -> list[BoundUnit]:
    """Bind a stage's nodes in order, chains of elementwise nodes together; returns the bound units."""
    read = (n for node in stage.ready for n in (*node.inputs, *node.captures))
    for name in dict.fromkeys((*read, *sorted(stage.later), *stage.outputs)):  # in an order without hashes
        if name in stage.known and spec_of(stage.known[name]) is not None:
            space.operands[name] = space.fixed(stage.known[name])
    bound: list[BoundUnit] = []
    space.uses = _uses(stage)
    pending = _units(stage, space.uses)[::-1] if native else [(node,) for node in reversed(stage.ready)]
    while pending:
        nodes = pending.pop()
        space.unit, begin = len(space.units), len(space.records)
        if native and _bind(space, nodes, stage.specs):
            end = len(space.records)
        elif len(nodes) > 1:
            pending.extend((node,) for node in reversed(nodes))
            continue
        else:
            _bind_reference(space, nodes[0], stage.specs)
            end = begin
            bound.append(BoundUnit(space.unit, begin, end))
        if end > begin:
            bound.append(BoundUnit(space.unit, begin, end))
        space.units.append(nodes)
    space.unit = len(space.units)
    return bound


def _uses(stage: Stage) -> Mapping[str, int]:
    uses = Counter(name for node in stage.ready for name in dict.fromkeys((*node.inputs, *node.captures)))
    uses.update(stage.later.union(stage.outputs))
    return uses


def _units(stage: Stage, uses: Mapping[str, int]) -> list[tuple[Node, ...]]:
    """Nodes grouped into units that are bound together."""
    wanted = stage.later.union(stage.outputs)
    known = {name: array for name, array in stage.known.items() if spec_of(array) is not None}
    return chain.group(stage.ready, stage.specs, uses, wanted, known)


def _bind(space: Workspace, nodes: tuple[Node, ...], specs: Mapping[str, Spec]) -> bool:
    """Emit a unit's native steps; returns False and changes nothing if no kernel supports it."""
    node = nodes[-1]
    rule = BINDS.get(node.op)
    if rule is None and len(nodes) == 1:
        return False
    space.begin()
    binder = _NodeBinder(space, nodes, specs)
    try:
        if all(r is None or r.size == 0 for r in binder.results):
            pass  # nothing to compute
        elif len(nodes) > 1:
            chain.bind_chain(binder, nodes)
        else:
            assert rule is not None
            rule(binder)
    except NoKernel:
        space.take_back()
        return False
    for name, result in zip(node.outputs, binder.results, strict=True):
        if name:
            assert result is not None
            space.operands[name] = result
            space.touch(result)
    for operand in binder.inputs:
        space.touch(operand)
    return True


def _bind_reference(space: Workspace, node: Node, specs: Mapping[str, Spec]) -> None:
    """Give the results of a node run by reference their slots; its operands must still be alive when it runs."""
    for name in node.outputs:
        if name:
            space.operands[name] = Operand(specs[name], space.slot(specs[name].nbytes))
    for name in (*node.inputs, *node.captures, *node.outputs):
        if name and name in space.operands:
            space.touch(space.operands[name])
