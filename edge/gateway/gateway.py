"""The gateway: its parts, and how they start, work together and stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from math import inf, isfinite
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, TypeVar

from edge.gateway.access.addresses import is_loopback
from edge.gateway.access.gate import Gate
from edge.gateway.access.grants import ANYBODY, Grant, matches
from edge.gateway.access.peers import Peers
from edge.gateway.adjust import Adjust
from edge.gateway.batching.admission import Limits
from edge.gateway.batching.runner import LADDER, ModelRunner, Runner
from edge.gateway.batching.scheduler import Scheduler
from edge.gateway.cache import ResponseCache
from edge.gateway.ensembles.ensemble import Target, as_target
from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.explaining import Explainer
from edge.gateway.infer import Exchange, refused
from edge.gateway.job import Job
from edge.gateway.language.embedder import embedder_of
from edge.gateway.language.figures import embedding_families
from edge.gateway.language.figures import families as language_families
from edge.gateway.language.service import Languages
from edge.gateway.models.describe import metadata
from edge.gateway.models.entry import Asleep
from edge.gateway.models.loading import Loader
from edge.gateway.models.repository import Options, Repository
from edge.gateway.models.served import Served, Shapes
from edge.gateway.models.serving import Serving
from edge.gateway.models.uploads import files_of
from edge.gateway.operate.exposition import expose
from edge.gateway.operate.logs import Log, RequestIds
from edge.gateway.operate.metrics import Gauges, LoopLag, families
from edge.gateway.operate.room import Room, memory_limit
from edge.gateway.operate.settings import Settings
from edge.gateway.operate.statistics import Statistics
from edge.gateway.operate.traces import continued, tracer
from edge.gateway.pages.openapi import document
from edge.gateway.pages.status import status
from edge.gateway.personal.heads import GLOBAL, check_device
from edge.gateway.protocol.layout import Shared
from edge.gateway.protocol.numbers import missing
from edge.gateway.protocol.parameters import LONGEST
from edge.gateway.sequences.registry import Key, Sequences
from edge.gateway.sequences.registry import Limits as SequenceLimits
from edge.gateway.shared.regions import Borrowed, Regions
from edge.gateway.sources.made import sources_of
from edge.gateway.sources.trust import Trust
from edge.gateway.sources.watching import SourceState

if TYPE_CHECKING:
    from edge.gateway.personal.service import Personal
    from edge.gateway.sequences.stream import Stream
    from lite_runtime.bundle.keys import PublicKey

__all__ = ["AUDITED", "EXTENSIONS", "NO_CUDA", "Gateway"]

T = TypeVar("T")

EXTENSIONS = (
    "binary_tensor_data", "classification", "logging", "model_configuration", "model_repository",
    "model_repository(unload_dependents)", "parameters", "schedule_policy", "sequence", "statistics", "trace",
)  # fmt: skip
"""Triton's protocol extensions that this gateway supports in any case."""
SHARED_MEMORY = "system_shared_memory"
"""The one that it supports if `access.shared_memory` says so."""
NO_CUDA = "CUDA shared memory: not supported, as models run on the processor; use system shared memory"
AUDITED = frozenset(("manage", "memory"))
"""Scopes whose requests are logged with who asked, and their outcome."""
WARM = 5.0
"""Seconds that compiling and timing batch sizes may take before a version serves requests."""
TURN, IDLE_TURNS = 1.0, 5
"""Seconds between checks of the files of tokens and certificates; and the number of these checks between checks
whether the gateway is idle and can return memory to the system."""


DAY = 86_400
"""Checks of files in a day."""
REFUSALS = 5
"""Refused clients that are logged in a second."""
SHORT = 0.7
"""The share of its memory from which the process is short of it."""
LEAST = 1 << 20
"""Bytes that the bodies and replies of all requests may always use."""
_LEVELS: Mapping[str, str] = {
    "model failed": "warning",
    "ensemble is not ready": "warning",
    "version refused": "warning",
    "source of models has a problem": "warning",
    "personal versions cannot be read": "error",
    "a personal version cannot be read": "error",
    "kernels cannot be compiled": "warning",
    "version stays on the reference": "warning",
}
"""Levels of events in the log; others are "info"."""


