"""What one version of a model computes for one request: from checked inputs to outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edge.gateway.cache import ResponseCache, key_of
from edge.gateway.confident import calibration_for, told_of
from edge.gateway.ensembles.ensemble import Target
from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Ask
from edge.gateway.job import Job, nobody
from edge.gateway.models.served import Served
from edge.gateway.ports import nbytes_of
from edge.gateway.protocol.elements import texts
from edge.gateway.sequences.registry import Key, Step
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from edge.gateway.batching.scheduler import Scheduler
    from edge.gateway.sequences.registry import Sequences
    from edge.gateway.sequences.stream import Stream

__all__ = ["Computation", "Host", "Run", "later"]

LARGE = 128 << 10
"""Bytes of inputs that the loop's thread digests itself: 200 microseconds."""

T = TypeVar("T")


class Host(Protocol):
    """The methods that a run needs from the gateway."""

    scheduler: Scheduler
    sequences: Sequences
    cache: ResponseCache | None

    async def aside(self, what: Callable[[Any], T], given: Any) -> T:
        """Call a function on another thread."""
        raise NotImplementedError

    def at_hand(self, job: Job, served: Served, ask: Ask) -> bool:
        """Whether the version for a job that names a device is in memory, and the client is that device."""
        raise NotImplementedError

    def owner(self, ask: Ask) -> str:
        """Who the request's sequence belongs to."""
        raise NotImplementedError

    async def fetch(self, job: Job, served: Served) -> None:
        """Load the personal version of a job's device."""


class Computation:
    """One job, from checked inputs to outputs: computed, or found in the cache.

    Call `begin` once. `finish(computation)` is then called exactly once, on the event loop's thread, perhaps before
    `begin` returns, unless it is cancelled: `job.error` is set, or `outputs` are, those of the ports that clients see.
    """

    __slots__ = ("_ask", "_finish", "_host", "_key", "_target", "_task", "job", "outputs")

    def __init__(self, host: Host, target: Target, job: Job, ask: Ask, finish: Callable[[Any], None]) -> None:
        """target: acquired by the caller. ask: who asks."""
        self._host, self._target, self._ask = host, target, ask
        self._finish: Callable[[Any], None] | None = finish
        self._task: asyncio.Task[None] | None = None
        self._key: tuple[bytes, tuple[int, ...]] | None = None
        """Under which the answer is to be kept."""
        self.job = job
        self.outputs: Mapping[str, Array] | None = None

    def begin(self) -> None:
        """Start computing."""
        try:
            cache = self._host.cache
            if cache is not None and self._target.config.response_cache and self._same_for_all:
                self._look_up(cache)
            else:
                self._go()
        except Exception as error:  # request: the error becomes the job's answer
            self._end(error)

    @property
    def _same_for_all(self) -> bool:
        """Whether every request with these inputs has the same answer."""
        return not self.job.device

    def cancel(self) -> None:
        """Drop what has not started; `finish` is not called."""
        self._finish = None
        self.job.cancelled = True
        if self._task is not None:
            self._task.cancel()
        self._drop()

    def _go(self) -> None:
        """Compute; calls `_end`, now or later."""
        raise NotImplementedError

    def _drop(self) -> None:
        """It was cancelled: drop what has not started."""
        raise NotImplementedError

    def _close(self) -> None:
        """It has ended."""
        raise NotImplementedError

    def _look_up(self, cache: ResponseCache) -> None:
        job, serials = self.job, self._target.serials
        begun = perf_counter()
        if sum([nbytes_of(array) for array in job.inputs.values()]) <= LARGE:
            self._looked_up(cache, key_of(serials, job.signature, job.inputs), serials, begun)
        else:
            self._task = later(self._end, self._digest, cache, serials, begun)

    async def _digest(self, cache: ResponseCache, serials: tuple[int, ...], begun: float) -> None:
        """Digest large inputs, on another thread."""
        key = await self._host.aside(lambda job: key_of(serials, job.signature, job.inputs), self.job)
        self._looked_up(cache, key, serials, begun)

    def _looked_up(self, cache: ResponseCache, key: bytes, serials: tuple[int, ...], begun: float) -> None:
        job, self.outputs = self.job, cache.get(key)
        now = perf_counter()
        job.hit, job.cache_seconds = self.outputs is not None, now - begun
        if job.hit:
            job.begun = job.computed = job.done = now
            self._end(None)
        else:
            self._key = key, serials
            self._go()

    def _end(self, error: BaseException | None) -> None:
        finish, self._finish = self._finish, None  # a cycle that would keep the request's body
        if finish is None:
            return
        job = self.job
        job.error = error
        if error is None and self._key is not None:
            self._keep(*self._key)
        self._close()
        finish(self)

    def _keep(self, key: bytes, serials: tuple[int, ...]) -> None:
        cache, begun = self._host.cache, perf_counter()
        if cache is not None and self.outputs is not None:
            cache.put(key, serials, self.outputs)
        self.job.cache_seconds += perf_counter() - begun


