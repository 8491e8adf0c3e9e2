"""The gateway: its parts, and how they start, work together and stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from edge.gateway.batching.admission import Limits
from edge.gateway.batching.runner import LADDER, ModelRunner, Runner
from edge.gateway.batching.scheduler import Scheduler
from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.infer import Exchange
from edge.gateway.job import Job
from edge.gateway.models.describe import metadata
from edge.gateway.models.loading import Loader
from edge.gateway.models.registry import Registry
from edge.gateway.models.repository import Options, Repository
from edge.gateway.models.served import Served, Shapes
from edge.gateway.models.sources import Files, Folder, Source, is_model
from edge.gateway.models.uploads import files_of
from edge.gateway.operate.access import Gate
from edge.gateway.operate.exposition import expose
from edge.gateway.operate.logs import Log, RequestIds
from edge.gateway.operate.metrics import Gauges, LoopLag, families
from edge.gateway.operate.settings import Settings
from edge.gateway.operate.statistics import Statistics
from edge.gateway.operate.traces import continued, tracer
from edge.gateway.pages.openapi import document
from edge.gateway.pages.status import status
from edge.gateway.personal.heads import GLOBAL, check_device
from edge.gateway.protocol.numbers import prepare
from edge.gateway.protocol.parameters import LONGEST
from edge.gateway.sequences.registry import Key, Sequences
from edge.gateway.sequences.registry import Limits as SequenceLimits

if TYPE_CHECKING:
    from edge.gateway.personal.service import Personal
    from edge.gateway.sequences.stream import Stream

__all__ = ["EXTENSIONS", "Gateway"]

T = TypeVar("T")

EXTENSIONS = (
    "binary_tensor_data", "classification", "model_configuration", "model_repository",
    "model_repository(unload_dependents)", "parameters", "schedule_policy", "sequence", "statistics",
)  # fmt: skip
"""Triton's protocol extensions that this gateway supports."""
WARM = 5.0
"""Seconds that compiling and timing batch sizes may take before a version serves requests."""
TURN, IDLE_TURNS = 1.0, 5
"""Seconds between checks of the files of tokens and certificates; and the number of these checks between checks
whether the gateway is idle and can return memory to the system."""


