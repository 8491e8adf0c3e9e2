"""Workers: threads that walk a program together with the caller.

Every worker spins for a moment after a run, so that the next one starts without a wake-up (35-70 µs), then sleeps. One
team per number of workers serves all models of the process; runs of one team take turns.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

import numpy as np

from lite_runtime import build

__all__ = ["Team", "team"]

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
JOB = 24
"""Words of `sync` that say what to walk (`kernels/walker.py`)."""
SPINS = 20_000
"""Polls before a worker sleeps: about 0.5 ms, longer than the pause between inferences of a stream."""


class Team:
    """`workers` threads counting the caller's."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._lock = threading.Lock()
        self._sync = np.zeros(64, np.int64)
        self._sync_at = self._sync.ctypes.data
        self._run = build.function("walker", "run", _POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _INT)
        self._serving = build.function("walker", "serve", _POINTER, _POINTER, _INT, _INT, _INT, _INT)
        self._ring = build.function("walker", "ring", _POINTER)
        self._give_way = ctypes.cast(ctypes.CDLL(None).sched_yield, _POINTER).value or 0
        self._asleep = [False] * workers
        self._bells = [threading.Semaphore(0) for _ in range(workers)]
        for worker in range(1, workers):
            threading.Thread(target=self._serve, args=(worker,), name=f"msedge-{worker}", daemon=True).start()

    def run(self, program: int, words: int, bases: int, table: int, workers: int) -> None:
        """Walk `words` words at address `program`, alone (workers 1) or with the whole team."""
        if workers == 1 or self.workers == 1:
            self._run(program, words, bases, table, self._sync_at, 1, self._give_way)
            return
        with self._lock:
            self._sync[JOB : JOB + 4] = program, words, bases, table
            self._ring(self._sync_at)
            for worker in range(1, self.workers):
                if self._asleep[worker]:
                    self._bells[worker].release()
            self._run(program, words, bases, table, self._sync_at, self.workers, self._give_way)

    def _serve(self, worker: int) -> None:
        seen = np.zeros(1, np.int64)
        at = seen.ctypes.data
        while True:
            self._serving(self._sync_at, at, SPINS, worker, self.workers, self._give_way)
            # Said before the last look, as callers ring before they ask: one of the two sees the other.
            self._asleep[worker] = True
            self._serving(self._sync_at, at, 1, worker, self.workers, self._give_way)
            self._bells[worker].acquire()
            self._asleep[worker] = False


@cache
def team(workers: int) -> Team:
    """The process's team of that size."""
    return Team(workers)
