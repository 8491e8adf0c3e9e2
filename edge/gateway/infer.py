"""One inference, from the request to the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.job import Job
from edge.gateway.models.entry import Asleep
from edge.gateway.models.served import Served
from edge.gateway.protocol.elements import texts
from edge.gateway.protocol.request import Request
from edge.gateway.sequences.registry import Key, Step
from lite_runtime.errors import InputError, MsedgeError

if TYPE_CHECKING:
    from edge.gateway.batching.scheduler import Scheduler
    from edge.gateway.models.repository import Repository
    from edge.gateway.operate.logs import RequestIds
    from edge.gateway.operate.settings import Settings
    from edge.gateway.operate.statistics import Statistics
    from edge.gateway.sequences.registry import Sequences
    from edge.gateway.sequences.stream import Stream

__all__ = ["DEVICE", "LABEL", "Exchange", "Host", "refused"]

DEVICE, LABEL = "x-msedge-device", "x-msedge-label"
"""Header fields: the device whose personal version is requested (like `parameters.device`), and the model's label."""
LARGE = 256 << 10
"""Bytes of JSON that the loop's thread parses itself: a millisecond's work at most."""


T = TypeVar("T")


class Host(Protocol):
    """The methods that an exchange needs from the gateway."""

    settings: Settings
    ids: RequestIds
    under_way: int
    repository: Repository
    scheduler: Scheduler
    sequences: Sequences
    statistics: Statistics
    watching: bool

    def admit_inference(self, ask: Ask) -> None:
        """Raise GatewayError if the client is not allowed to ask."""

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

    def ended(
        self, ask: Ask, identity: str, status_: int, seconds: float, job: Any, served: Served | None
    ) -> None:
        """Called when a request was answered."""

    def bug(self, error: BaseException, where: str, **facts: Any) -> None:
        """An internal error: logged, not shown to clients."""


