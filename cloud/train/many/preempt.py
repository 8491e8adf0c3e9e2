"""Signals that end a run cleanly: after the current step, with everything saved."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["PREEMPTED", "stopping_on_signals"]

PREEMPTED = 75
"""The exit status of a process that was stopped by a signal and has saved: start it again and it continues (sysexits.h:
try again later)."""


@contextmanager
def stopping_on_signals(
    stop: Callable[[str], None], signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[list[str]]:
    """Inside the block, the first such signal calls `stop(its name)`, such as `lambda name: trainer.stop()`; a second
    one interrupts. Yields the names of the signals received. For the main thread.

        with stopping_on_signals(lambda name: trainer.stop()) as came:
            trainer.fit(data, 10)
        if came:
            sys.exit(PREEMPTED)
    """
    came: list[str] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(signal.Signals(number).name)
        stop(came[0])

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
