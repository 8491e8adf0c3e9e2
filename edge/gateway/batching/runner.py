"""Runners, which compute batches: the interface for the scheduler, and the runner of ordinary models."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Protocol

from edge.gateway.batching.cost import Cost
from edge.gateway.batching.gather import Call, compute, deal
from edge.gateway.batching.runnable import Runnable
from edge.gateway.batching.trial import mixes, sample, timed
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.ports import Ports
from lite_runtime import InputError

__all__ = ["LADDER", "ModelRunner", "Runner"]

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batch sizes that are compiled, as long as they increase throughput."""
LONG = 0.25
"""Larger sizes are not tried if a batch would take longer: the next request would wait for all of it."""
PAYS = 0.98
"""A larger size counts as a gain if its seconds per row are at most this share of the best before."""
LOSSES = 2
"""Consecutive sizes without a gain after which no larger one is tried."""


class Runner(Protocol):
    """Computes batches of jobs of one model, signature and shape of rows."""

    key: str
    """model/version/signature/shape: for logs and metrics."""
    model: str
    """The model's name; the scheduler is fair between models."""
    limit: int
    """Most rows of one batch; 1 if requests are not batched. A single job may have more: it is run in pieces."""
    cost: Cost

    def run(self, jobs: Sequence[Job]) -> None:
        """Compute them: on any thread, one call at a time. Sets each job's `outputs` or `error`, its times and `batch`;
        never raises."""

    def warm(self, seconds: float = 5.0) -> None:
        """Compile and time batch sizes before the first request, on any thread but the event loop's."""


