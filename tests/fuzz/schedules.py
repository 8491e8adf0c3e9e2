"""Programs executed in extreme orders that their barriers allow, step by step, without threads.

    ascending, descending    between two barriers each worker does all of its work before the next one begins
    apart                    every step alone: what it reads and writes is what the planner was told, and nothing else

A barrier that is missing shows in one of the first two, whatever a machine's timing: of two steps that clash, each runs
first once. The third is what barriers are placed by: a step may write only what it says it writes, and what it leaves
there may not hang on other bytes of the arena, inputs or outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np

import lite_runtime
from lite_runtime import Model, MsedgeError
from lite_runtime.graph import Array
from lite_runtime.planning import cost
from lite_runtime.planning import plan as planning
from lite_runtime.planning.plan import JUMP
from lite_runtime.planning.program import ARENA, Kernel, Plan, Step
from lite_runtime.running.executor import Bound
from lite_runtime.steps.control import GoTo
from lite_runtime.steps.declaration import FLAGS, KERNEL, named
from tests.fuzz.agreement import Disagreement

__all__ = ["WAYS", "Fault", "in_all_ways", "walked"]

GO_TO = named(GoTo)
WAYS = ("ascending", "descending", "apart")
WORKERS = 3
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
Memory = Mapping[int, Array]
"""Bytes by where they lie: bases may share an array, as states do that begin alike."""


class Fault(Exception):
    """A step touched what it does not name."""


class _Span:
    """Bytes [start, end) from a base that a step names, and whether it may write them."""

    def __init__(self, base: int, start: int, end: int, writes: bool) -> None:
        self.base, self.bytes, self.writes = base, slice(start, end), writes

    def mark(self, marks: Memory, bases: Array) -> None:
        """Mark these bytes, if they are of memory that is looked after."""
        array = marks.get(int(bases[self.base]))
        if array is not None:
            array[self.bytes] = True


@contextmanager
def walked(way: str, workers: int) -> Iterator[None]:
    """Models that are loaded and run herein share every step that can be, among so many workers, and walk their
    programs in one of `WAYS`. Raises Fault."""
    spans: list[tuple[Array, list[list[_Span]]]] = []
    write = planning._write

    def written(space: Any, specs: Any, separate: bool) -> Any:
        made = write(space, specs, separate)
        spans.append((made[0], [_named(space, record) for record in space.records]))
        return made

    def walk(self: Bound, step: Step, bases: Array) -> _Walk:
        named = next(s for program, s in spans if program is self.plan.program)
        return _Walk(self, step, bases, named, way, workers)

    with (
        mock.patch.object(planning, "_write", written),
        mock.patch.object(cost, "shared", lambda seconds: True),
        mock.patch.object(Bound, "walk", walk),
    ):
        yield


def in_all_ways(data: bytes, **how: Any) -> Callable[[str, dict[str, Any]], None]:
    """A function that runs a signature as always and in every one of `WAYS`. It raises the MsedgeError that all of them
    raise; Disagreement where results or the state they leave differ in any bit; Fault. how: options of `load`."""

    def scope(way: str) -> Any:
        return walked(way, WORKERS) if way else nullcontext()

    models: dict[str, Model] = {}
    for way in ("", *WAYS):
        with scope(way):
            models[way] = lite_runtime.load(data, backend="native", threads=1, **how)

    def run(signature: str, inputs: dict[str, Any]) -> None:
        ends = {}
        for way, model in models.items():
            with scope(way):
                ends[way] = _end(model, signature, inputs)
        wanted = ends[""]
        for way in WAYS:
            if _bits(ends[way]) != _bits(wanted):
                raise Disagreement(f"{signature}: {way} gives other bits than one worker does")
        if isinstance(wanted, MsedgeError):
            raise wanted

    return run


def _end(model: Model, signature: str, inputs: dict[str, Any]) -> dict[str, Any] | MsedgeError:
    try:
        return model.run(inputs, signature) | {f"state {name}": array for name, array in model.state_dict().items()}
    except MsedgeError as error:
        return error


def _bits(end: dict[str, Any] | MsedgeError) -> Any:
    """All bits of what a run left; of an error its kind: which of two bad indices is told first hangs on the order."""
    if isinstance(end, MsedgeError):
        return type(end)
    arrays = {name: array for name, array in end.items() if isinstance(array, np.ndarray) and array.dtype != object}
    return {name: array.tobytes() for name, array in arrays.items()}


def _named(space: Any, record: Any) -> list[_Span]:
    operands = (operand for operand in record.step.operands if operand is not None and operand.value is None)
    found = (planning._span(space, operand, record.unit) for operand in operands)
    return [_Span(*span) for span in found]


class _Walk:
    """What `threads.Walk` is to a plan."""

    def __init__(
        self, bound: Bound, step: Step, bases: Array, spans: Sequence[list[_Span]], way: str, workers: int
    ) -> None:
        self._bound, self._bases, self._workers = bound, bases, workers
        self._rows = [
            (r, s) for r, s in zip(bound.plan.records, spans, strict=True) if step.begin <= r.begin < step.end
        ]
        self._first = step is bound.plan.steps[0]
        self._way = way

    def go(self) -> None:
        """Walk, over memory that holds nothing of earlier runs."""
        plan = self._bound.plan
        memory = _memory(plan, self._bases)
        if self._first:
            for base in (ARENA, *plan.outputs.values()):
                memory.get(int(self._bases[base]), np.empty(0))[...] = 0xFF
        if self._way == "apart":
            self._apart(memory)
        else:
            self._in_turn(self._way == "descending")

    def _call(self, record: Kernel, worker: int) -> None:
        """One worker's share of a step."""
        plan: Plan = self._bound.plan
        if worker and not record.shared:
            return
        kernel = _KERNEL(int(self._bound.table[plan.program[record.begin + KERNEL]]))
        step = plan.program.ctypes.data + 8 * record.begin
        kernel(step, self._bases.ctypes.data, worker, self._workers if record.shared else 1)

    def _reached(self) -> Iterator[tuple[Kernel, list[_Span]]]:
        """The steps in the order in which jumps reach them. What comes before a jump must be done when it is asked for
        the next one."""
        at = 0
        while at < len(self._rows):
            yield self._rows[at]
            at += self._distance(self._rows[at][0])

    def _distance(self, record: Kernel) -> int:
        """How many steps further the walk goes on: one, except after a jump."""
        if not self._jumps(record):
            return 1
        words = self._bound.plan.program[record.begin :]
        condition = int(self._bases[words[GO_TO.condition]] + words[GO_TO.condition + 1])
        goes = not condition or ctypes.c_uint8.from_address(condition).value == words[GO_TO.when]
        return int(words[GO_TO.steps]) if goes else 1

    def _jumps(self, record: Kernel) -> bool:
        return bool(self._bound.plan.program[record.begin + FLAGS] & JUMP)

    def _in_turn(self, descending: bool) -> None:
        stretch: list[Kernel] = []
        for record, _ in self._reached():
            if record.meets:
                self._finish(stretch, descending)
            if not self._jumps(record):
                stretch.append(record)
        self._finish(stretch, descending)

    def _finish(self, stretch: list[Kernel], descending: bool) -> None:
        for worker in range(self._workers)[:: -1 if descending else 1]:
            for record in stretch:
                self._call(record, worker)
        stretch.clear()

    def _apart(self, memory: Memory) -> None:
        rng = np.random.default_rng(len(self._rows))
        for record, spans in self._reached():
            if self._jumps(record):
                continue
            before = _copied(memory)
            named, written = self._marks(memory, spans), self._marks(memory, [s for s in spans if s.writes])
            spoiled = {
                at: np.where(mark, before[at], rng.choice(np.array([0x7F, 0xFF, 0x3C], np.uint8), len(mark)))
                for at, mark in named.items()
            }
            after, other = (self._from(start, record, memory) for start in (before, spoiled))
            nodes = " + ".join(node.op for node in self._bound.plan.units[record.unit])
            where = f"{record.name} of {nodes}"
            for at, mark in written.items():
                place = "the arena" if at == self._bases[ARENA] else "another buffer"
                for start, end in ((before, after), (spoiled, other)):
                    _demand(~mark, start[at], end[at], f"{where} writes what it does not say it writes", place)
                _demand(mark, after[at], other[at], f"{where} hangs on what it does not name", place)
            _put(after, memory)

    def _marks(self, memory: Memory, spans: Sequence[_Span]) -> Memory:
        marks = {at: np.zeros(array.size, bool) for at, array in memory.items()}
        for span in spans:
            span.mark(marks, self._bases)
        return marks

    def _from(self, start: Memory, record: Kernel, memory: Memory) -> Memory:
        """Memory after a step that began with `start`."""
        _put(start, memory)
        for worker in range(self._workers):
            self._call(record, worker)
        return _copied(memory)


def _memory(plan: Plan, bases: Array) -> Memory:
    """All memory that steps may write."""
    ports = {**plan.inputs, **plan.outputs}
    sizes = {ARENA: plan.arena_bytes, **plan.slots}
    sizes |= {base: plan.where[name][2].nbytes for name, base in ports.items()}
    found: dict[int, Array] = {}
    for base, nbytes in sizes.items():
        at = int(bases[base])
        if nbytes > found.get(at, np.empty(0)).nbytes:
            found[at] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))
    return found


def _copied(memory: Memory) -> Memory:
    return {at: array.copy() for at, array in memory.items()}


def _put(source: Memory, memory: Memory) -> None:
    for at, array in memory.items():
        array[...] = source[at]


def _demand(mark: Array, wanted: Array, got: Array, what: str, place: str) -> None:
    wrong = np.flatnonzero(mark & (wanted != got))
    if wrong.size:
        raise Fault(f"{what}: {wrong.size} bytes of {place}, from {wrong[0]} to {wrong[-1]}")
