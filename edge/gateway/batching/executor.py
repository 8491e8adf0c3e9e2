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
"""Seconds after which a thread that wants the interpreter gets it. With Python's 5 ms, a batch that is done waits for
the event loop's thread that long whenever that one is busy."""


class Batch:
    """Jobs that are computed together; `began` and `ended` are set by whoever does it."""

    __slots__ = ("began", "ended", "jobs", "predicted", "rows", "runner", "wait", "worker")

    def __init__(self, runner: Runner, jobs: Sequence[Job], rows: int, predicted: float, wait: float) -> None:
        self.runner, self.jobs, self.rows, self.predicted = runner, jobs, rows, predicted
        self.wait = wait
        """Seconds that the first of the jobs was predicted to take in all."""
        self.worker = 0
        self.began, self.ended = 0.0, 0.0

    def compute(self, clock: Callable[[], float] = perf_counter) -> None:
        """Run it, those left out whose clients have left meanwhile."""
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
    """Computes batches beside the event loop. Those given to one worker are computed in turn."""

    workers: int

    def give(self, batch: Batch) -> None:
        """Have `batch.worker` compute it; then whoever was named when this was made is told, on the loop's thread."""

    def close(self) -> None:
        """End, once what was given is done."""


class Threads:
    """An executor of threads. Each has a queue of its own, so that one batch can lie ready when another is done."""

    def __init__(self, workers: int, tell: Callable[[Batch], None]) -> None:
        """tell: called on the worker's thread with a batch that is done; hands it to the loop's."""
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
        """See `Executor`. Waits for threads that are done within a second."""
        for given in self._given:
            given.put(None)
        for thread in self._threads:
            thread.join(1.0)
        sys.setswitchinterval(self._interval)

    @staticmethod
    def _work(given: SimpleQueue[Batch | None], tell: Callable[[Batch], None]) -> None:
        while (batch := given.get()) is not None:
            batch.compute()
            try:
                tell(batch)
            except RuntimeError:  # the loop was closed: nobody waits
                return
            del batch
