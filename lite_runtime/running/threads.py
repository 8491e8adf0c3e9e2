"""Workers: threads that walk a program together with the caller.

Every worker spins for a moment after a run, so that the next one starts without a wake-up (35-70 µs), then sleeps. One
team serves all models of the process, each run by as many of it as are worth it. A run that finds the team at work, or
asleep where waking it would take longer than it could help, is walked by its caller alone, and so are the next ones
where the team was no faster than one. Nobody waits for anybody: runs inside runs, from other threads or from signal
handlers, cannot lock each other out. Results are the same bits either way.
"""

from __future__ import annotations

import ctypes
import os
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
"""Workers a team can have."""
SPINS = 20_000
"""Polls before a worker sleeps: about 0.5 ms, longer than the pause between inferences of a stream."""
STREAM = 0.5e-3
"""Seconds between runs up to which they count as a stream, for which sleeping workers are woken."""
BARRIER_SPINS = 2048
"""Polls of a barrier before the processor is given away: about 50 µs, longer than any balanced step's tail."""
WAKING = 200e-6
"""Seconds a run must take one worker before it waits for sleepers: they need 35-70 µs, and half the run is gained."""
BARRIER = 0.3e-6
"""Seconds for two workers to meet, lines of the cache that change sides included."""
CALL = 2e-6
"""Seconds to call the other workers, and for all to meet at the end."""
STARTING = 1.0
"""Seconds within which threads that were started come to work."""
TRIALS = 2
"""Walks by one worker before the first by more: they tell how long one takes, the second warm."""
DOUBT = 32
"""Walks by one worker, at most, for each walk's worth that was lost to a team that took longer. Twice as many each time
in a row: a hiccup costs as much again, a busy machine, where a worker that is not given its processor keeps the others
waiting, one part in 32."""
GAIN = 0.9
"""Part of one worker's time that more workers must come down to before they are called."""


def worth(steps: Sequence[Kernel], most: int) -> int:
    """How many workers, up to `most`, should finish these steps soonest; 1 where more gain little."""
    times = {1: GAIN * sum(step.seconds for step in steps)}
    for workers in range(2, most + 1):
        shares = (step.seconds / (workers if step.shared else 1) + step.meets * BARRIER for step in steps)
        times[workers] = CALL + sum(shares)
    return min(times, key=lambda workers: times[workers])


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


class Walk:
    """A stretch of a program over a table of bases, and a team to walk it.

    program, bases, table: as `kernels/walker.py` has them, kept alive. workers: how many may take part. seconds: what
    one worker is expected to take. always: all workers take part whether it pays or not. clock: (workers, steps, 2)
    int64 for readings of the cycle counter.
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
        clocked = (0, 0) if clock is None else (clock.ctypes.data, clock.shape[1])
        parts = program.ctypes.data, program.size, bases.ctypes.data, table.ctypes.data, *clocked
        self._context = np.array(parts, np.int64)
        self.at = ctypes.c_void_p(self._context.ctypes.data)
        self.go: Callable[[], None] = partial(team.run, self) if workers > 1 else partial(team.alone, self.at)
        """Walk; as long as this object lives."""
        self.rests = TRIALS
        """Walks to come by one worker alone."""
        self._alone, self._doubt = 0.0, 1

    def learn(self, shared: bool, took: float) -> None:
        """Where the team took longer than one worker had, that one goes alone for a while."""
        if not shared:
            self._alone = took
        elif took <= self._alone:
            self._doubt = 1
        elif self._alone > 0:
            self.rests = 1 + int(self._doubt * (took / self._alone - 1))
            self._doubt = min(2 * self._doubt, DOUBT)


class Team:
    """The process's workers, the caller's thread counted: threads that are started when first needed."""

    def __init__(self) -> None:
        self._code = build.image("walker")  # held by the threads, so that it is there while the process ends
        self.alone = build.function("walker", "alone", _POINTER)
        """Walk `Walk.at` with no other worker."""
        self._lead = build.function("walker", "lead", _POINTER, _POINTER, _INT)
        self._serving = build.function("walker", "serve", _POINTER, _POINTER, _INT, _INT)
        self._dismiss()
        os.register_at_fork(after_in_child=self._dismiss)

    def _dismiss(self) -> None:
        """Begin without threads: at first, and in a forked process, which has none of its parent's."""
        self._lock = allocate_lock()
        self._sync = np.zeros(PLACES + MOST, np.int64)
        self._sync[PATIENCE] = BARRIER_SPINS
        self._cores = cores()
        self._there, self._asleep, self._bells = [True], [True], [allocate_lock()]
        """Of each worker: whether it has come, whether it sleeps, what wakes it. The caller's are never looked at."""
        self._last, self._latest = 0.0, 1
        """When the latest run by more than one ended, and by how many it was."""

    def run(self, walk: Walk) -> None:
        """Walk as `walk.workers`, or alone where the others would be of no help."""
        if walk.workers < 2 or not self._lock.acquire(False):
            self.alone(walk.at)
            return
        try:
            began = time.perf_counter()
            shared = self._helps(walk, began)
            if shared:
                # Said before anyone is asked whether they sleep, as workers say that they do before a last look: one
                # of the two sees the other. What interrupts this in between leaves nobody in a run without a leader.
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
        """Whether the others take part."""
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
        import threading  # which a start by one worker need not load

        for word, name in ((GIVE_WAY, "sched_yield"), (WHERE, "sched_getcpu")):
            self._sync[word] = ctypes.cast(getattr(ctypes.CDLL(None), name), _POINTER).value or 0
        while len(self._there) < workers:
            worker, bell = len(self._there), allocate_lock()
            bell.acquire()
            # Slices, not appended: what an interruption left half done is done again.
            self._bells[worker:], self._asleep[worker:], self._there[worker:] = [bell], [True], [False]
            threading.Thread(target=self._serve, args=(worker,), name=f"msedge-{worker}", daemon=True).start()

    @property
    def _crowded(self) -> bool:
        """Whether the latest run is by more workers than there are processors: then waiting gives way."""
        return self._latest > self._cores

    def _serve(self, worker: int) -> None:
        bell, sync = self._bells[worker], self._sync.ctypes.data
        state = np.zeros(3, np.int64)
        at = state.ctypes.data
        self._there[worker] = True
        while True:
            bell.acquire()
            state[2] = self._crowded
            polls = SPINS // 20 if self._crowded else SPINS  # giving way takes 20 times a poll's time
            self._serving(sync, at, polls, worker)
            while state[1]:
                state[2] = not self._move(worker)
                self._serving(sync, at, polls, worker)
            self._asleep[worker] = True
            state[2] = 1
            self._serving(sync, at, 1, worker)

    def _move(self, worker: int) -> bool:
        """Go to a processor where no other worker was seen; False where there is none.

        The system's scheduler may leave two workers on one processor for seconds while lesser work runs on the others:
        then each barrier takes 80 µs. Nobody is kept where he went.
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
    """How fast the processor's time stamp counter runs, from 5 ms of it."""
    tick, out = build.function("walker", "tick", _POINTER), np.zeros(1, np.int64)

    def reading() -> tuple[float, int]:
        tick(out.ctypes.data)
        return time.perf_counter(), int(out[0])

    (start, first), now = reading(), reading()
    while now[0] - start < 5e-3:
        now = reading()
    return (now[1] - first) / (now[0] - start)
