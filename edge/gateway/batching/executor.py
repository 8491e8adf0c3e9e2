"""Threads that compute batches while the event loop continues reading and writing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Protocol

from edge.gateway.batching.runner import Runner
from edge.gateway.job import Job

__all__ = ["Batch", "Executor", "Threads"]

SWITCH = 1e-4
"""Python's switch interval: seconds after which a waiting thread gets the interpreter. With the default of 5 ms, each
finished batch would wait that long whenever the event loop's thread is busy."""


class Batch:
    """Jobs that are computed together. `compute` sets `began` and `ended`."""

    __slots__ = ("began", "ended", "jobs", "predicted", "rows", "runner", "wait", "worker")

    def __init__(self, runner: Runner, jobs: Sequence[Job], rows: int, predicted: float, wait: float) -> None:
        self.runner, self.jobs, self.rows, self.predicted = runner, jobs, rows, predicted
        self.wait = wait
        """The predicted total seconds of the first job, waiting included."""
        self.worker = 0
        self.began, self.ended = 0.0, 0.0

    def compute(self, clock: Callable[[], float] = perf_counter) -> None:
        """Run the batch without the jobs that were cancelled in the meantime."""
        self.began = clock()
        jobs = [job for job in self.jobs if not job.cancelled]
        try:
            if jobs:
                self.runner.run(jobs)
        except BaseException as error:  # thread: the error becomes the jobs' answer
            for job in jobs:
                job.outputs, job.error = None, error
        self.ended = clock()


class Executor(Protocol):
    """Computes batches concurrently with the event loop. Each worker computes its batches one after another."""

    workers: int

    def give(self, batch: Batch) -> None:
        """Have `batch.worker` compute the batch; afterwards the callback given at construction is called."""

    def close(self) -> None:
        """Stop after all batches given so far are computed."""


_HALF = 5e-7
"""Half a microsecond: Python cuts the interval to whole ones, so that 199 µs as a real number would become 198."""


class Threads:
    """An executor of threads. Each has its own queue, so that the next batch is ready when one is finished."""

    def __init__(self, workers: int, tell: Callable[[Batch], None]) -> None:
        """tell: called on the worker's thread with a finished batch; passes it on to the event loop's thread."""
        self.workers = workers
        self._given: list[SimpleQueue[Batch | None]] = [SimpleQueue() for _ in range(workers)]
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, SWITCH))
        self._threads = [
            Thread(target=self._work, args=(given, tell), name=f"msedge-batches-{i}", daemon=True)
            for i, given in enumerate(self._given)
        ]
        for thread in self._threads:
            thread.start()

    def give(self, batch: Batch) -> None:
        """See `Executor`."""
        self._given[batch.worker].put(batch)

    def close(self) -> None:
        """See `Executor`. Waits at most one second for the threads to end."""
        for given in self._given:
            given.put(None)
        for thread in self._threads:
            thread.join(1.0)
        sys.setswitchinterval(self._interval + _HALF)

    @staticmethod
    def _work(given: SimpleQueue[Batch | None], tell: Callable[[Batch], None]) -> None:
        while (batch := given.get()) is not None:
            batch.compute()
            try:
                tell(batch)
            except RuntimeError:  # the event loop is closed: no job waits for an answer
                return
            del batch
