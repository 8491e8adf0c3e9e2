"""What planning has decided so far: buffers and their lifetimes, records, the operands of values; with an undo log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Node, Spec, dtype_name
from lite_runtime.planning.program import ARENA, FIRST_FREE
from lite_runtime.steps.declaration import Step
from lite_runtime.steps.operand import Operand
from lite_runtime.targets import Target

__all__ = ["BEFORE", "Choose", "Pack", "Record", "Slot", "Workspace"]

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


_Undo = tuple[Callable[..., Any], tuple[Any, ...]]
"""Undoes one change: a function and its arguments."""


class Workspace:
    """State while planning: operands of values, slots, records, units.

    Every change made by binding a unit is recorded in an undo log, so that undoing a unit without a kernel costs only
    as much as the unit changed, however large the plan is.
    """

    def __init__(self, pack: Pack, target: Target, choose: Choose, turns: int = 0) -> None:
        """turns: of all loops that a run may take."""
        self.pack, self.target, self.choose, self.turns = pack, target, choose, turns
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
        self.jumps: dict[int, int] = {}
        """Number of each record that jumps, and of the record it jumps to."""
        self.refusals: dict[int, str] = {}
        """By unit: why a run that reaches it fails."""
        self.left: Operand | None = None
        """Inside a loop: the turns that the run may still take."""
        self.uses: Mapping[str, int] = {}
        """Number of readers of every value; values that leave the plan count one more."""
        self.unit = 0
        self._touching: dict[int, list[int]] = {}
        """Numbers of the records with an operand in a slot, by slot, in order."""
        self._undo: list[_Undo] = []

    def mark(self) -> int:
        """A point in the undo log to which `take_back` returns."""
        return len(self._undo)

    def take_back(self, mark: int) -> None:
        """Undo every change since that point, in reverse order. Base numbers are not reused."""
        while len(self._undo) > mark:
            change, arguments = self._undo.pop()
            change(*arguments)

    def settle(self) -> None:
        """Forget how to undo the changes so far."""
        self._undo.clear()

    def enter(self, nodes: tuple[Node, ...]) -> int:
        """Begin a unit that computes these nodes; its number."""
        self.unit = len(self.units)
        self.units.append(nodes)
        self._undo.append((self.units.pop, ()))
        return self.unit

    def define(self, name: str, operand: Operand) -> None:
        """Set the operand of a value."""
        self._undo.append(_restore(self.operands, name))
        self.operands[name] = operand

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

    def jump(self, number: int, target: int) -> None:
        """Let record `number`, a `GoTo`, jump to record `target`."""
        self.jumps[number] = target
        self._undo.append((self.jumps.pop, (number,)))

    def refuse(self, why: str) -> None:
        """A run that reaches the current unit fails with this message."""
        self.refusals[self.unit] = why
        self._undo.append((self.refusals.pop, (self.unit,)))

    def keep_alive(self, since: int) -> None:
        """Extend the lifetime of every buffer from before unit `since` that was used since then to the current unit:
        what a loop reads must outlive its last turn."""
        for number, slot in enumerate(self.slots):
            if slot.first < since <= slot.last:
                self._live(number, self.unit)

    def touching(self, slot: int) -> Sequence[int]:
        """The numbers of the records with an operand in a slot, in order."""
        return self._touching.get(slot, ())

    def only_record(self, slot: int) -> int | None:
        """The number of the only record with an operand in a slot; None if there are none or several."""
        there = self.touching(slot)
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