class Run(Computation):
    """A job on its way through a model: pre-processing, the place in its sequence, the scheduler, post-processing."""

    __slots__ = ("_calibration", "_parameters", "_piped", "_served", "_step")

    def __init__(
        self, host: Host, served: Served, job: Job, ask: Ask, parameters: Mapping[str, Any],
        finish: Callable[[Any], None],
    ) -> None:  # fmt: skip
        """parameters: the request's; others: as of a `Computation`. Raises GatewayError (400) as `calibration_for`."""
        super().__init__(host, served, job, ask, finish)
        self._served, self._parameters = served, parameters
        self._calibration = calibration_for(served, job) if parameters.get("confidence") else None
        """How confidence follows from the outputs, if the request asks for it."""
        self._piped = served.processing is not None and job.signature == served.first
        """Whether the bundle declares processing for the job's signature."""
        self._step: Step | None = None
        job.finish = self._computed

    @property
    def repeatable(self) -> bool:
        """Whether another version, given the job's inputs, could be compared with what was computed."""
        return self._step is None and not self.job.hit

    @property
    def _same_for_all(self) -> bool:
        return not self.job.device and not self._served.streams and self._calibration is None

    def _go(self) -> None:
        if self._piped or (self.job.device and not self._host.at_hand(self.job, self._served, self._ask)):
            self._task = later(self._end, self._prepare)
        else:
            self._submit()

    def _drop(self) -> None:
        self._host.scheduler.cancel(self.job)
        if self._step is not None:
            self._host.sequences.cancel(self._step)

    def _close(self) -> None:
        self.job.finish = nobody
        if self.job.error is not None and self._step is not None:
            self._host.sequences.cancel(self._step)

    async def _prepare(self) -> None:
        """Run the pre-processing, on another thread."""
        host, served, job = self._host, self._served, self.job
        if job.device and not host.at_hand(job, served, self._ask):
            await host.fetch(job, served)
        if self._piped:
            if not job.accepted:  # first: no image is decoded for a refused request
                refusal = host.scheduler.full(served.name)
                if refusal is not None:
                    raise refusal
            job.inputs = await host.aside(served.processing.before, job.inputs)
            job.rows = next(iter(job.inputs.values())).shape[0] if served.ports[job.signature].batched else 1
        self._submit()

    def _submit(self) -> None:
        stream = self._served.streams.get(self.job.signature)
        if stream is None:
            self._compute()
            return
        self._step = self._place(stream)
        self._host.sequences.enter(self._step)

    def _place(self, stream: Stream) -> Step:
        """The request's place in its sequence. Raises GatewayError (400) if it names none."""
        served, job, parameters = self._served, self.job, self._parameters
        identity = parameters.get("sequence_id", 0)
        if not identity:
            raise GatewayError(
                400, f"sequence_id: model {served.name!r} keeps state between requests; expected a number or text that"
                " names the sequence, got none; send sequence_start true with its first request"
            )  # fmt: skip

        def go(state: Mapping[str, Any]) -> None:
            job.inputs = {**job.inputs, **state}
            try:
                self._compute()
            except Exception as error:  # request: the error becomes the job's answer
                self._end(error)

        return Step(
            Key(served.name, served.version, job.signature, identity, self._host.owner(self._ask)), stream, go,
            self._end,
            start=parameters.get("sequence_start", False), end=parameters.get("sequence_end", False),
        )  # fmt: skip

    def _compute(self) -> None:
        job = self.job
        for name, array in job.inputs.items():
            if array.dtype.hasobject:
                job.inputs = {**job.inputs, name: texts(array, name)}
        self._host.scheduler.submit(job, self._served.runner_for(job))

    def _computed(self, job: Job) -> None:
        """Called when the scheduler has finished the job."""
        if self._step is not None:
            self._host.sequences.leave(self._step, job.outputs if job.error is None else None)
        if job.error is not None:
            self._end(job.error)
        elif self._piped or self._calibration is not None:
            self._task = later(self._end, self._complete)
        else:
            self.outputs = job.outputs
            self._end(None)

    async def _complete(self) -> None:
        """Run the post-processing, and compute the confidence, on another thread."""
        host, outputs = self._host, self.job.outputs
        assert outputs is not None
        if self._calibration is not None:
            self.job.notes.update(await host.aside(partial(told_of, self._calibration), outputs))
        self.outputs = await host.aside(self._served.processing.after, outputs) if self._piped else outputs
        self._end(None)


def later(
    fail: Callable[[BaseException], None], way: Callable[..., Coroutine[Any, Any, None]], *given: Any
) -> asyncio.Task[None]:
    """Await `way(*given)` in a task; what it raises is passed to `fail`."""
    return asyncio.get_running_loop().create_task(_guarded(fail, way, *given))


async def _guarded(
    fail: Callable[[BaseException], None], way: Callable[..., Coroutine[Any, Any, None]], *given: Any
) -> None:
    try:
        await way(*given)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # request: answered with this error
        fail(error)