class Exchange:
    """One request from start to reply; call `begin` once. Everything runs on the event loop's thread.

    Most requests go from `begin` to the scheduler without waiting for anything but the model. Requests that must wait
    for something else (an unloaded model, a device's version on disk, an image to decode) continue in a task.
    """

    __slots__ = (
        "_answered",
        "_arrived",
        "_ask",
        "_gateway",
        "_identity",
        "_job",
        "_reply",
        "_request",
        "_served",
        "_step",
        "_task",
    )

    def __init__(self, gateway: Host, ask: Ask, reply: Callable[[Answer], None]) -> None:
        self._gateway, self._ask, self._reply = gateway, ask, reply
        self._served: Served | None = None
        self._request: Request | None = None
        self._job: Job | None = None
        self._task: asyncio.Task[None] | None = None
        self._step: Step | None = None
        self._answered = False

    def begin(self) -> None:
        """Start processing; the reply comes now or later."""
        gateway, ask = self._gateway, self._ask
        self._arrived = perf_counter()
        fields = ask.fields
        given = fields.get("x-request-id")
        self._identity = gateway.ids.of(given)
        gateway.under_way += 1
        try:
            gateway.admit_inference(ask)
            served = gateway.repository.route(ask.model, ask.version, fields.get(LABEL, ""), given or "")
            self._take(served)
        except Asleep:
            self._later(self._wake)
        except Exception as error:  # request: answered as `_fail` says
            self._fail(error)

    def cancel(self) -> None:
        """The client closed the connection: work that has not started is dropped, and there is no reply."""
        if self._answered:
            return
        self._close()
        if self._task is not None:
            self._task.cancel()
        if self._job is not None:
            self._gateway.scheduler.cancel(self._job)
        if self._step is not None:
            self._gateway.sequences.cancel(self._step)
        gateway, served, now = self._gateway, self._served, perf_counter()
        if served is not None:
            gateway.statistics.of(served.name, served.version).fail(self._job, 499, now)
            served.release()
        if gateway.watching:
            gateway.ended(self._ask, self._identity, 499, now - self._arrived, self._job, served)

    # -- from the request to the model ---------------------------------------------------------------------------------

    def _take(self, served: Served) -> None:
        """Parse the request for this version, and pass it on to the model."""
        ask = self._ask
        served.acquire(self._arrived)
        self._served = served
        if ask.form.size(ask.fields, ask.body) > LARGE:
            self._later(self._read, served)
        else:
            self._go(served, ask.form.read(ask.fields, ask.body, served.ports_for))

    async def _read(self, served: Served) -> None:
        """Parse large JSON on another thread, so that other requests are served at the same time."""
        ask, ports = self._ask, served.ports_for
        self._go(served, await self._gateway.aside(lambda _: ask.form.read(ask.fields, ask.body, ports), None))

    def _go(self, served: Served, request: Request) -> None:
        """Pass the parsed request on to the model."""
        ask, parameters = self._ask, request.parameters
        self._request = request
        timeout, signature = parameters.get("timeout", 0), parameters.get("signature", served.first)
        job = self._job = Job(
            request.inputs,
            request.rows,
            self._finished,
            arrived=self._arrived,
            signature=signature if signature in served.ports else served.first,
            priority=parameters.get("priority", 0) or served.config.priority,
            deadline=min(ask.deadline, self._arrived + timeout * 1e-6 if timeout else inf),
            device=ask.fields.get(DEVICE) or parameters.get("device", ""),
        )
        if _piped(served, job.signature) or (job.device and not self._gateway.at_hand(job, served, ask)):
            self._later(self._prepare, served, job)
        else:
            self._submit(served, job)

    async def _prepare(self, served: Served, job: Job) -> None:
        """Run the pre-processing, on another thread."""
        gateway = self._gateway
        if job.device and not gateway.at_hand(job, served, self._ask):
            await gateway.fetch(job, served)
        if _piped(served, job.signature):
            refusal = gateway.scheduler.full(served.name)  # first: no image is decoded for a refused request
            if refusal is not None:
                raise refusal
            job.inputs = await gateway.aside(served.processing.before, job.inputs)
            job.rows = next(iter(job.inputs.values())).shape[0] if served.ports[job.signature].batched else 1
        self._submit(served, job)

    def _submit(self, served: Served, job: Job) -> None:
        stream = served.streams.get(job.signature)
        if stream is not None:
            self._step = self._place(served, stream, job)
            self._gateway.sequences.enter(self._step)
            return
        if self._request is not None and self._request.parameters.get("sequence_id"):
            raise GatewayError(400, f"sequence_id: model {served.name!r} keeps no state between requests; omit it")
        self._compute(served, job)

    def _place(self, served: Served, stream: Stream, job: Job) -> Step:
        """The request's place in its sequence. Raises GatewayError (400) if it names none."""
        parameters = self._request.parameters if self._request is not None else {}
        identity = parameters.get("sequence_id", 0)
        if not identity:
            raise GatewayError(
                400, f"sequence_id: model {served.name!r} keeps state between requests; expected a number or text that"
                " names the sequence, got none; send sequence_start true with its first request"
            )  # fmt: skip

        def go(state: Mapping[str, Any]) -> None:
            job.inputs = {**job.inputs, **state}
            try:
                self._compute(served, job)
            except Exception as error:  # request: answered as `_fail` says
                self._fail(error)

        return Step(
            Key(served.name, served.version, job.signature, identity, self._gateway.owner(self._ask)), stream, go,
            self._fail,
            start=parameters.get("sequence_start", False), end=parameters.get("sequence_end", False),
        )  # fmt: skip

    def _compute(self, served: Served, job: Job) -> None:
        for name, array in job.inputs.items():
            if array.dtype.hasobject:
                job.inputs = {**job.inputs, name: texts(array, name)}
        self._gateway.scheduler.submit(job, served.runner_for(job))

    def _later(self, way: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(self._guarded(way, *given))

    async def _guarded(self, way: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        try:
            await way(*given)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # request: answered as `_fail` says
            self._fail(error)

    async def _wake(self) -> None:
        """Wait until a model that was unloaded to save memory is loaded again."""
        ask = self._ask
        await self._gateway.repository.wake(ask.model)
        label, identity = ask.fields.get(LABEL, ""), ask.fields.get("x-request-id", "")
        self._take(self._gateway.repository.route(ask.model, ask.version, label, identity))

    # -- from the model to the reply -----------------------------------------------------------------------------------

    def _finished(self, job: Job) -> None:
        """Called when the scheduler has finished the job."""
        served = self._served
        assert served is not None
        if self._step is not None:
            self._gateway.sequences.leave(self._step, job.outputs if job.error is None else None)
        if job.error is not None:
            self._fail(job.error)
        elif _piped(served, job.signature):
            self._later(self._complete, served, job)
        else:
            self._answer(served, job, job.outputs)

    async def _complete(self, served: Served, job: Job) -> None:
        self._answer(served, job, await self._gateway.aside(served.processing.after, job.outputs))

    def _answer(self, served: Served, job: Job, outputs: Any) -> None:
        request, gateway = self._request, self._gateway
        assert request is not None
        try:
            ports = served.ports_for(job.signature)
            labels = served.labels.get("")
            reply = self._ask.form.write(served.name, served.version, request, outputs, ports, job.notes, labels)
            if sum(map(len, reply.parts)) > gateway.settings.limits.reply:
                most = gateway.settings.limits.reply
                raise GatewayError(413, f"the reply is larger than {most} bytes; ask for fewer outputs or rows")
        except Exception as error:  # request: answered as `_fail` says
            self._fail(error)
            return
        now = perf_counter()
        gateway.statistics.of(served.name, served.version).record(job, now)
        if served.shadow is not None and self._step is None:
            served.shadow.after(job, gateway.scheduler.submit)
        self._close()
        served.release()
        if gateway.watching:
            gateway.ended(self._ask, self._identity, 200, now - self._arrived, job, served)
        self._reply(Answer(200, reply.parts, reply.header_length, (("X-Request-ID", self._identity),)))

    def _fail(self, error: BaseException) -> None:
        """Reply with an error."""
        if self._answered:
            return
        if self._step is not None:
            self._gateway.sequences.cancel(self._step)
        gateway, served, now = self._gateway, self._served, perf_counter()
        status, _, _ = _told(error)
        if status == 500 and not isinstance(error, GatewayError):
            gateway.bug(error, f"infer {self._ask.model}", id=self._identity)
        if served is not None:
            gateway.statistics.of(served.name, served.version).fail(self._job, status, now)
            served.release()
        gateway.statistics.refused["infer", status] += 1
        self._close()
        if gateway.watching or status == 500:
            gateway.ended(self._ask, self._identity, status, now - self._arrived, self._job, served)
        self._reply(refused(error, self._identity, self._ask))

    def _close(self) -> None:
        self._answered = True
        self._gateway.under_way -= 1


def refused(error: BaseException, identity: str, ask: Ask) -> Answer:
    """The reply to a request that failed."""
    status, text, retry = _told(error)
    fields = [("X-Request-ID", identity)]
    if retry is not None:
        fields.append(("Retry-After", str(max(1, round(retry)))))
    if status == 401:
        fields.append(("WWW-Authenticate", 'Bearer realm="msedge"'))
    return Answer(status, [ask.form.error(text)], None, fields)


def _piped(served: Served, signature: str) -> bool:
    """Whether the bundle declares processing for this signature."""
    return served.processing is not None and signature == served.first


def _told(error: BaseException) -> tuple[int, str, float | None]:
    """Status, text, and seconds until a retry makes sense."""
    if isinstance(error, GatewayError):
        return error.status, str(error), error.retry_after
    if isinstance(error, InputError):
        return 400, str(error), None
    if isinstance(error, MsedgeError):
        return 500, str(error), None
    return 500, "internal server error; the gateway's log has the details", None
