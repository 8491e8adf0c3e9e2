"""Workers: threads that run a program together with the calling thread.

Every worker spins for a moment after a run, so that the next one starts without a wake-up (35-70 µs), then sleeps. One
team serves all models of the process; each run uses as many workers as it gains from. The calling thread runs alone if
the team is busy, if it sleeps and waking it would take longer than it could save, and for some runs after the team was
no faster than one worker. No run waits for the team: nested runs, runs from other threads and from signal handlers
cannot deadlock. Results are bitwise identical in all cases.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.native import build
from lite_runtime.planning.program import Kernel

__all__ = ["Team", "Walk", "cores", "team", "ticks_per_second", "worth"]

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
COMING, GIVE_WAY, PATIENCE, WHERE, PLACES = 32, 40, 41, 42, 48
"""Words of `sync` (`kernels/walker.py`)."""
MOST = 256
"""Greatest number of workers of a team."""
SPINS = 20_000
"""Polls before a worker sleeps: about 0.5 ms, longer than the pause between inferences of a stream."""
STREAM = 0.5e-3
"""Seconds between runs up to which they count as a stream, for which sleeping workers are woken."""
BARRIER_SPINS = 2048
"""Polls at a barrier before the thread yields the processor: about 50 µs, longer than any balanced step's tail."""
WAKING = 200e-6
"""Seconds that a run must take one worker before it waits for sleeping workers: waking them takes 35-70 µs, and half of
the run's time is saved."""
BARRIER = 0.3e-6
"""Seconds for a barrier of two workers, including the transfer of cache lines between them."""
CALL = 2e-6
"""Seconds to call the other workers, and for all to meet at the end."""
STARTING = 1.0
"""Seconds within which newly started threads become ready."""
TRIALS = 2
"""Runs by one worker before the first by several: they measure how long one worker takes, the second with warm
caches."""
DOUBT = 32
"""Greatest number of runs by one worker for each run's time lost to a slower team. The number doubles with each slower
run in a row: a single delay costs the same time again; a busy machine, where a worker without a processor keeps the
others waiting, costs one part in 32."""
GAIN = 0.9
"""Share of one worker's time that several workers must stay below before they are called."""


def worth(steps: Sequence[Kernel], most: int) -> int:
    """The number of workers, at most `most`, that should finish these steps soonest; 1 if more gain little."""
    times = {1: GAIN * sum(step.seconds for step in steps)}
    for workers in range(2, most + 1):
        shares = (step.seconds / (workers if step.shared else 1) + step.meets * BARRIER for step in steps)
        times[workers] = CALL + sum(shares)
    return min(times, key=lambda workers: times[workers])


_MOVES = hasattr(os, "sched_setaffinity")
"""Whether threads can be moved to a processor: on Linux. Elsewhere each worker counts as on a processor of its own."""
_GIVE_WAY = {"win32": "SwitchToThread"}.get(sys.platform, "sched_yield")
"""The system's function that yields the processor."""


def cores() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if _MOVES else os.cpu_count() or 1


def _address(name: str) -> int:
    """Address of a function of the C library, on Windows of its kernel32; 0 if there is none of this name."""
    function = getattr(ctypes.CDLL("kernel32" if sys.platform == "win32" else None), name, None)
    return (ctypes.cast(function, _POINTER).value or 0) if function else 0


class Walk:
    """A section of a program with a table of bases, and the number of workers to run it.

    program, bases, table: as in `kernels/walker.py`, kept alive. workers: greatest number that takes part. seconds:
    estimated time of one worker. always: all workers take part even if it does not pay. clock: (workers, steps, 2)
    int64 for readings of the processor's counter.
    """

    __slots__ = ("_alone", "_context", "_doubt", "_held", "always", "at", "go", "rests", "seconds", "workers")

    def __init__(
        self,
        team: Team,
        program: Array,
        bases: Array,
        table: Array,
        *,
        workers: int = 1,
        seconds: float = 0.0,
        always: bool = False,
        clock: Array | None = None,
    ) -> None:
        self.workers, self.seconds, self.always = workers, seconds, always
        self._held = program, bases, table, clock
        clocked = (0, 0, 0) if clock is None else (clock.ctypes.data, clock.shape[1], _address("clock_gettime"))
        parts = program.ctypes.data, program.size, bases.ctypes.data, table.ctypes.data, *clocked
        self._context = np.array(parts, np.int64)
        self.at = ctypes.c_void_p(self._context.ctypes.data)
        self.go: Callable[[], None] = partial(team.run, self) if workers > 1 else partial(team.alone, self.at)
        """Runs the section; valid as long as this object exists."""
        self.rests = TRIALS
        """Number of next runs to be done by one worker alone."""
        self._alone, self._doubt = 0.0, 1

    def learn(self, shared: bool, took: float) -> None:
        """If the team took longer than one worker did, use one worker for a while."""
        if not shared:
            self._alone = took
        elif took <= self._alone:
            self._doubt = 1
        elif self._alone > 0:
            self.rests = 1 + int(self._doubt * (took / self._alone - 1))
            self._doubt = min(2 * self._doubt, DOUBT)


