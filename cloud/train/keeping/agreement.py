"""Decisions that all processes take together after a step, although each has its own reasons (one received a signal,
another's timer says that a checkpoint is due): they exchange them about once a second, so that steps need not wait."""

from __future__ import annotations

import time

import jax

from cloud._jax import most_of_all

__all__ = ["Agreement"]

_EVERY = 1.0
_MOST = 1000


class Agreement:
    """One per run; every process calls it after every step, and all get the same answers."""

    def __init__(self) -> None:
        self._left, self._asked, self._since = 1, 0, time.monotonic()

    def ask(self, *wishes: bool, now: bool = False) -> tuple[bool, ...]:
        """Which of the wishes are granted: those that any process has, after a delay. A single process gets its own at
        once; several do too when all pass `now`."""
        if jax.process_count() == 1:
            return wishes
        self._left, self._asked = self._left - 1, self._asked + 1
        if self._left > 0 and not now:
            return (False,) * len(wishes)
        moment = time.monotonic()
        steps = int(self._asked * _EVERY / max(moment - self._since, 1e-3))
        *granted, self._left = most_of_all([*map(int, wishes), min(max(steps, 1), _MOST)])
        self._asked, self._since = 0, moment
        return tuple(map(bool, granted))