class ModelRunner:
    """Runs batches of a model without personal versions.

    Rows are copied directly into the arrays of a compiled size (`Model.bind`), computed by one native call without the
    interpreter's lock, and copied out per job. The sizes of the ladder that increase throughput are compiled (`warm`);
    `cost.cover` chooses the ones that compute a number of rows in the least time.

    A model whose rows depend on one another (for example by a scale over the whole batch) is not batched: each job is
    computed alone. A failed batch is run again job by job, so that only the jobs that cause the failure fail.
    """

    def __init__(
        self,
        model: Runnable,
        signature: str,
        ports: Ports,
        row_shapes: Mapping[str, tuple[int, ...]],
        *,
        name: str = "",
        version: str = "",
        limit: int = 64,
        ladder: Sequence[int] = LADDER,
        memory: int = 256 << 20,
    ) -> None:
        """row_shapes: of every input, without axis 0 if the ports are batched, else whole. limit: most rows of one
        batch. ladder: sizes to try. memory: most bytes that the largest size may need for its arrays and arena."""
        shapes = ",".join(f"{n}[{'x'.join(map(str, s))}]" for n, s in row_shapes.items())
        self.key, self.model = f"{name}/{version}/{signature}/{shapes}", name
        self.limit = limit if ports.batched else 1
        self.cost = Cost()
        self.cost.unknown = 1
        self._served, self._signature, self._shapes = model, signature, dict(row_shapes)
        self._dtypes = {name: port.dtype for name, port in ports.inputs.items()}
        self._batched, self._memory = ports.batched, memory
        self._ladder = tuple(sorted({1, *(size for size in ladder if 1 < size < self.limit), self.limit}))
        self._joins = self.limit > 1
        """Whether rows of several jobs may be put into one batch."""
        self._calls: dict[int, Call] = {}
        self._growing, self._complete, self._losses = allocate_lock(), False, 0

    def run(self, jobs: Sequence[Job]) -> None:
        """See `Runner`."""
        rows = sum([job.rows for job in jobs])
        if rows >= self.cost.unknown:
            try:
                self._grow_to(rows)
            except Exception as error:  # request: the error becomes the jobs' answer
                for job in jobs:
                    _fail(job, error)
                return
        if rows > 1 and self._joins:
            self._together(jobs, rows)
        else:
            for job in jobs:
                self._alone(job)

    def warm(self, seconds: float = 5.0) -> None:
        """Compile and time sizes, smallest first, until they bring no gain or the time is over: before or during
        traffic, on any thread but the event loop's. Without this call, a size is compiled when so many rows arrive.

        Raises the exceptions of planning a batch of 1: then the model cannot be run.
        """
        end = perf_counter() + seconds
        while not self._complete:
            self._grow_to(self._next(), wait=True)
            if perf_counter() > end:
                return

    @property
    def sizes(self) -> tuple[int, ...]:
        """The compiled sizes."""
        return tuple(self._calls)

    def _together(self, jobs: Sequence[Job], rows: int) -> None:
        sizes = self.cost.cover(rows) or (1,) * rows
        if len(jobs) == 1 and sizes == (rows,):
            self._alone(jobs[0])
            return
        failed: dict[Job, Exception] = {}
        for size, dealt in deal(jobs, sizes):
            segments = [segment for segment in dealt if segment.job not in failed]
            if not segments:
                continue
            call = self._calls[size]
            try:
                self.cost.observe(size, compute(call, segments))
            except Exception as error:  # request: each job is tried alone next
                failed.update((segment.job, error) for segment in segments)
                call.clear()
        for job, reason in failed.items():
            if len(jobs) > 1:
                self._together((job,), job.rows)
            else:
                _fail(job, reason)

    def _alone(self, job: Job) -> None:
        """Compute one job as a batch of exactly its size."""
        begun = job.begun = perf_counter()
        rows = job.batch = job.rows
        try:
            if rows == 1 or self._joins:
                self._calls[rows].compute(job)
            else:
                job.outputs = self._served.run(job.inputs, self._signature)
                job.computed = job.done = perf_counter()
        except Exception as error:  # request: the error becomes the job's answer
            _fail(job, error)
            return
        took = job.done - begun
        if self._joins:
            self.cost.observe(rows, took)
        else:
            self.cost.observe(1, took / rows)

    def _grow_to(self, rows: int, *, wait: bool = False) -> None:
        """Compile sizes up to so many rows, unless another thread is doing so; until size 2 is compiled, nothing is
        known about the model, and all threads wait."""
        if self._growing.acquire(wait or len(self._calls) < 2):
            try:
                while not self._complete and self._next() <= rows:
                    self._grow()
            finally:
                self.cost.unknown = inf if self._complete else self._next()
                self._growing.release()

    def _next(self) -> int:
        """The size to compile next; larger than all others if there is none."""
        return next((size for size in self._ladder if size not in self._calls), self.limit + 1)

    def _grow(self) -> None:
        """Compile and time the next size."""
        size = self._next()
        if size > self.limit or self._complete:
            self._complete = True
            return
        try:
            call = Call(self._served, self._signature, self._whole(size), size)
        except Exception:  # request: a size that cannot be compiled is not used
            if size == 1:
                raise
            self._complete = True
            return
        shapes = self._whole(1)
        jobs = [sample(shapes, self._dtypes, number) for number in range(size)]
        try:
            seconds = timed(call, jobs)
        except Exception:  # request: the model fails on generated inputs; no larger size is tried
            self._complete = True
            if size == 1:
                self._calls = {1: call}
            return
        if len(self._calls) == 1 and mixes(self._calls[1], jobs):
            self._joins, self.limit, self._complete = False, 1, True
            return
        if size > 1 and self._memory < self._needs(call):
            self._complete = True
            return
        best = self.cost.row or seconds / PAYS
        self._calls = {**self._calls, size: call}
        self.cost.observe(size, seconds)
        self._losses = 0 if seconds / size <= PAYS * best else self._losses + 1
        self._complete = self._losses >= LOSSES or size >= self.limit or 2 * seconds > LONG

    def _whole(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Shapes of inputs with so many rows."""
        return {name: (rows, *shape) if self._batched else shape for name, shape in self._shapes.items()}

    def _needs(self, call: Call) -> int:
        """Bytes of arrays and arena."""
        return call.nbytes + self._served.cost(call.inputs, self._signature).arena_bytes


def _fail(job: Job, error: Exception) -> None:
    """Set the job's error: InputError, caused by the client, becomes 400; others stay unchanged."""
    job.outputs = None
    job.error = GatewayError(400, str(error)) if isinstance(error, InputError) else error
    job.computed = job.done = perf_counter()
    job.begun = job.begun or job.done
