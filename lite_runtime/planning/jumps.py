"""If, Loop and Scan as steps of one program: their nested graphs' steps, with jumps around and back.

    If      go to ELSE unless condition        Loop    begin
            then branch, outputs                       go to END unless going
            go to END                           TOP    body, stacked rows, carried values
    ELSE    else branch, outputs                       turn
    END                                                go to TOP if going
                                                END

A buffer that a loop reads and that was filled before it lives until the loop has ended; the carried values and all
stacked rows live as long. Everything else inside is filled anew in each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from lite_runtime.graph import Node, Spec, itemsize
from lite_runtime.ops.registry import Operand
from lite_runtime.planning.control import MOST_TURNS, SOME_TURNS, Scanned
from lite_runtime.planning.inline import first_output
from lite_runtime.planning.parts import Block, Stage
from lite_runtime.planning.workspace import Record, Workspace
from lite_runtime.steps.control import Begin, Copy, GoTo, Refuse, Turn
from lite_runtime.steps.declaration import Step

__all__ = ["bind_control"]

BindBlock = Callable[[Workspace, Block], None]


def bind_control(space: Workspace, node: Node, stage: Stage, bind_block: BindBlock) -> None:
    """Emit the steps of an If, Loop or Scan whose nested graphs are among the stage's blocks.

    bind_block: emits the steps of a nested graph. Raises NoKernel, as it does, if a node inside has no kernel.
    """
    made = _Region(space, node, stage, bind_block)
    {"If": made.branch, "Loop": made.loop, "Scan": made.scan, SOME_TURNS: made.some_turns}[node.op]()


class _Region:
    """The steps of one node."""

    def __init__(self, space: Workspace, node: Node, stage: Stage, bind_block: BindBlock) -> None:
        self._space, self._node, self._bind_block = space, node, bind_block
        self._blocks = stage.blocks[first_output(node)]
        self._specs = stage.specs
        self._shown = (node.replace(op="Loop") if node.op == SOME_TURNS else node,)
        self._begin = space.enter(self._shown)

    # -- the three operators --------------------------------------------------------------------------------------

    def branch(self) -> None:
        """Both branches write the same buffers."""
        node, (then, other) = self._node, self._blocks
        results = self._results(0, len(node.outputs))
        skip = self._go_to(self._operand(node.inputs[0]), 0)
        self._block(then, results)
        end = self._go_to(None, 1)
        self._land(skip)
        self._block(other, results)
        self._land(end)
        self._define(results)

    def loop(self) -> None:
        """Carried values, and rows stacked along a new first axis."""
        trips, condition, *carried = self._node.inputs
        results = self._results(len(carried), len(self._blocks[0].outputs) - 1)
        _, _, homes = self._looped((None, self._operand(trips), self._operand(condition)), carried, results, 0)
        self._define([*homes, *results])

    def some_turns(self) -> None:
        """The same for a part of a loop's turns."""
        first, trips, condition, *carried = self._node.inputs
        scalars = (self._operand(first), self._operand(trips), self._operand(condition))
        results = self._results(2 + len(carried), len(self._blocks[0].outputs) + 1)
        turn, holds, homes = self._looped(scalars, carried, results, MOST_TURNS)
        self._define([turn, holds, *homes, *results])

    def _looped(
        self,
        scalars: tuple[Operand | None, Operand | None, Operand | None],
        names: Sequence[str],
        stacks: Sequence[Operand | None],
        period: int,
    ) -> tuple[Operand, Operand, list[Operand]]:
        """Turns from the first of `scalars` to the second, while the third holds. The number of the next turn, the last
        condition, the carried values."""
        first, trips, condition = scalars
        (body,) = self._blocks
        carried = [self._carried(name) for name in names]
        turn, holds = self._buffer(Spec("int64", ())), self._buffer(Spec("bool", ()))
        if condition is not None:
            self._copy(condition, holds)
        for name, operand in zip(body.inputs, [turn, None, *carried], strict=True):
            if operand is not None:  # the condition is true in every turn
                self._space.define(name, operand)

        def run() -> Operand:
            self._bind_block(self._space, body)
            again, *rest = [self._space.operands[name] for name in body.outputs]
            self._enter()
            for stack, row in zip(stacks, rest[len(carried) :], strict=True):
                if stack is not None:
                    self._put(row, stack, turn, 0, back=False, period=period)
            self._copy(again, holds)
            self._carry(rest[: len(carried)], carried)
            return holds

        self._turns(turn, first, trips, condition, run)
        return turn, holds, carried

    def scan(self) -> None:
        """Carried values, elements of sequences, and rows stacked along any axis."""
        node, (body,), facts = self._node, self._blocks, Scanned(self._node)
        carried = [self._carried(name) for name in node.inputs[: facts.states]]
        sequences = [self._space.operands[name] for name in node.inputs[facts.states :]]
        axes = facts.input_axes([len(x.shape) for x in sequences])
        stacks = self._results(facts.states, len(body.outputs))
        turn = self._buffer(Spec("int64", ()))
        count = self._space.literal(np.array(sequences[0].shape[axes[0]], np.int64))
        slices = [self._buffer(self._specs[name]) for name in body.inputs[facts.states :]]
        for name, operand in zip(body.inputs, [*carried, *slices], strict=True):
            self._space.define(name, operand)

        def run() -> None:
            self._enter()
            for x, part, axis, back in zip(sequences, slices, axes, facts.input_directions, strict=True):
                self._take(x, part, turn, axis, back=bool(back))
            self._bind_block(self._space, body)
            results = [self._space.operands[name] for name in body.outputs]
            self._enter()
            rows = results[facts.states :]
            places = facts.output_axes([len(row.shape) + 1 for row in rows])
            for stack, row, axis, back in zip(stacks, rows, places, facts.output_directions, strict=True):
                if stack is not None:
                    self._put(row, stack, turn, axis, back=bool(back))
            self._carry(results[: facts.states], carried)

        self._turns(turn, None, count, None, run)
        self._define([*carried, *stacks])

    # -- what they consist of -------------------------------------------------------------------------------------

    def _turns(
        self,
        turn: Operand,
        first: Operand | None,
        trips: Operand | None,
        condition: Operand | None,
        run: Callable[[], Operand | None],
    ) -> None:
        """A loop around what `run` emits, which returns the condition for another turn."""
        space, outer = self._space, self._space.left
        left = outer or self._buffer(Spec("int64", ()))
        going = self._buffer(Spec("bool", ()))
        allowed = space.turns if outer is None else -1
        self._emit(
            Begin(first=first, trips=trips, condition=condition, turn=turn, going=going, left=left, allowed=allowed)
        )
        end = self._go_to(going, 0)
        top = len(space.records)
        space.left = left
        try:
            again = run()
        finally:
            space.left = outer
        self._emit(Turn(trips=trips, condition=again, turn=turn, going=going, left=left))
        space.jump(self._go_to(going, 1), top)
        self._land(end)
        space.keep_alive(self._begin + 1)

    def _block(self, block: Block, results: Sequence[Operand | None]) -> None:
        """A branch, and copies of its outputs."""
        self._bind_block(self._space, block)
        self._enter()
        if block.refusal:
            self._space.refuse(block.refusal)
            self._emit(Refuse(code=1))
            return
        for name, result in zip(block.outputs, results, strict=False):
            if result is not None:
                self._copy(self._space.operands[name], result)

    def _carried(self, name: str) -> Operand:
        """A buffer with a copy of the initial value."""
        source = self._space.operands[name]
        home = self._buffer(source.spec)
        self._copy(source, home)
        return home

    def _carry(self, results: Sequence[Operand], carried: Sequence[Operand]) -> None:
        """Copy a turn's results to the buffers that the next turn reads. A result may be one of these buffers."""
        homes = {operand.slot for operand in carried}
        moves: list[tuple[Operand, Operand]] = []
        for result, home in zip(results, carried, strict=True):
            if (result.slot, result.offset) == (home.slot, home.offset):
                continue
            if result.slot in homes:
                apart = self._buffer(result.spec)
                self._copy(result, apart)
                result = apart
            moves.append((result, home))
        for result, home in moves:
            self._copy(result, home)

    def _take(self, source: Operand, target: Operand, turn: Operand, axis: int, *, back: bool) -> None:
        outer, turns, run = _geometry(source.spec, axis)
        start, pace = ((turns - 1) * run, -run) if back else (0, run)
        self._emit(
            Copy(
                turn=turn, source=source, target=target, rows=outer, run=run,
                source_start=start, source_turn=pace, source_row=turns * run,
                target_start=0, target_turn=0, target_row=run, period=0,
            )
        )  # fmt: skip

    def _put(self, source: Operand, target: Operand, turn: Operand, axis: int, *, back: bool, period: int = 0) -> None:
        outer, turns, run = _geometry(target.spec, axis)
        start, pace = ((turns - 1) * run, -run) if back else (0, run)
        self._emit(
            Copy(
                turn=turn, source=source, target=target, rows=outer, run=run,
                source_start=0, source_turn=0, source_row=run,
                target_start=start, target_turn=pace, target_row=turns * run, period=period,
            )
        )  # fmt: skip

    def _copy(self, source: Operand, target: Operand) -> None:
        self._emit(
            Copy(
                turn=None, source=source, target=target, rows=1, run=target.spec.nbytes,
                source_start=0, source_turn=0, source_row=0, target_start=0, target_turn=0, target_row=0, period=0,
            )
        )  # fmt: skip

    # -- the workspace --------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Go on in a new unit: those of a nested graph lie between."""
        self._space.enter(self._shown)

    def _operand(self, name: str) -> Operand | None:
        return self._space.operands[name] if name else None

    def _results(self, begin: int, end: int) -> list[Operand | None]:
        """Buffers for the node's outputs in this range, None for those that are left out."""
        names = [*self._node.outputs, *[""] * (end - len(self._node.outputs))][begin:end]
        return [self._buffer(self._specs[name]) if name else None for name in names]

    def _buffer(self, spec: Spec) -> Operand:
        operand = Operand(spec, self._space.slot(spec.nbytes))
        self._space.slots[operand.slot].shared = True  # several steps write it
        self._space.touch(operand)  # it lives from here on, not from the first step in a loop that writes it
        return operand

    def _emit(self, step: Step) -> None:
        self._space.append(Record(step.kernel(), step, False, self._space.unit))

    def _go_to(self, condition: Operand | None, when: int) -> int:
        """A jump whose target is set later; the number of its record."""
        self._emit(GoTo(condition=condition, when=when, words=0, steps=0))
        return len(self._space.records) - 1

    def _land(self, number: int) -> None:
        """Let a jump go to the next record."""
        self._space.jump(number, len(self._space.records))

    def _define(self, results: Sequence[Operand | None]) -> None:
        for name, result in zip(self._node.outputs, results, strict=False):
            if name and result is not None:
                self._space.define(name, result)
                self._space.touch(result)


def _geometry(spec: Spec, axis: int) -> tuple[int, int, int]:
    """Rows before an axis, its size, and the bytes of one of its elements."""
    shape = spec.shape
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]) * itemsize(spec.dtype)
