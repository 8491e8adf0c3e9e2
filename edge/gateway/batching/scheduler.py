"""The scheduler: which jobs are computed together, when, and by which worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from edge.gateway.batching.admission import Limits, Load, admit, check_deadline, check_room, check_rows
from edge.gateway.batching.executor import Batch, Executor, Threads
from edge.gateway.batching.fairness import Lane, Share, turn
from edge.gateway.batching.forecast import Stage, busy, forecast, longest, most
from edge.gateway.batching.runner import Runner
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job, nobody

__all__ = ["Scheduler"]

LITTLE, SPARED = 0.25, 30e-6
"""Share of its time, and seconds, that a job must save as part of a batch to be delayed for others: the delay itself
costs as much."""
SHORT = 20e-3
"""A batch of at most so many seconds is given to a worker that still computes another. With longer batches, the pause
until the event loop has noticed the end of the first is too small to justify fixing the order early."""
SWEEP = 20e-3
"""Seconds between checks for jobs whose deadline has passed."""


class Scheduler:
    """Accepts or refuses jobs, and has accepted jobs computed: at once if nothing else waits, otherwise in batches.

    Small jobs are computed on the event loop's thread: at once if batches gain little, else at the end of the loop's
    turn, together with all jobs that arrived in it. Others go to the executor; jobs that arrive while it works fill the
    next batch, and no job waits for a batch to fill while a worker is idle. Models compete by the seconds they used,
    not by requests.

    Everything here runs on the event loop's thread, but `waiting` and `snapshot`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        threads: int = 1,
        inline: float = 200e-6,
        limits: Limits | None = None,
        executor: Callable[[int, Callable[[Batch], None]], Executor] = Threads,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """threads: batches computed at the same time, each of another runner. inline: predicted seconds up to which the
        loop's thread computes a job itself; 0: never. limits: for models without a call of `configure`."""
        self._loop, self._inline, self._clock = loop, inline, clock
        self._limits = limits or Limits()
        self._executor = executor(threads, self._tell)
        self._given: list[list[Batch]] = [[] for _ in range(threads)]
        """For each worker: the batch that it computes, and the one after it."""
        self._shares: dict[str, Share] = {}
        self._lanes: dict[Runner, Lane] = {}
        """Runners with work."""
        self._waiting: dict[Job, tuple[Lane, float]] = {}
        """Jobs in queues, with their predicted seconds."""
        self._dispatching, self._sweeping, self._draining = False, False, False
        self._virtual = 0.0
        self._empty: asyncio.Event | None = None

    def configure(self, model: str, limits: Limits) -> None:
        """Set a model's limits, from the next request on."""
        share = self._shares.setdefault(model, Share(model, limits))
        share.limits = limits

    def forget(self, model: str) -> None:
        """Drop the account of a model that is no longer served, unless it still has work."""
        share = self._shares.get(model)
        if share is not None and not share.lanes and not share.load.flying:
            del self._shares[model]

    def submit(self, job: Job, runner: Runner) -> None:
        """Accept a job. It may be finished before this returns.

        Raises GatewayError for a refused job: 400 for more rows than may ever wait, 429 if overloaded, 503 while
        draining, 504 if the deadline has passed.
        """
        now = self._clock()
        share = self._shares.get(runner.model) or self._share(runner.model)
        limits = share.limits
        if self._draining and not job.accepted:
            share.refused[503] += 1
            job.finish = nobody
            raise _draining()
        job.deadline = min(job.deadline, job.arrived + limits.timeout)
        cost = runner.cost
        seconds = cost.predict(job.rows)
        if (
            seconds is not None
            and seconds <= self._inline
            and not share.lanes
            and seconds - job.rows * (cost.row or 0.0) <= max(SPARED, LITTLE * seconds)
            and now + seconds <= job.deadline
            and job.rows <= limits.rows
        ):
            runner.run((job,))
            share.charge(self._clock() - now)
            self._finish(job)
            return
        lane = self._lanes.get(runner)
        wait, half = forecast(job, runner, share, self._lanes, self._given, now)
        factor = share.calibration.factor
        try:
            if job.accepted:
                check_deadline(job, now)
            else:
                admit(job, limits, share.load, now, factor * wait, factor * half)
        except GatewayError as error:
            share.refused[error.status] += 1
            job.finish = nobody
            raise
        if lane is None:
            lane = self._open(runner, share)
        lane.queue.push(job)
        self._waiting[job] = lane, wait
        load = share.load
        load.rows += job.rows
        load.jobs += 1
        load.flying += 1
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(SWEEP, self._sweep)

    def accept(self, names: Sequence[str], job: Job, stages: Sequence[Stage]) -> Callable[[], None]:
        """Accept a request that is computed as several jobs, which are then submitted with `accepted` set. The returned
        function must be called when it has ended.

        names: of the ensemble, and of those in it. Raises GatewayError as `submit`, in advance for all stages: if the
        queue of one is full, or if the longest way through them ends after the deadline.
        """
        now = self._clock()
        shares = [self._shares.get(name) or self._share(name) for name in names]
        share = shares[0]
        job.deadline = min(job.deadline, job.arrived + share.limits.timeout)
        wait = longest(stages, lambda stage: self._takes(stage, job, now))
        try:
            if self._draining:
                raise _draining()
            for stage in stages:
                of_model = self._shares.get(stage.model) or self._share(stage.model)
                check_rows(of_model.limits, stage.rows)
                check_room(of_model.limits, of_model.load, stage.rows, wait / 2)
            for other in shares[1:]:
                check_room(other.limits, other.load, job.rows, wait / 2)
            admit(job, share.limits, share.load, now, share.calibration.factor * wait, wait / 2)
        except GatewayError as error:
            share.refused[error.status] += 1
            raise
        for each in shares:
            each.load.rows += job.rows
            each.load.jobs += 1
            each.load.flying += 1
        return partial(self._ended, shares, job, wait)

    def _takes(self, stage: Stage, job: Job, now: float) -> float:
        """Predicted seconds of a stage, if its job were submitted now."""
        if stage.runner is None:
            return 0.0
        share = self._shares.get(stage.model) or self._share(stage.model)
        probe = Job({}, stage.rows, arrived=now, priority=job.priority)
        return share.calibration.factor * forecast(probe, stage.runner, share, self._lanes, self._given, now)[0]

    def _ended(self, shares: Sequence[Share], job: Job, wait: float) -> None:
        """An accepted request of several jobs has ended."""
        if job.error is None and not job.cancelled:
            shares[0].calibration.observe(wait, self._clock() - job.arrived)
        for share in shares:
            self._left(job, share)
            self._landed(share)

    def full(self, model: str) -> GatewayError | None:
        """The error with which any request for this model would be refused, known before its body is read; else
        None."""
        share = self._shares.get(model)
        load, limits = (share.load, share.limits) if share is not None else (Load(), self._limits)
        try:
            if self._draining:
                raise _draining()
            check_room(limits, load, 1, 1.0)
        except GatewayError as error:
            if share is not None:
                share.refused[error.status] += 1
            return error
        return None

    def cancel(self, job: Job) -> None:
        """Cancel a job: it is not computed unless that has begun, and `finish` is not called."""
        ticket = self._waiting.pop(job, None)
        job.cancelled, job.finish = True, nobody
        if ticket is not None:
            lane = ticket[0]
            lane.queue.remove(job)
            self._left(job, lane.share)
            self._landed(lane.share)
            self._close(lane)

    async def drain(self, seconds: float) -> bool:
        """Accept no more jobs and wait until all accepted ones are finished; after so many seconds the remaining ones
        end with 503, also those in batches that a worker has begun. Returns whether all were finished."""
        self._draining = True
        self._empty = asyncio.Event()
        if any(share.load.flying for share in self._shares.values()):
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                self._give_up()
                return False
        return True

    def close(self) -> None:
        """Stop the workers."""
        self._draining = True
        self._executor.close()

    def snapshot(self) -> dict[str, Any]:
        """The state as plain data: waiting and refused work by model, current work by worker."""
        now = self._clock()
        workers = [
            [
                {"runner": b.runner.key, "rows": b.rows, "seconds": now - b.began if b.began else 0.0}
                for b in tuple(given)
            ]
            for given in self._given
        ]
        models = {share.model: share.figures() for share in tuple(self._shares.values())}
        return {"models": models, "workers": workers, "draining": self._draining}

    def waiting(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Jobs and rows in queues, by model and version. Any thread may ask."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for runner, lane in tuple(self._lanes.items()):  # at once: the loop's thread opens and drops lanes
            model, version, *_ = runner.key.split("/")
            jobs, rows = found.get((model, version), (0, 0))
            found[model, version] = jobs + lane.queue.jobs, rows + lane.queue.rows
        return found

    def _share(self, model: str) -> Share:
        share = self._shares[model] = Share(model, self._limits)
        return share

    def _open(self, runner: Runner, share: Share) -> Lane:
        lane = self._lanes[runner] = Lane(runner, share)
        if not share.lanes:
            share.served = max(share.served, self._virtual)
        share.lanes += 1
        return lane

    def _close(self, lane: Lane) -> None:
        """Drop a lane without work, unless that was done before and its runner has a new lane."""
        if not lane.queue.jobs and not lane.computing and self._lanes.get(lane.runner) is lane:
            del self._lanes[lane.runner]
            lane.share.lanes -= 1

    def _dispatch(self) -> None:
        """Give all possible batches to workers."""
        self._dispatching = False
        for lane in tuple(self._lanes.values()):
            self._here(lane)
        while (found := self._next(self._clock())) is not None:
            self._give(*found)

    def _here(self, lane: Lane) -> None:
        """Compute all waiting jobs of a model on this thread, if it is little work and no worker has that model."""
        queue, cost = lane.queue, lane.runner.cost
        if not queue.jobs or lane.share.computing or queue.rows > lane.runner.limit:
            return
        seconds = cost.predict(queue.rows)
        if seconds is None or seconds > self._inline:
            return
        began = self._clock()
        self._expire(lane, began)
        batch = self._taken(lane, queue.rows)
        if batch is None:
            return
        batch.compute(self._clock)
        lane.share.charge(batch.ended - began)
        self._finished(batch, lane)

    def _next(self, now: float) -> tuple[Lane, int] | None:
        """The next lane for which there is a worker, and that worker."""
        waiting = [lane for lane in self._lanes.values() if lane.queue.jobs]
        if not waiting:
            return None
        if len(waiting) > 1:
            least = min(lane.share.served for lane in waiting)
            waiting.sort(key=lambda lane: turn(lane, now, least))
        for lane in waiting:
            worker = self._worker(lane, now)
            if worker is not None:
                return lane, worker
        return None

    def _worker(self, lane: Lane, now: float) -> int | None:
        """A worker that is idle, or has little to do if enough rows wait for a good batch; None: later.

        Batches of one runner go to one worker: they are computed one at a time.
        """
        if lane.computing:
            worker = lane.worker
        else:
            worker = min(range(len(self._given)), key=lambda w: (len(self._given[w]), busy(self._given[w], now)))
        given = self._given[worker]
        if not given:
            return worker
        cost = lane.runner.cost
        ready = (
            len(given) == 1
            and lane.queue.rows >= cost.best
            and given[0].predicted <= SHORT
            and (cost.predict(cost.best) or SHORT) < SHORT
        )
        return worker if ready else None

    def _give(self, lane: Lane, worker: int) -> None:
        """Take a batch from a lane and have it computed."""
        self._expire(lane, self._clock())
        batch = self._taken(lane, most(lane.runner, lane.queue.rows))
        if batch is None:
            return
        share = lane.share
        self._virtual = max(self._virtual, share.served)
        share.charge(batch.predicted)
        share.computing += 1
        lane.computing += 1
        lane.worker, lane.latest = worker, batch.rows
        batch.worker = worker
        self._given[worker].append(batch)
        self._executor.give(batch)

    def _taken(self, lane: Lane, rows: int) -> Batch | None:
        """The next batch of a lane; None if nothing is left, and the lane is dropped."""
        jobs = lane.queue.take(rows)
        if not jobs:
            self._close(lane)
            return None
        wait = self._waiting[jobs[0]][1]
        for job in jobs:
            del self._waiting[job]
            self._left(job, lane.share)
        count = sum([job.rows for job in jobs])
        return Batch(lane.runner, jobs, count, lane.runner.cost.predict(count) or 0.0, wait)

    def _tell(self, batch: Batch) -> None:
        """Called on a worker's thread with a finished batch."""
        self._loop.call_soon_threadsafe(self._computed, batch)

    def _computed(self, batch: Batch) -> None:
        """A worker has finished a batch: give it the next one before this one's answers are written."""
        self._given[batch.worker].remove(batch)
        lane = self._lanes[batch.runner]
        lane.computing -= 1
        lane.share.computing -= 1
        lane.share.charge(batch.ended - batch.began - batch.predicted)
        self._dispatch()
        self._finished(batch, lane)

    def _finished(self, batch: Batch, lane: Lane) -> None:
        share = lane.share
        share.calibration.observe(batch.wait, self._clock() - batch.jobs[0].arrived)
        for job in batch.jobs:
            self._landed(share)
            self._finish(job)
        self._close(lane)

    def _finish(self, job: Job) -> None:
        """Call the job's `finish`; an error in it must not affect other jobs."""
        if job.cancelled:
            return
        finish, job.finish = job.finish, nobody
        try:
            finish(job)
        except Exception as error:  # request: others are still answered
            self._loop.call_exception_handler({"message": "a finished job could not be answered", "exception": error})

    def _left(self, job: Job, share: Share) -> None:
        """Update the accounts: a job has left the queue."""
        share.load.rows -= job.rows
        share.load.jobs -= 1

    def _landed(self, share: Share) -> None:
        """Update the accounts: a job has ended."""
        share.load.flying -= 1
        if self._empty is not None and not any(other.load.flying for other in self._shares.values()):
            self._empty.set()

    def _sweep(self) -> None:
        now = self._clock()
        for lane in tuple(self._lanes.values()):
            self._expire(lane, now)
            self._close(lane)
        self._sweeping = bool(self._waiting)
        if self._sweeping:
            self._loop.call_later(SWEEP, self._sweep)

    def _expire(self, lane: Lane, now: float) -> None:
        share = lane.share
        for job in lane.queue.expire(now):
            share.calibration.observe(self._waiting[job][1], now - job.arrived)
            self._refuse(job, lane, GatewayError(504, "the deadline passed while the request waited"), now)

    def _give_up(self) -> None:
        now = self._clock()
        for lane in tuple(self._lanes.values()):
            for job in tuple(lane.queue):
                lane.queue.remove(job)
                job.cancelled = False
                self._refuse(job, lane, GatewayError(503, "the server was shut down before this request"), now)
            self._close(lane)

    def _refuse(self, job: Job, lane: Lane, error: GatewayError, now: float) -> None:
        """Refuse a job that has waited."""
        del self._waiting[job]
        self._left(job, lane.share)
        lane.share.refused[error.status] += 1
        job.error, job.begun, job.computed, job.done = error, now, now, now
        self._landed(lane.share)
        self._finish(job)


def _draining() -> GatewayError:
    return GatewayError(503, "the server is shutting down; use another one", retry_after=1.0)