class Gateway:
    """Everything behind HTTP and gRPC. All methods run on the event loop's thread: `start` first, `stop` last."""

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.log = log if log is not None else Log(settings.logs)
        self.ids = RequestIds()
        self.gate = Gate(settings.access)
        self.statistics = Statistics()
        self.tracer = tracer(settings.traces)
        self.watching = self.tracer is not None or settings.logs.requests > 0
        """Whether answered requests are logged or traced."""
        self.under_way = 0
        self.leaving = False
        threads = settings.threads or len(os.sched_getaffinity(0))
        loader = Loader(self._runner, prepare=self._prepare, forget=self._gone, threads=threads)
        options = Options(
            memory=settings.repository.memory,
            pinned=frozenset(settings.repository.pinned),
            limit=settings.batching.rows,
            tell=self._tell,
        )
        sources = _sources(settings)
        self._files = [source for source in sources if isinstance(source, Files)]
        self.repository = Repository(sources, loader, options)
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
        self._watches: list[Callable[[], object]] = [self.gate.refresh]

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models. Raises GatewayError if a source of models cannot be read."""
        loop = asyncio.get_running_loop()
        scanner = asyncio.ensure_future(asyncio.to_thread(prepare))  # so that no request waits for its kernel
        if self.personal is not None:
            await self.personal.start()
        await self.repository.start()
        await scanner
        self.lag.start()
        self._tasks.append(loop.create_task(self._watch()))
        if self.settings.repository.poll:
            self._tasks.append(loop.create_task(self._poll(self.settings.repository.poll)))

    def check_named(self) -> None:
        """Raise GatewayError if a bundle that the settings name individually cannot be served, so that the operator
        sees the reason at once."""
        named = [name for source in self._files for name in source.scan()]
        there = {served.name for served in self.repository.served()}
        for row in self.repository.index():
            if row["name"] in named and row["name"] not in there and not self.repository.ready(row["name"]):
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
        await self.repository.stop()
        if self.personal is not None:
            await self.personal.close()
        self._aside.shutdown(wait=False, cancel_futures=True)
        if self.tracer is not None:
            self.tracer.close()
        self.log.close()

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

    async def _watch(self) -> None:
        for turn in count(1):
            await asyncio.sleep(TURN)
            self.refresh()
            self.sequences.sweep()
            if turn % IDLE_TURNS == 0 and not self.under_way:
                await asyncio.to_thread(_give_back)

    async def _poll(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
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

    def admit_inference(self, ask: Ask) -> None:
        """Raise GatewayError if the client is not allowed to ask, or the gateway is stopping."""
        if self.leaving:
            raise GatewayError(503, "the server is shutting down; use another one", retry_after=1.0)
        if not self.repository.started:
            raise GatewayError(503, "models are being loaded", retry_after=1.0)
        if not self.gate.open:
            self.gate.check("infer", ask.peer, ask.fields.get("authorization"))

    def admit(self, fields: Mapping[str, str], peer: str, scope: str) -> None:
        """Raise GatewayError if the client is not allowed to do this. fields: header fields, in upper or lower case."""
        try:
            forwarded = fields.get("Forwarded") or fields.get("X-Forwarded-For")
            self.gate.check(
                scope, peer, fields.get("Authorization"), fields.get("Origin"), fields.get("Host"), forwarded
            )
        except GatewayError as error:
            self.statistics.refused[scope, error.status] += 1
            raise

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

    def at_hand(self, job: Job, served: Served) -> bool:
        """Whether the version for a job that names a device is in memory. If the device has no personal version, the
        job is changed to use the common model, with a note in its reply. Raises GatewayError (400)."""
        check_device(job.device)
        if self.personal is None:
            job.device, job.notes["personal"] = "", GLOBAL.note
            return True
        return self.personal.admit(job, served.model)

    async def fetch(self, job: Job, served: Served) -> None:
        """Load the personal version of a job's device. Raises GatewayError (503)."""
        assert self.personal is not None
        await self.personal.ready(job, served.model)

    def ended(
        self, ask: Ask, identity: str, status_: int, seconds: float, job: Any, served: Served | None
    ) -> None:
        """Called when a request was answered or failed: writes a log line and spans, if enabled."""
        context = None
        if self.tracer is not None and job is not None:
            fields = ask.fields
            parents = [fields["traceparent"]] if "traceparent" in fields else []
            states = [fields["tracestate"]] if "tracestate" in fields else []
            context = continued(parents, states, self.tracer.share)
            if context.sampled:
                about = {"model": ask.model, "version": served.version if served else "", "rows": job.rows}
                self.tracer.record(context, f"infer {ask.model}", job, about, status_)
        if self.log.wants_request(status_):
            more = {"trace": context.trace} if context is not None else {}
            self.log.request(identity, *ask.form.call(ask.model), status_, seconds, ask.peer, **more)

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
        coming = self.repository.coming()
        return f"{', '.join(coming)}: being loaded" if coming else ""

    def demand_ready(self, name: str, version_: str) -> None:
        """Raise GatewayError (404, 503), with the reason, for a model that is not ready."""
        if not self.repository.ready(name, version_):
            self.repository.metadata(name, version_)
            raise GatewayError(503, f"model {name!r} is not ready")

    def metadata(self) -> dict[str, Any]:
        """The protocol's server metadata."""
        return {"name": "msedge", "version": version(), "extensions": list(EXTENSIONS)}

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
            sequences={(s.name, s.version): self.sequences.count(s.name, s.version) for s in served if s.streams},
            sequence_bytes=self.sequences.nbytes,
            sequences_expired=self.sequences.expired,
            personal_hits={s.name: self._figures(s).get("hits", 0) for s in served},
            personal_misses={s.name: self._figures(s).get("misses", 0) for s in served},
            under_way=self.under_way,
            log_dropped=self.log.dropped,
            lag=self.lag.last,
            worst_lag=self.lag.worst,
        )
        return expose(families(self.statistics, gauges), accept)

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
            in_flight=self.under_way, lag=self.lag.last,
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """OpenAPI."""
        shown = self.repository.served() if self.gate.open else ()  # metadata requires a token
        models = [metadata(served, [served.version]) for served in shown]
        return document(version(), tokens=not self.gate.open, models=models)

    # -- sequences -----------------------------------------------------------------------------------------------------

    async def sequence_state(self, key: Key, stream: Stream) -> bytes:
        """A sequence's state as a state file, for `restore_sequence` here or `Model.load_state` on a device. Raises
        GatewayError (404, 429)."""
        return await self.aside(stream.file, self.sequences.state(key))

    async def restore_sequence(self, key: Key, stream: Stream, data: memoryview) -> None:
        """Begin a sequence with the state of a state file, or set that of one. Raises GatewayError (400, 409, 429)."""
        self.sequences.restore(key, stream, await self.aside(stream.state_in, data))

    def sequence(self, name: str, version_: str, identity: str) -> tuple[Key, Stream]:
        """The sequence that a path names, which need not exist. Raises GatewayError (400, 404, 503)."""
        if len(identity) > LONGEST:
            raise GatewayError(400, f"expected a sequence of at most {LONGEST} characters, got {len(identity)}")
        served = self.repository.route(name, version_, "", "")
        if not served.streams:
            raise GatewayError(400, f"model {name!r} keeps no state between requests, so it has no sequences")
        signature = served.first if served.first in served.streams else next(iter(served.streams))
        number = int(identity) if identity.isascii() and identity.isdigit() and len(identity) < 20 else identity
        return Key(served.name, served.version, signature, number), served.streams[signature]

    # -- management ----------------------------------------------------------------------------------------------------

    async def load(self, name: str, given: Mapping[str, Any]) -> None:
        """Execute a load request, given its body. Raises GatewayError."""
        parameters = _parameters(given)
        config = parameters.get("config")
        if "config" in parameters and not isinstance(config, str):
            raise GatewayError(400, f"parameters.config: expected a string with JSON, got {type(config).__name__}")
        await self.repository.load(name, config, files_of(parameters) or None)

    async def unload(self, name: str, given: Mapping[str, Any]) -> None:
        """Execute an unload request, given its body. Raises GatewayError."""
        dependents = _parameters(given).get("unload_dependents", False)
        if not isinstance(dependents, bool):
            raise GatewayError(400, f"parameters.unload_dependents: expected true or false, got {dependents!r}")
        await self.repository.unload(name, dependents)

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

    def _figures(self, served: Served) -> Mapping[str, int]:
        return self.personal.figures(served.model) if self.personal is not None else {}

    def _gone(self, served: Served) -> None:
        """The last request of a retired version was answered."""
        if not any(other.name == served.name and other.version == served.version for other in self.repository.served()):
            self.statistics.forget(served.name, served.version)
            self.sequences.forget(served.name, served.version)
        if not any(other.name == served.name for other in self.repository.served()):
            self.scheduler.forget(served.name)

    def _tell(self, event: str, facts: Mapping[str, Any]) -> None:
        level = "warning" if "failed" in event or "refused" in event else "info"
        if event in ("version loaded", "model configured"):
            versions = [served for served in self.repository.served() if served.name == facts["model"]]
            self.scheduler.configure(facts["model"], self._limits(versions[0] if versions else None))
            for served in versions:
                self.statistics.of(served.name, served.version)
        self.log.event(level, event, **facts)

    def _limits(self, served: Served | None) -> Limits:
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


def _sources(settings: Settings) -> list[Source]:
    """The sources of models: registries, folders, and individually named bundles."""
    found: list[Source] = []
    files: list[str] = []
    for text in settings.models:
        if text.startswith(("http://", "https://")):
            cache = settings.repository.cache or os.path.join(_cache(), "models")
            found.append(Registry(text, cache))
        elif Path(text).is_dir() and not is_model(text):
            found.append(Folder(text))
        else:
            files.append(text)
    return [*found, Files(files)] if files else found


def _cache() -> str:
    from lite_runtime.native.build import cache_folder

    return str(cache_folder())


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