class Team:
    """The process's workers, including the calling thread: threads are started when first needed."""

    def __init__(self) -> None:
        self._code = build.image("walker")  # referenced by the threads, so that it stays mapped while the process exits
        self.alone = build.function("walker", "alone", _POINTER)
        """Runs `Walk.at` with no other worker."""
        self._lead = build.function("walker", "lead", _POINTER, _POINTER, _INT)
        self._serving = build.function("walker", "serve", _POINTER, _POINTER, _INT, _INT)
        self._dismiss()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._dismiss)

    def _dismiss(self) -> None:
        """Start without threads: initially, and in a forked process, which has none of its parent's."""
        self._lock = allocate_lock()
        self._sync = np.zeros(PLACES + MOST, np.int64)
        self._sync[PATIENCE] = BARRIER_SPINS
        self._cores = cores()
        self._there, self._asleep, self._bells = [True], [True], [allocate_lock()]
        """For each worker: whether it is ready, whether it sleeps, the lock that wakes it. Those of the caller are
        unused."""
        self._last, self._latest = 0.0, 1
        """When the latest run by several workers ended, and how many there were."""

    def run(self, walk: Walk) -> None:
        """Run with `walk.workers`, or alone if the others would not help."""
        if walk.workers < 2 or not self._lock.acquire(False):
            self.alone(walk.at)
            return
        try:
            began = time.perf_counter()
            shared = self._helps(walk, began)
            if shared:
                # Set before checking which workers sleep; workers announce sleep before a last check of this word: at
                # least one side sees the other. An interruption in between cannot leave workers in a run without a
                # leader.
                self._sync[COMING] = 1
                if walk.workers != self._latest:
                    self._latest = walk.workers
                    self._sync[PATIENCE] = 0 if self._crowded else BARRIER_SPINS
                self._wake(walk.workers)
                self._lead(walk.at, self._sync.ctypes.data, walk.workers)
            else:
                self.alone(walk.at)
            self._last = time.perf_counter()
            walk.learn(shared, self._last - began)
        finally:
            self._sync[COMING] = 0
            self._lock.release()

    def _helps(self, walk: Walk, now: float) -> bool:
        """Whether the other workers take part."""
        there = sum(self._there[: walk.workers]) == walk.workers
        if not there:
            self._start(walk.workers)
            while walk.always and not there and time.perf_counter() < now + STARTING:
                time.sleep(1e-5)
                there = all(self._there[: walk.workers])
        if walk.always or not there:
            return there
        if walk.rests:
            walk.rests -= 1
            return False
        if walk.seconds >= WAKING or not any(self._asleep[1 : walk.workers]):
            return True
        if now - self._last < STREAM:
            self._wake(walk.workers)
        return False

    def _wake(self, workers: int) -> None:
        for worker in range(1, workers):
            if self._asleep[worker]:
                self._asleep[worker] = False
                self._bells[worker].release()

    def _start(self, workers: int) -> None:
        import threading  # not needed by a start with one worker

        self._sync[GIVE_WAY] = _address(_GIVE_WAY)
        self._sync[WHERE] = _address("sched_getcpu") if _MOVES else 0
        while len(self._there) < workers:
            worker, bell = len(self._there), allocate_lock()
            bell.acquire()
            # Slice assignments instead of appends: after an interruption the incomplete work is simply repeated.
            self._bells[worker:], self._asleep[worker:], self._there[worker:] = [bell], [True], [False]
            threading.Thread(target=self._serve, args=(worker,), name=f"msedge-{worker}", daemon=True).start()

    @property
    def _crowded(self) -> bool:
        """Whether the latest run used more workers than there are processors: waiting workers then yield."""
        return self._latest > self._cores

    def _serve(self, worker: int) -> None:
        bell, sync = self._bells[worker], self._sync.ctypes.data
        state = np.zeros(3, np.int64)
        at = state.ctypes.data
        self._there[worker] = True
        while True:
            bell.acquire()
            state[2] = self._crowded
            polls = SPINS // 20 if self._crowded else SPINS  # yielding takes 20 times as long as a poll
            self._serving(sync, at, polls, worker)
            while state[1]:
                state[2] = not self._move(worker)
                self._serving(sync, at, polls, worker)
            self._asleep[worker] = True
            state[2] = 1
            self._serving(sync, at, 1, worker)

    def _move(self, worker: int) -> bool:
        """Move to a processor on which no other worker was seen; returns False if there is none.

        The system's scheduler may leave two workers on one processor for seconds while less important work runs on the
        others: each barrier then takes 80 µs. The move does not pin the worker.
        """
        try:
            allowed = os.sched_getaffinity(0)
            others = self._sync[PLACES : PLACES + self._latest].tolist()
            del others[worker : worker + 1]
            free = allowed - set(others)
            if free:
                os.sched_setaffinity(0, free)
                os.sched_setaffinity(0, allowed)
        except OSError:
            return False
        return bool(free)


@cache
def team() -> Team:
    """The process's team, which all models share."""
    return Team()


@cache
def ticks_per_second() -> float:
    """The frequency of the processor's counter, measured over 5 ms."""
    tick, out = build.function("walker", "tick", _POINTER), np.array([0, _address("clock_gettime")], np.int64)

    def reading() -> tuple[float, int]:
        tick(out.ctypes.data)
        return time.perf_counter(), int(out[0])

    (start, first), now = reading(), reading()
    while now[0] - start < 5e-3:
        now = reading()
    return (now[1] - first) / (now[0] - start)
