"""One inference, from the request to the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from edge.gateway.ensembles.ensemble import Choice, Ensemble, Target, target_of
from edge.gateway.ensembles.execution import Execution, run_of
from edge.gateway.ensembles.execution import Host as RunHost
from edge.gateway.errors import GatewayError, told
from edge.gateway.exchange import Answer, Ask
from edge.gateway.job import Job
from edge.gateway.models.entry import Asleep
from edge.gateway.protocol.layout import Shared
from edge.gateway.protocol.request import Request
from edge.gateway.running import Run, later
from edge.gateway.shared.regions import Borrowed

if TYPE_CHECKING:
    from edge.gateway.models.repository import Repository
    from edge.gateway.operate.logs import RequestIds
    from edge.gateway.operate.room import Held
    from edge.gateway.operate.settings import Settings

__all__ = ["DEVICE", "LABEL", "Exchange", "Host", "refused"]

DEVICE, LABEL = "x-msedge-device", "x-msedge-label"
"""Header fields: the device whose personal version is requested (like `parameters.device`), and the model's label."""
LARGE = 256 << 10
"""Bytes of JSON that the loop's thread parses itself: a millisecond's work at most."""
COPIED = 1 << 20
"""Bytes of shared memory that it copies itself: 100 microseconds."""


class Host(RunHost, Protocol):
    """The methods that an exchange needs from the gateway."""

    settings: Settings
    ids: RequestIds
    under_way: int
    repository: Repository
    watching: bool

    def admit_inference(self, ask: Ask) -> None:
        """Raise GatewayError if the client is not allowed to ask."""

    def borrow(self, ask: Ask, shared: Shared) -> Borrowed:
        """The regions of a request. Raises GatewayError if the client may not use them."""
        raise NotImplementedError

    def ended(self, ask: Ask, identity: str, status_: int, seconds: float, job: Any, served: Target | None) -> None:
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
        "_borrowed",
        "_choice",
        "_gateway",
        "_held",
        "_identity",
        "_job",
        "_reply",
        "_request",
        "_run",
        "_served",
        "_task",
    )

    def __init__(self, gateway: Host, ask: Ask, reply: Callable[[Answer], None]) -> None:
        self._gateway, self._ask, self._reply = gateway, ask, reply
        self._served: Target | None = None
        self._choice: Choice | None = None
        self._request: Request | None = None
        self._job: Job | None = None
        self._task: asyncio.Task[None] | None = None
        self._run: Run | Execution | None = None
        self._borrowed: Borrowed | None = None
        self._held: Held | None = None
        """The memory of inputs that were copied from regions."""
        self._answered = False

    def begin(self) -> None:
        """Start processing; the reply comes now or later."""
        gateway, ask = self._gateway, self._ask
        self._arrived = perf_counter()
        self._identity = gateway.ids.of(ask.fields.get("x-request-id"))
        gateway.under_way += 1
        try:
            gateway.admit_inference(ask)
            self._take(self._routed())
        except Asleep as error:
            self._task = later(self._fail, self._wake, error.name)
        except Exception as error:  # request: answered as `_fail` says
            self._fail(error)

    def cancel(self) -> None:
        """The client closed the connection: work that has not started is dropped, and there is no reply."""
        if self._answered:
            return
        self._close()
        if self._task is not None:
            self._task.cancel()
        if self._run is not None:
            self._run.cancel()
        gateway, served, now = self._gateway, self._served, perf_counter()
        if served is not None:
            gateway.statistics.of(served.name, served.version).fail(self._job, 499, now)
            served.release()
        if gateway.watching:
            gateway.ended(self._ask, self._identity, 499, now - self._arrived, self._job, served)

    # -- from the request to the model ---------------------------------------------------------------------------------

    def _routed(self) -> Target:
        """What answers the request. Raises as `Repository.route` and `Ensemble.assembled`."""
        ask, fields = self._ask, self._ask.fields
        given = fields.get("x-request-id", "")
        served = self._gateway.repository.route(ask.model, ask.version, fields.get(LABEL, ""), given)
        if self._choice is None and isinstance(served, Ensemble):
            self._choice = served.choice(given)
        return target_of(served, self._choice)

    async def _wake(self, name: str) -> None:
        """Wait until models that were unloaded to save memory are loaded again, one after the other."""
        while True:
            with self._choice.held() if self._choice is not None else nullcontext():
                await self._gateway.repository.wake(name)
                try:
                    self._take(self._routed())
                    return
                except Asleep as error:
                    if error.name == name:
                        raise
                    name = error.name

    def _take(self, served: Target) -> None:
        """Parse the request for this version, and pass it on to the model."""
        ask = self._ask
        served.acquire(self._arrived)
        self._served = served
        if ask.form.size(ask.fields, ask.body) > LARGE:
            self._task = later(self._fail, self._read, served)
        else:
            self._go(served, ask.form.read(ask.fields, ask.body, served.ports_for))

    async def _read(self, served: Target) -> None:
        """Parse large JSON on another thread, so that other requests are served at the same time."""
        ask, ports = self._ask, served.ports_for
        self._go(served, await self._gateway.aside(lambda _: ask.form.read(ask.fields, ask.body, ports), None))

    def _go(self, served: Target, request: Request) -> None:
        """Read what is in shared memory, if anything is."""
        self._request = request
        if request.shared is None:
            self._compute(served, request)
            return
        borrowed = self._borrowed = self._gateway.borrow(self._ask, request.shared)
        self._held = self._gateway.room.inner(self._ask.peer)
        self._held.reach(borrowed.size)
        if borrowed.size > COPIED:
            self._task = later(self._fail, self._fetch, served, request, borrowed)
        else:
            request.inputs.update(borrowed.inputs())
            self._compute(served, request)

    async def _fetch(self, served: Target, request: Request, borrowed: Borrowed) -> None:
        """Copy large inputs on another thread."""
        request.inputs.update(await self._gateway.aside(lambda of: of.inputs(), borrowed))
        self._compute(served, request)

    def _compute(self, served: Target, request: Request) -> None:
        """Pass the parsed request on to the model."""
        ask, parameters = self._ask, request.parameters
        timeout, signature = parameters.get("timeout", 0), parameters.get("signature", served.first)
        job = self._job = Job(
            request.inputs,
            request.rows,
            arrived=self._arrived,
            signature=signature if signature in served.outer else served.first,
            priority=parameters.get("priority", 0) or served.config.priority,
            deadline=min(ask.deadline, self._arrived + timeout * 1e-6 if timeout else inf),
            device=ask.fields.get(DEVICE) or parameters.get("device", ""),
        )
        self._run = run_of(self._gateway, served, job, ask, parameters, self._finished)
        self._run.begin()

    # -- from the model to the reply -----------------------------------------------------------------------------------

    def _finished(self, run: Run | Execution) -> None:
        """Called when the model has computed, or has failed."""
        if run.job.error is not None:
            self._fail(run.job.error)
        elif self._borrowed is not None and self._borrowed.room > COPIED:
            self._task = later(self._fail, self._put, run, self._borrowed)
        else:
            self._answer(run)

    async def _put(self, run: Run | Execution, borrowed: Borrowed) -> None:
        """Write large outputs to shared memory, on another thread."""
        served, outputs = self._served, run.outputs
        assert served is not None and outputs is not None
        ports = served.ports_for(run.job.signature)
        await self._gateway.aside(lambda of: of.put(outputs, ports), borrowed)
        self._answer(run)

    def _answer(self, run: Run | Execution) -> None:
        served, request, job, gateway = self._served, self._request, run.job, self._gateway
        assert served is not None and request is not None and run.outputs is not None
        try:
            ports = served.ports_for(job.signature)
            if self._borrowed is not None and self._borrowed.room <= COPIED:
                self._borrowed.put(run.outputs, ports)
            write = self._ask.form.write
            reply = write(served.name, served.version, request, run.outputs, ports, job.notes, served.labels)
            if sum(map(len, reply.parts)) > gateway.settings.limits.reply:
                most = gateway.settings.limits.reply
                raise GatewayError(413, f"the reply is larger than {most} bytes; ask for fewer outputs or rows")
        except Exception as error:  # request: answered as `_fail` says
            self._fail(error)
            return
        now = perf_counter()
        gateway.statistics.of(served.name, served.version).record(job, now)
        if served.shadow is not None and run.repeatable:
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
        gateway, served, now = self._gateway, self._served, perf_counter()
        status, _, _ = told(error)
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
        self._borrowed = None
        if self._held is not None:
            self._held.release()


def refused(error: BaseException, identity: str, ask: Ask) -> Answer:
    """The reply to a request that failed."""
    status, text, retry = told(error)
    fields = [("X-Request-ID", identity)]
    if retry is not None:
        fields.append(("Retry-After", str(max(1, round(retry)))))
    if status == 401:
        fields.append(("WWW-Authenticate", 'Bearer realm="msedge"'))
    return Answer(status, [ask.form.error(text)], None, fields)
