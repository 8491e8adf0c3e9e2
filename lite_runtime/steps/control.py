"""Branches and loops inside a program."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, InOut, Out, Step, step

__all__ = ["Begin", "Copy", "GoTo", "Refuse", "Turn"]


@step("control.go_to")
class GoTo(Step):
    """Continue at another step. No kernel runs it: the walker itself does (`kernels/walker.py`)."""

    condition: In | None  # one byte; left out: always
    when: int  # the value of the condition, 0 or 1, for which to go
    words: int  # from the start of this record to the start of the other, negative: backwards
    steps: int  # the same in steps


@step("control.begin")
class Begin(Step):
    """Before the first turn of a loop: turn = first; going, unless that is not below `trips` or `condition` is 0."""

    first: In | None  # int64; left out: 0
    trips: In | None  # int64
    condition: In | None  # one byte
    turn: Out  # int64
    going: Out  # one byte
    left: InOut  # int64: turns that this run may still take
    allowed: int  # the value that `left` gets first, or -1: an enclosing loop has set it


@step("control.turn")
class Turn(Step):
    """After each turn of a loop: turn += 1; going, unless that was the last turn or `condition` is 0."""

    trips: In | None
    condition: In | None
    turn: InOut
    going: Out
    left: InOut


@step("control.refuse")
class Refuse(Step):
    """Let the run fail."""

    code: int  # bits to set in the fault cell


@step("control.copy")
class Copy(Step):
    """Rows of bytes, from the part of `source` and to the part of `target` that belong to the turn."""

    turn: In | None  # int64; left out: 0
    source: In
    target: Out
    rows: int
    run: int  # bytes of a row
    source_start: int  # bytes
    source_turn: int  # bytes from one turn to the next
    source_row: int  # bytes from one row to the next
    target_start: int
    target_turn: int
    target_row: int
    period: int  # 0, or the number of turns after which the parts repeat