class Gateway:
    """Everything behind HTTP and gRPC. All methods run on the event loop's thread: `start` first, `stop` last."""

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.log = log if log is not None else Log(settings.logs)
        self.ids = RequestIds()
        self.gate = Gate(settings.access)
        self.statistics = Statistics()
        self.tracer = tracer(settings.traces)
        self.adjust = Adjust(self.log, self.tracer.share if self.tracer is not None else None)
        self.watching = self.tracer is not None or settings.logs.requests > 0
        """Whether answered requests are logged or traced."""
        self.under_way = 0
        self.leaving = False
        threads = settings.threads or len(os.sched_getaffinity(0))
        self.trust = Trust(settings.trust.keys) if settings.trust.keys else None
        loader = Loader(self._runner, self._prepare, self._gone, threads, trust=self.trust)
        options = Options(
            memory=settings.repository.memory,
            pinned=frozenset(settings.repository.pinned),
            limit=settings.batching.rows,
            tell=self._tell,
        )
        self.repository = Repository(sources_of(settings), loader, options)
        loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(loop, limits=self._limits(None))
        words = settings.sequences
        self.sequences = Sequences(SequenceLimits(words.most, words.memory, words.idle), loop.call_soon)
        self.lag = LoopLag(loop)
        self.personal = self._personal(settings)
        self._waiting = 0
        """Calls of `aside` that have not finished."""
        self._aside = ThreadPoolExecutor(max(2, threads), "msedge-aside")
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = perf_counter()
        self._watches: list[Callable[[], object]] = [self.gate.refresh, self._refresh_trust]
        self.peers = Peers(settings.access.proxies)
        self._limit = memory_limit()
        self.room = Room(16 * settings.limits.body, self.peers.trusted)
        self.cache = _cache_of(settings, self._limit)
        self.explainer = Explainer(self.scheduler, settings.explaining)
        self.languages = Languages(settings, self._limit, loop.call_soon_threadsafe, self.bug)
        self.regions = Regions(settings.limits.regions, settings.limits.region_bytes)
        self._set_budget()
        self.expiry: Callable[[], float | None] = lambda: None
        """When the certificate in use expires, in seconds since 1970; set by the server."""
        self._told, self._tellable, self._untold = 0.0, 0, 0
        """Of logged refusals: when the present second began, how many more in it, how many were left out."""
        self.calls_evicted: Callable[[], int] = lambda: 0
        """How many gRPC calls gave way because memory was short; set by the server."""
        self.idle_evicted: Callable[[], int] = lambda: 0
        """How many idle connections were closed to let others in; set by the server."""

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models. Raises GatewayError if a folder of models cannot be read."""
        loop = asyncio.get_running_loop()
        if self.personal is not None:
            await self.personal.start()
        await self.repository.start()
        self.lag.start()
        self._tasks.append(loop.create_task(self._watch()))
        self._tasks.append(loop.create_task(self._compile()))
        self._tasks.append(loop.create_task(self._poll(self.settings.repository.poll)))

    def check_named(self) -> None:
        """Raise GatewayError if a bundle that the settings name individually cannot be served, so that the operator
        sees the reason at once."""
        missing = self.repository.named - {served.name for served in self.repository.served() if not served.problem}
        for row in self.repository.index():
            if row["name"] in missing and not self.repository.ready(row["name"]):
                raise GatewayError(500, row["reason"])

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and finish accepted ones; returns whether all were finished in time."""
        self.leaving = True
        return await self.scheduler.drain(seconds)

    async def stop(self) -> None:
        """Stop all threads and tasks of the gateway."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.lag.stop()
        self.scheduler.close()
        await asyncio.to_thread(self.languages.stop)
        await self.repository.stop()
        self.regions.close()
        if self.personal is not None:
            await self.personal.close()
        self._aside.shutdown(wait=False, cancel_futures=True)
        self.explainer.close()
        if self.tracer is not None:
            self.tracer.close()
        self.log.close()

    def evicted(self) -> Mapping[str, int]:
        """Connections that gave way to others so far, by reason."""
        return {"memory": self.room.evicted + self.calls_evicted(), "connections": self.idle_evicted()}

    def watch(self, refresh: Callable[[], object]) -> None:
        """Call `refresh`, which checks whether a file has changed, every second."""
        self._watches.append(refresh)

    def refresh(self) -> None:
        """Check all watched files now: tokens, certificates and others."""
        for refresh in self._watches:
            try:
                refresh()
            except Exception as error:  # request: the other files are still checked
                self.log.event("warning", "a changed file is invalid", reason=str(error))

    def _refresh_trust(self) -> None:
        """Judge all models again if the trusted keys have changed."""
        if self.trust is not None and self.trust.refresh():
            self.log.event("info", "trusted keys have changed", keys=[key.name for key in self.trust.keys])
            judging = asyncio.get_running_loop().create_task(self.repository.judge())
            judging.add_done_callback(self._judged)
            self._tasks.append(judging)

    def _judged(self, done: asyncio.Task[None]) -> None:
        self._tasks.remove(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            self.bug(error, "judging models by the trusted keys")

    def short_of_memory(self) -> bool:
        """Whether the process uses nearly all of the memory that it may use."""
        return _resident() > SHORT * self._limit

    def give_back(self) -> None:
        """Return freed memory to the system; any thread."""
        _give_back()

    def _set_budget(self) -> None:
        """Bodies and replies may use what the settings say, or a quarter of the memory that nothing else uses, also
        when the cache is full."""
        kept = self.cache.figures if self.cache is not None else None
        free = self._limit - (_resident() - self.room.taken) - (kept.most - kept.nbytes if kept is not None else 0)
        most = min(16 * self.settings.limits.body, free // 4)
        self.room.most = self.settings.limits.bodies or max(LEAST, most)

    async def _watch(self) -> None:
        for turn in count(1):
            await asyncio.sleep(TURN)
            self.refresh()
            if self.cache is not None and self.short_of_memory():
                self.cache.shrink()
            self._set_budget()
            self.sequences.sweep()
            if turn % DAY == 1:
                self._tell_of_expiry()
            if turn % IDLE_TURNS == 0 and not self.under_way:
                await asyncio.to_thread(_give_back)

    def _tell_of_expiry(self) -> None:
        """Warn of a certificate and of keys that expire soon, once a day."""
        for key in self.trust.expiring() if self.trust is not None else ():
            days = round((key.expires - time()) / 86_400, 1)
            self.log.event("warning", "a trusted key expires; sign bundles with a newer one", key=key.name, days=days)
        expiry = self.expiry()
        days = (expiry - time()) / 86_400 if expiry is not None else inf
        if days < 14:
            self.log.event("warning", "the certificate expires soon; replace its file", days=round(days, 1))

    async def _compile(self) -> None:
        """Compile kernels that are missing, those that read requests first."""
        more = await asyncio.to_thread(missing)
        while True:
            if not await self.repository.compile(more):
                await asyncio.sleep(TURN)
            more = ()

    async def _poll(self, seconds: float) -> None:
        """Check the sources every `seconds`; 0: only until every registry was read once, and what it lists is here."""
        while seconds or self.repository.waiting:
            await asyncio.sleep(seconds or TURN)
            try:
                await self.repository.poll()
            except Exception as error:  # request: the served models stay as they are
                self.log.event("warning", "the models' sources cannot be read", reason=str(error))

    # -- requests ------------------------------------------------------------------------------------------------------

    def infer(self, ask: Ask, reply: Callable[[Answer], None]) -> Callable[[], None]:
        """See `exchange.Desk`."""
        exchange = Exchange(self, ask, reply)
        exchange.begin()
        return exchange.cancel

    def greet(self, ask: Ask) -> Answer | None:
        """See `exchange.Desk`."""
        try:
            self.admit_inference(ask)
        except GatewayError as error:
            return self.refusal(ask, error)
        return None

    def refusal(self, ask: Ask, error: Exception) -> Answer:
        """See `exchange.Desk`."""
        identity = self.ids.of(ask.fields.get("x-request-id"))
        answer = refused(error, identity, ask)
        self.statistics.refused["infer", answer.status] += 1
        if self.watching:
            self.ended(ask, identity, answer.status, 0.0, None, None)
        return answer

    def admit_inference(self, ask: Ask) -> None:
        """Raise GatewayError if the client is not allowed to ask, or the gateway is stopping."""
        if self.leaving:
            raise GatewayError(503, "the server is shutting down; use another one", retry_after=1.0)
        if not self.repository.started:
            raise GatewayError(503, "models are being loaded", retry_after=1.0)
        if not self.gate.open:
            with self._telling(ask):
                grant = self.gate.check("infer", self.client(ask), ask.fields.get("authorization"))
                if ask.model:  # over gRPC, it is in the message, which has not been read yet
                    grant.demand_model(ask.model)
                if ask.body:  # a request is counted once, also if it is admitted before its body is read
                    self.gate.quotas.take(grant)

    def client(self, ask: Ask) -> str:
        """The client's address."""
        fields = ask.fields
        return self.peers.of(ask.peer, fields.get("x-forwarded-for") or fields.get("forwarded"))

    def demand_device(self, device: str, ask: Ask) -> None:
        """Raise GatewayError (403), the same for devices that exist and others, unless the client is that device."""
        with self._telling(ask):
            if self.settings.access.devices == "certificate":
                if device != ask.certificate:
                    raise GatewayError(403, f"your certificate is not that of device {device!r:.80}")
            elif not self.gate.open:
                self.gate.check("infer", self.client(ask), ask.fields.get("authorization")).demand_device(device)

    @contextlib.contextmanager
    def _telling(self, ask: Ask) -> Iterator[None]:
        """Log a refusal."""
        try:
            yield
        except GatewayError as error:
            self.told_refusal(f"infer {ask.model}", self.client(ask), error)
            raise

    def admit(self, fields: Mapping[str, str], peer: str, scope: str, model: str = "", what: str = "") -> Grant:
        """What the client may do. fields: header fields, in upper or lower case; model: that the request names, if any;
        what: of the request, for the log. Raises GatewayError if it is not allowed to do this."""
        forwarded = fields.get("X-Forwarded-For") or fields.get("Forwarded")
        client = self.peers.of(peer, forwarded)
        try:
            grant = self.gate.check(
                scope, client, fields.get("Authorization"), fields.get("Origin"), fields.get("Host"),
                forwarded if client == peer or is_loopback(client) else None,
            )  # fmt: skip
            if model:
                grant.demand_model(model)
        except GatewayError as error:
            self.statistics.refused[scope, error.status] += 1
            self.told_refusal(what or scope, client, error)
            raise
        return grant

    def told_refusal(self, what: str, peer: str, error: GatewayError) -> None:
        """Log that a client was refused access; of many at once, a few a second, and how many were left out."""
        if error.status not in (401, 403, 429):
            return
        now = perf_counter()
        if now - self._told > 1:
            self._told, self._tellable = now, REFUSALS
        if not self._tellable:
            self._untold += 1
            return
        self._tellable -= 1
        more = {"left_out": self._untold} if self._untold else {}
        self._untold = 0
        self.log.event("warning", "access refused", asked=what, peer=peer, status=error.status, why=str(error), **more)

    def allowed_origin(self, origin: str | None) -> str | None:
        """The origin, if a browser may let its pages read replies; else None."""
        return origin if origin is not None and origin in self.settings.access.cors else None

    async def aside(self, what: Callable[[Any], T], given: Any) -> T:
        """Call `what(given)` on another thread. Raises GatewayError (429) if too many such calls are waiting."""
        if self._waiting >= self.settings.batching.queue_requests:
            raise GatewayError(429, "too many requests are waiting to be decoded", retry_after=1.0)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._aside, what, given)
        finally:
            self._waiting -= 1

    def at_hand(self, job: Job, served: Served, ask: Ask) -> bool:
        """Whether the version for a job that names a device is in memory. If the device has no personal version, the
        job is changed to use the common model, with a note in its reply. Raises GatewayError: 400 for an invalid name,
        403 for a device that the client is not."""
        check_device(job.device)
        self.demand_device(job.device, ask)
        if self.personal is None:
            job.device, job.notes["personal"] = "", GLOBAL.note
            return True
        return self.personal.admit(job, served.model)

    @contextlib.asynccontextmanager
    async def held(self, name: str, version: str, label: str) -> AsyncIterator[Target]:
        """The version of a model that answers, loaded until the block ends. Raises as `Repository.route`."""
        served = await self._routed(name, version, label)
        served.acquire(perf_counter())
        try:
            yield served
        finally:
            served.release()

    async def _routed(self, name: str, version: str, label: str) -> Target:
        while True:
            try:
                return as_target(self.repository.route(name, version, label))
            except Asleep as error:
                await self.repository.wake(error.name)

    async def fetch(self, job: Job, served: Served) -> None:
        """Load the personal version of a job's device. Raises GatewayError (503, or 504 after the job's deadline)."""
        assert self.personal is not None
        left = job.deadline - perf_counter()
        try:
            async with asyncio.timeout(left if isfinite(left) else None):
                await self.personal.ready(job, served.model)
        except TimeoutError:
            raise GatewayError(504, "the deadline passed while the device's version was being read") from None

    def ended(self, ask: Ask, identity: str, status_: int, seconds: float, job: Any, served: Target | None) -> None:
        """Called when a request was answered or failed: writes a log line and spans, if enabled."""
        context = None
        if self.tracer is not None and job is not None:
            fields = ask.fields
            parents = [fields["traceparent"]] if "traceparent" in fields else []
            states = [fields["tracestate"]] if "tracestate" in fields else []
            tracing = self.adjust.tracing(ask.model)
            context = continued(parents, states, tracing.share)
            if context.sampled and tracing.on:
                about = {"model": ask.model, "version": served.version if served else "", "rows": job.rows}
                self.tracer.record(context, f"infer {ask.model}", job, about, status_)
        if self.log.wants_request(status_):
            more = {"trace": context.trace} if context is not None else {}
            if not self.gate.open:
                more["who"] = self.gate.who(ask.fields.get("authorization"))
            self.log.request(identity, *ask.form.call(ask.model), status_, seconds, self.client(ask), **more)

    def bug(self, error: BaseException, where: str, **facts: Any) -> None:
        """Report an internal error: the details go to the log, not to clients."""
        import traceback

        lines = "".join(traceback.format_exception(error))[-4000:]
        self.log.event("error", "internal server error", where=where, error=repr(error), traceback=lines, **facts)

    # -- state and metadata --------------------------------------------------------------------------------------------

    def unready(self) -> str:
        """Why the gateway is not ready; "" if it is."""
        if self.leaving:
            return "the server is shutting down"
        if not self.repository.started:
            return "models are being loaded"
        if coming := self.repository.coming():
            return f"{', '.join(coming)}: being loaded"
        if unread := self.repository.unread():
            return f"{', '.join(unread)}: not read yet"
        return "personal versions cannot be read" if self.personal is not None and self.personal.problem else ""

    def demand_ready(self, name: str, version_: str) -> None:
        """Raise GatewayError (404, 503), with the reason, for a model that is not ready."""
        if not self.repository.ready(name, version_):
            self.repository.metadata(name, version_)
            raise GatewayError(503, f"model {name!r} is not ready")

    def language_model(self, name: str) -> dict[str, Any]:
        """A model in OpenAI's words; empty unless it is a language or embedding model that is loaded."""
        served = [s for s in self.repository.served() if s.name == name and isinstance(s, Served)]
        versions = [s for s in served if s.language is not None or s.embedder is not None]
        created = int(self.statistics.begun)
        return {"id": name, "object": "model", "created": created, "owned_by": "msedge"} if versions else {}

    async def adapted_models(self, name: str, grant: Grant, certificate: str) -> list[dict[str, Any]]:
        """A model with each of the adapters that a client may use, in OpenAI's words; none unless it is a language
        model that is loaded. Raises GatewayError (429)."""
        told = self.language_model(name)
        if not told or not self.settings.language.adapters:
            return []
        found = await self.aside(self.languages.adapters.names, name)
        if self.settings.access.devices == "certificate":
            own = [one for one in found if one == certificate]
        else:
            own = [one for one in found if matches(one, grant.devices)]
        return [{**told, "id": f"{name}:{one}", "parent": name} for one in own]

    def metadata(self) -> dict[str, Any]:
        """The protocol's server metadata."""
        more = [SHARED_MEMORY] if self.gate.rules["memory"] != "off" else []
        return {"name": "msedge", "version": version(), "extensions": sorted([*EXTENSIONS, *more])}

    def model_statistics(self, name: str, version_: str) -> Mapping[str, Any]:
        """Triton's statistics for all models, one model, or one version. Raises GatewayError (404, 503)."""
        if name:
            self.demand_ready(name, version_)
        return self.statistics.triton(name, version_)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics as Prometheus text, and its media type."""
        waiting, served = self.scheduler.waiting(), self.repository.served()
        queued = {(s.name, s.version): waiting.get((s.name, s.version), (0, 0)) for s in served}
        gauges = Gauges(
            pending={key: jobs for key, (jobs, _) in queued.items()},
            queued_rows={key: rows for key, (_, rows) in queued.items()},
            loaded_bytes={(s.name, s.version): s.nbytes for s in served},
            sequences={
                (s.name, s.version): self.sequences.count(s.name, s.version)
                for s in served
                if isinstance(s, Served) and s.streams
            },
            sequence_bytes=self.sequences.nbytes,
            sequences_expired=self.sequences.expired,
            personal_hits={s.name: self._figures(s).get("hits", 0) for s in served},
            personal_misses={s.name: self._figures(s).get("misses", 0) for s in served},
            sources=self._sources(),
            body_bytes=self.room.taken,
            body_limit=self.room.most,
            expiry=self.expiry() or 0.0,
            untrusted=self.trust.refused if self.trust is not None else 0,
            key_expiry={key.name: key.expires for key in self._keys() if isfinite(key.expires)},
            evicted=self.evicted(),
            kernels_missing=self.repository.kernels.state.of - self.repository.kernels.state.done,
            awaiting={(s.name, s.version): int(bool(s.awaits)) for s in served},
            under_way=self.under_way,
            log_dropped=self.log.dropped,
            lag=self.lag.last,
            worst_lag=self.lag.worst,
            cache=self.cache.figures if self.cache is not None else None,
        )
        hosts = {(s.name, s.version): s.language for s in served if isinstance(s, Served) and s.language is not None}
        told = language_families(self.languages.metrics(hosts))
        texts = {(s.name, s.version): s.embedder for s in served if isinstance(s, Served) and s.embedder is not None}
        return expose([*families(self.statistics, gauges), *told, *embedding_families(texts)], accept)

    def status(self) -> Mapping[str, Any]:
        """The data of the status page."""
        waiting = self.scheduler.waiting()
        state = "draining" if self.leaving else "ready" if self.repository.started else "starting"
        personal = {(s.name, s.version): self._figures(s) for s in self.repository.served()} if self.personal else {}
        index = [
            {**row, "queued": waiting.get(key, (0, 0))[1], "personal": personal.get(key)}
            for row in self.repository.snapshot()
            for key in [(row["name"], row.get("version", ""))]
        ]
        return status(
            version(), state, perf_counter() - self._begun, perf_counter(), index, self.statistics,
            queued={key: sum(of[i] for of in waiting.values()) for i, key in enumerate(("jobs", "rows"))},
            memory={
                "process": _resident(),
                "models": self.repository.nbytes,
                "limit": self.settings.repository.memory or None,
            },
            in_flight=self.under_way, lag=self.lag.last, sources=self._sources(),
            compiling=self.repository.kernels.state, keys=self._keys(),
        )  # fmt: skip

    def _keys(self) -> Sequence[PublicKey]:
        """The trusted keys."""
        return self.trust.keys if self.trust is not None else ()

    def _sources(self) -> list[SourceState]:
        """The state of everything that is read while serving."""
        found = self.repository.sources()
        if self.personal is not None:
            why = self.personal.problem
            age = time() - self.personal.read
            found.append(SourceState(self.settings.personal.store, "stale" if why else "ok", age, why))
        return found

    def document(self) -> dict[str, Any]:
        """OpenAPI."""
        shown = self.repository.served() if self.gate.open else ()  # metadata requires a token
        models = [metadata(as_target(served), [served.version]) for served in shown if not served.problem]
        return document(version(), tokens=not self.gate.open, models=models)

    # -- sequences -----------------------------------------------------------------------------------------------------

    async def sequence_state(self, key: Key, stream: Stream) -> bytes:
        """A sequence's state as a state file, for `restore_sequence` here or `Model.load_state` on a device. Raises
        GatewayError (404, 429)."""
        return await self.aside(stream.file, self.sequences.state(key))

    async def restore_sequence(self, key: Key, stream: Stream, data: memoryview) -> None:
        """Begin a sequence with the state of a state file, or set that of one. Raises GatewayError (400, 409, 429)."""
        self.sequences.restore(key, stream, await self.aside(stream.state_in, data))

    def owner(self, ask: Ask) -> str:
        """Who a request's sequences belong to: a token's or issuer's client, and the name in its certificate."""
        who = "" if self.gate.open else self.gate.owner(ask.fields.get("authorization"))
        return f"{who}\n{ask.certificate}" if ask.certificate else who

    def sequence(self, name: str, version_: str, identity: str, owner: str = "") -> tuple[Key, Stream]:
        """The sequence of that owner that a path names, which need not exist. Raises GatewayError (400, 404, 503)."""
        if len(identity) > LONGEST:
            raise GatewayError(400, f"expected a sequence of at most {LONGEST} characters, got {len(identity)}")
        served = self.repository.route(name, version_, "", "")
        if not isinstance(served, Served) or not served.streams:
            raise GatewayError(400, f"model {name!r} keeps no state between requests, so it has no sequences")
        signature = served.first if served.first in served.streams else next(iter(served.streams))
        number = int(identity) if identity.isascii() and identity.isdigit() and len(identity) < 20 else identity
        return Key(served.name, served.version, signature, number, owner), served.streams[signature]

    # -- shared memory -------------------------------------------------------------------------------------------------

    def borrow(self, ask: Ask, shared: Shared) -> Borrowed:
        """The regions of a request. Raises GatewayError: 400, 401, 403, 404."""
        self.admit({name.title(): text for name, text in ask.fields.items()}, ask.peer, "memory", what="shared memory")
        owner = self.owner(ask)
        return Borrowed(lambda name: self.regions.find(owner, name), shared)

    # -- management ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def audited(self, action: str, about: Mapping[str, str], who: str, peer: str) -> AsyncIterator[None]:
        """Log who asked for a change of what, and its outcome."""
        begun, outcome = perf_counter(), "cancelled"
        try:
            yield
            outcome = "done"
        except GatewayError as error:
            outcome = f"{error.status}: {error}"
            raise
        finally:
            level = "info" if outcome == "done" else "warning"
            seconds = round(perf_counter() - begun, 3)
            self.log.event(level, action, **about, who=who, peer=peer, outcome=outcome, seconds=seconds)

    async def load(self, name: str, given: Mapping[str, Any]) -> None:
        """Execute a load request, given its body. Raises GatewayError."""
        parameters = _parameters(given)
        config = parameters.get("config")
        if "config" in parameters and not isinstance(config, str):
            raise GatewayError(400, f"parameters.config: expected a string with JSON, got {type(config).__name__}")
        await self.repository.load(name, config, files_of(parameters) or None)

    async def unload(self, name: str, given: Mapping[str, Any], grant: Grant = ANYBODY) -> None:
        """Execute an unload request, given its body and what its client may do. Raises GatewayError."""
        dependents = _parameters(given).get("unload_dependents", False)
        if not isinstance(dependents, bool):
            raise GatewayError(400, f"parameters.unload_dependents: expected true or false, got {dependents!r}")
        for other in self.repository.dependents(name) if dependents else ():
            grant.demand_model(other)
        await self.repository.unload(name, dependents)

    def change_log(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings of the log; returns all of them. Raises GatewayError (400)."""
        found = self.adjust.change_log(given)
        self.watching = self.tracer is not None or self.log.share > 0
        return found

    def trace(self, model: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The settings of traces for a model, or "": for all, after a change if one is given. Raises GatewayError (400,
        404)."""
        if model and all(row["name"] != model for row in self.repository.index()):
            raise GatewayError(404, f"unknown model {model!r:.80}")
        return self.adjust.trace_settings(model) if given is None else self.adjust.change_trace(model, given)

    # -- how models are made -------------------------------------------------------------------------------------------

    def _runner(self, served: Served, signature: str, shapes: Shapes, personal: bool) -> Runner:
        ports = served.ports[signature]
        limit = served.config.max_batch or self.settings.batching.rows
        if personal and self.personal is not None:
            return self.personal.runner(
                served.model, signature, ports, shapes, name=served.name, version=served.version, limit=limit
            )
        return ModelRunner(
            served.model, signature, ports, shapes, name=served.name, version=served.version, limit=limit,
            ladder=served.config.ladder or LADDER,
        )  # fmt: skip

    def _prepare(self, served: Served) -> None:
        """Prepare a version on the loading thread: its processing; compile and time its batch sizes."""
        from edge.gateway.processing.processing import Processing

        processing = Processing.of(served.model.bundle.metadata, served.outer[served.first])
        if processing is not None:
            served.processing = processing
            served.outer = {**served.outer, served.first: processing.ports}
        served.language = self.languages.host(served)
        if served.language is not None:
            served.resident += served.language.engine.working_bytes
            return
        most = served.config.max_batch or self.settings.batching.rows
        served.embedder = embedder_of(served.model, served.name, served.version, most)
        shapes = served.fixed_shapes(served.first)
        if shapes is not None:
            for personal in (False, True) if self.personal is not None else (False,):
                served.runner(served.first, shapes, personal).warm(WARM)

    def _personal(self, settings: Settings) -> Personal | None:
        """Personal versions of devices, if the settings name a store."""
        words = settings.personal
        if not words.store:
            return None
        from edge.gateway.personal.service import Personal

        return Personal(words.store, devices=words.devices, refresh=words.refresh, tell=self._tell)

    def _figures(self, served: Serving) -> Mapping[str, int]:
        if self.personal is None or not isinstance(served, Served):
            return {}
        return self.personal.figures(served.model)

    def _gone(self, served: Serving) -> None:
        """The last request of a retired version was answered."""
        if self.cache is not None:
            self.cache.forget(served.serial)
        if not any(other.name == served.name and other.version == served.version for other in self.repository.served()):
            self.statistics.forget(served.name, served.version)
            self.sequences.forget(served.name, served.version)
            self.languages.forget(served.name, served.version)
        if not any(other.name == served.name for other in self.repository.served()):
            self.scheduler.forget(served.name)

    def _tell(self, event: str, facts: Mapping[str, Any]) -> None:
        level = _LEVELS.get(event, "info")
        if event in ("version loaded", "model configured"):
            versions = [served for served in self.repository.served() if served.name == facts["model"]]
            self.scheduler.configure(facts["model"], self._limits(versions[0] if versions else None))
            for served in versions:
                self.statistics.of(served.name, served.version)
            if self.cache is None and any(served.config.response_cache for served in versions):
                why = "response_cache has no effect, as cache.bytes is 0"
                self.log.event("warning", why, model=facts["model"])
        self.log.event(level, event, **facts)

    def _limits(self, served: Serving | None) -> Limits:
        """The limits for a model's clients; the model's own file overrides the gateway's settings."""
        ours, own = self.settings.batching, served.config if served is not None else None
        return Limits(
            rows=(own and own.queue_rows) or ours.queue_rows,
            jobs=ours.queue_requests,
            concurrency=(own and own.concurrency) or ours.concurrency,
            timeout=(own and own.timeout) or ours.timeout or float("inf"),
        )


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, Mapping):
        raise GatewayError(400, f"parameters: expected an object, got {type(found).__name__}")
    return found


def _cache_of(settings: Settings, limit: int) -> ResponseCache | None:
    """The cache of answers; None: none are kept. Raises GatewayError if it could take too much of the memory."""
    most = settings.cache.bytes
    if most > limit // 2:
        text = f"cache.bytes: expected at most half of the {limit} bytes that this process may use, got {most}"
        raise GatewayError(500, text)
    return ResponseCache(most) if most else None


@cache
def version() -> str:
    """The version of msedge."""
    from importlib import metadata

    try:
        return metadata.version("msedge")
    except metadata.PackageNotFoundError:
        return "0"


def _give_back() -> None:
    """Return the memory of large bodies that are no longer needed to the system; glibc would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident() -> int:
    """Resident memory of this process in bytes."""
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
