"""What computes batches: the interface the scheduler knows, and the one of ordinary models."""

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
"""Sizes that are compiled, as far as they pay."""
LONG = 0.25
"""Seconds above which no batch is tried: whoever comes next would wait for all of it."""
PAYS = 0.98
"""Of the seconds a row took at best before, what it may take at most for a larger size to count as a gain."""
LOSSES = 2
"""Sizes in a row without a gain after which no larger one is tried."""


class Runner(Protocol):
    """Computes batches of jobs of one model, signature and shape of rows."""

    key: str
    """model/version/signature/shape: for logs and figures."""
    model: str
    """The model's name: fairness is between models."""
    limit: int
    """Most rows of one batch; 1 where requests are not batched. A single job may have more: it is run in pieces."""
    cost: Cost

    def run(self, jobs: Sequence[Job]) -> None:
        """Compute them: on any thread, one call at a time. Sets each job's `outputs` or `error`, its times and `batch`;
        never raises."""

    def warm(self, seconds: float = 5.0) -> None:
        """Compile and time batch sizes, before anybody asks, on any thread but the event loop's."""


class ModelRunner:
    """Batches of a model that is the same for everybody.

    Rows are copied straight into the arrays that a compiled size works on (`Model.bind`), computed by one native call
    without the interpreter's lock, and copied out per job. Which sizes are compiled: those of the ladder that pay, see
    `warm`; which of them compute a number of rows in the least time is for `cost.cover` to say.

    A model whose rows turn out to depend on one another (a scale taken over the whole batch, say) is not batched: each
    job is computed on its own, as it came. A batch that fails is run again job by job, so that only the guilty fail.
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
        """row_shapes: of every input, without its axis 0 where the ports are batched, else whole. limit: most rows of
        one batch. ladder: sizes worth a trial. memory: bytes the largest size may need for its arrays and arena."""
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
        """Whether rows of several jobs may stand in one batch."""
        self._calls: dict[int, Call] = {}
        self._growing, self._complete, self._losses = allocate_lock(), False, 0

    def run(self, jobs: Sequence[Job]) -> None:
        """See `Runner`."""
        rows = sum([job.rows for job in jobs])
        if rows >= self.cost.unknown:
            try:
                self._grow_to(rows)
            except Exception as error:  # request: the jobs get it as their answer
                for job in jobs:
                    _fail(job, error)
                return
        if rows > 1 and self._joins:
            self._together(jobs, rows)
        else:
            for job in jobs:
                self._alone(job)

    def warm(self, seconds: float = 5.0) -> None:
        """Compile and time sizes, smallest first, until they no longer pay or the time is over: before traffic or
        beside it, on any thread but the event loop's. A runner that is not warmed does so when as many rows come.

        Raises what planning a batch of 1 raises: the model cannot be run.
        """
        end = perf_counter() + seconds
        while not self._complete:
            self._grow_to(self._next(), wait=True)
            if perf_counter() > end:
                return

    @property
    def sizes(self) -> tuple[int, ...]:
        """What is compiled."""
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
        """One job as one batch of just its size."""
        begun = job.begun = perf_counter()
        rows = job.batch = job.rows
        try:
            if rows == 1 or self._joins:
                self._calls[rows].compute(job)
            else:
                job.outputs = self._served.run(job.inputs, self._signature)
                job.computed = job.done = perf_counter()
        except Exception as error:  # request: the job gets it as its answer
            _fail(job, error)
            return
        took = job.done - begun
        if self._joins:
            self.cost.observe(rows, took)
        else:
            self.cost.observe(1, took / rows)

    def _grow_to(self, rows: int, *, wait: bool = False) -> None:
        """Compile sizes up to so many rows, unless somebody else is at it; until 2 is there, nothing is known of the
        model, and everybody waits."""
        if self._growing.acquire(wait or len(self._calls) < 2):
            try:
                while not self._complete and self._next() <= rows:
                    self._grow()
            finally:
                self.cost.unknown = inf if self._complete else self._next()
                self._growing.release()

    def _next(self) -> int:
        """The size to be compiled next, beyond all if there is none."""
        return next((size for size in self._ladder if size not in self._calls), self.limit + 1)

    def _grow(self) -> None:
        """Compile and time the next size."""
        size = self._next()
        if size > self.limit or self._complete:
            self._complete = True
            return
        try:
            call = Call(self._served, self._signature, self._whole(size), size)
        except Exception:  # request: a batch that cannot be had is not used
            if size == 1:
                raise
            self._complete = True
            return
        shapes = self._whole(1)
        jobs = [sample(shapes, self._dtypes, number) for number in range(size)]
        try:
            seconds = timed(call, jobs)
        except Exception:  # request: made-up inputs are not for this model, which grows no further
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
        """Shapes of inputs of so many rows."""
        return {name: (rows, *shape) if self._batched else shape for name, shape in self._shapes.items()}

    def _needs(self, call: Call) -> int:
        """Bytes of arrays and arena."""
        return call.nbytes + self._served.cost(call.inputs, self._signature).arena_bytes


def _fail(job: Job, error: Exception) -> None:
    """InputError is the client's: 400. Others are what they are."""
    job.outputs = None
    job.error = GatewayError(400, str(error)) if isinstance(error, InputError) else error
    job.computed = job.done = perf_counter()
    job.begun = job.begun or job.done
