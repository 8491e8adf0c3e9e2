"""Counting the turns of loops, and moving what goes into and out of them.

The jumps themselves are the walker's (`walker.py`).
"""

from __future__ import annotations

from lite_runtime.kernels._elements import copy_run
from lite_runtime.native.simd import device, i64p, kernel, num, ptr, u8p
from lite_runtime.planning.program import TOO_MANY
from lite_runtime.steps.control import Begin, Copy, Refuse, Turn
from lite_runtime.steps.declaration import FLAGS, named

BEGIN = named(Begin)
TURN = named(Turn)
REFUSE = named(Refuse)
COPY = named(Copy)


@device
def set_going(step, bases, trips, condition, count, left, going):
    """Whether the loop takes turn `count`; that turn is counted."""
    goes = 1
    if trips != 0 and count >= i64p(trips)[0]:
        goes = 0
    if condition != 0 and u8p(condition)[0] == 0:
        goes = 0
    if goes != 0:
        if left[0] <= 0:
            i64p(bases[1])[0] = step[FLAGS] | TOO_MANY
            goes = 0
        left[0] -= 1
    u8p(going)[0] = goes


@kernel(Begin)
def begin(step, bases, worker, workers):
    """The state of a loop before its first turn."""
    trips, condition = ptr(step, bases, BEGIN.trips), ptr(step, bases, BEGIN.condition)
    left = i64p(ptr(step, bases, BEGIN.left))
    if num(step, BEGIN.allowed) >= 0:
        left[0] = num(step, BEGIN.allowed)
    first, count = ptr(step, bases, BEGIN.first), 0
    if first != 0:
        count = i64p(first)[0]
    i64p(ptr(step, bases, BEGIN.turn))[0] = count
    set_going(step, bases, trips, condition, count, left, ptr(step, bases, BEGIN.going))


@kernel(Turn)
def turn(step, bases, worker, workers):
    """The state of a loop after a turn."""
    trips, condition = ptr(step, bases, TURN.trips), ptr(step, bases, TURN.condition)
    left = i64p(ptr(step, bases, TURN.left))
    count = i64p(ptr(step, bases, TURN.turn))
    count[0] += 1
    set_going(step, bases, trips, condition, count[0], left, ptr(step, bases, TURN.going))


@kernel(Refuse)
def refuse(step, bases, worker, workers):
    """The host raises the error after the run."""
    i64p(bases[1])[0] = step[FLAGS] | num(step, REFUSE.code)


@kernel(Copy)
def copy(step, bases, worker, workers):
    """target[turn, row, :] = source[turn, row, :]."""
    now, at = ptr(step, bases, COPY.turn), 0
    if now != 0:
        at = i64p(now)[0]
    if num(step, COPY.period) > 0:
        at %= num(step, COPY.period)
    source = ptr(step, bases, COPY.source) + num(step, COPY.source_start) + at * num(step, COPY.source_turn)
    target = ptr(step, bases, COPY.target) + num(step, COPY.target_start) + at * num(step, COPY.target_turn)
    run, source_row, target_row = num(step, COPY.run), num(step, COPY.source_row), num(step, COPY.target_row)
    for _ in range(num(step, COPY.rows)):
        copy_run(target, source, run)
        source += source_row
        target += target_row
