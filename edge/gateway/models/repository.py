"""All models of a gateway: finding, loading, hot-swapping, unloading and watching them.

All methods are called on the event loop's thread; files are checked and bundles loaded on other threads. The loaded
versions of a model change under the model's lock, in order of arrival: of a load and an unload at the same time, the
later one decides the final state, and both are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from edge.gateway.apart import Workers
from edge.gateway.ensembles.ensemble import Ensemble, Target, as_target
from edge.gateway.errors import GatewayError
from edge.gateway.models import describe, uploads
from edge.gateway.models.config import ModelConfig, parse_override
from edge.gateway.models.entry import Asleep, Entry, Offer, unknown
from edge.gateway.models.keeper import Keeper, Options
from edge.gateway.models.kernels import Kernels
from edge.gateway.models.loading import Loader
from edge.gateway.models.names import check_name
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving
from edge.gateway.sources.listing import Folder, Listing, Source, merged
from edge.gateway.sources.trust import Untrusted
from edge.gateway.sources.watching import SourceState, Watch
from lite_runtime.native.build import NotCompiledError

__all__ = ["Options", "Repository"]

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds that a check of all sources waits for a registry; its answer is used at a later check."""
_DEFAULTS = Options()


class Repository:
    """The models of a gateway."""

    def __init__(self, sources: Sequence[Source], loader: Loader, options: Options = _DEFAULTS) -> None:
        self._watches, self._options = [Watch(source) for source in sources], options
        self._entries: dict[str, Entry] = {}
        loader = replace(loader, find=lambda name, version, request_id: self.route(name, version, "", request_id))
        self._keeper = Keeper(self._entries, loader, options, self._call)
        self._workers = Workers("msedge-models", 2)
        self._loader = loader
        self.kernels = Kernels(options.tell)
        """Kernels that are being compiled."""
        self._problems: dict[str, str] = {}
        """Sources with a problem that was told."""
        self._unready: dict[tuple[str, str], str] = {}
        """Versions of ensembles that are not ready, and why, as far as it was told."""
        self._waking: dict[str, asyncio.Task[None]] = {}
        self.started = False

    # -- for every request ---------------------------------------------------------------------------------------------

    def route(self, name: str, version: str = "", label: str = "", request_id: str = "") -> Serving:
        """The version that answers a request; call its `acquire` before awaiting anything else.

        version: a number or a label. Raises GatewayError: 404 if it does not exist, 503 if it is not loaded, with the
        reason; `Asleep` (503) if the model was unloaded to save memory: then await `wake` and call this again.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise unknown(name)
        return entry.route(version, label, request_id)

    async def wake(self, name: str) -> None:
        """Load a model again that was unloaded to save memory. A caller waits up to `Options.wake` seconds and is then
        refused (503, with Retry-After), while loading continues; all callers share one loading."""
        entry = self._entry(name)
        task = self._waking.get(name)
        if task is None:
            if not entry.asleep:
                return
            task = self._waking[name] = asyncio.ensure_future(self._wake(entry))
            task.add_done_callback(lambda done: (self._waking.pop(name, None), done.cancelled() or done.exception()))
        done, _ = await asyncio.wait([task], timeout=self._options.wake)
        if not done:
            raise Asleep(name)
        task.result()

    async def _wake(self, entry: Entry) -> None:
        async with entry.lock:
            if entry.asleep:
                await self._keeper.bring(entry, entry.offer)

    # -- state ---------------------------------------------------------------------------------------------------------

    def ready(self, name: str, version: str = "") -> bool:
        """Whether a request to it would be answered, perhaps after it is loaded again. Raises GatewayError (404) for an
        unknown model."""
        try:
            self._target(name, version)
        except Asleep:
            return True
        except GatewayError as error:
            if error.status == 404 and not version:
                raise
            return False
        return True

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """The protocol's metadata; raises as `route` does."""
        target = self._target(name, version)
        return describe.metadata(target, map(str, sorted(self._entries[name].loaded)))

    def configuration(self, name: str, version: str = "") -> dict[str, Any]:
        """Triton's configuration; raises as `route` does."""
        return describe.configuration(self._target(name, version), self._options.limit)

    def _target(self, name: str, version: str) -> Target:
        """What would answer a request. Raises as `route`, and GatewayError (503) for an ensemble that is not ready."""
        return as_target(self._entry(name).route(version, "", ""))

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]:
        """Rows of name, version, state and reason, in order; see `Entry.rows`."""
        rows = [row for name in sorted(self._entries) for row in self._entries[name].rows()]
        return [row for row in rows if not ready_only or row["state"] == "READY"]

    def sources(self) -> list[SourceState]:
        """The state of every source."""
        return [watch.state for watch in self._watches]

    def unread(self) -> list[str]:
        """The sources that were never read."""
        return [watch.source.name for watch in self._watches if watch.found is None]

    @property
    def waiting(self) -> bool:
        """Whether sources were never read, or are being downloaded from, or a change waits for its second check."""
        changing = any(entry.seen is not None for entry in self._entries.values())
        return changing or any(watch.found is None or watch.source.waiting for watch in self._watches)

    @property
    def named(self) -> frozenset[str]:
        """Models that the settings name one by one."""
        return frozenset().union(*(watch.source.named for watch in self._watches))

    def coming(self) -> list[str]:
        """Models that are being loaded and are not ready yet."""
        return sorted(name for name, entry in self._entries.items() if entry.loading and not entry.loaded)

    def served(self) -> list[Serving]:
        """All serving versions."""
        return [served for entry in self._entries.values() for served in entry.loaded.values()]

    def snapshot(self) -> list[dict[str, Any]]:
        """The index's rows with further data for the status page: labels, share of requests, bytes, current requests,
        results of the shadow."""
        return [self._detailed(row) for row in self.index()]

    def _detailed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        entry, number = self._entries[row["name"]], int(row.get("version", 0))
        served = entry.loaded.get(number)
        made = {
            **row,
            "labels": [label for label, version in entry.labels.items() if version == number],
            "share": entry.shares.get(number, 0.0),
            "bytes": served.nbytes if served is not None else 0,
            "in_flight": served.in_flight if served is not None else 0,
            "digest": served.digest if served is not None else "",
            "signer": served.signer if served is not None else "",
            "compiling": served is not None and bool(served.awaits),
        }
        if entry.shadow is not None and entry.shadow.target is served:
            made["shadow"] = entry.shadow.as_dict()
        return made

    @property
    def nbytes(self) -> int:
        """Approximate bytes of all models."""
        return sum(entry.nbytes for entry in self._entries.values())

    # -- loading and unloading -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the sources and load their models, one after the other; the index shows those that fail. A registry that
        does not answer in time is read later, by `poll`.

        Raises GatewayError if a folder cannot be read.
        """
        for name, listing in (await self._scan()).items():
            async with self._changing(name) as entry:
                entry.listing, entry.wanted = listing, self._options.autoload
                if entry.wanted:
                    await self._keeper.renew(entry, evict=False)
        self.started = True
        self._tell_of_ensembles()

    async def stop(self) -> None:
        """Unload everything; a model that is being loaded is left to its thread."""
        self.started = False
        self.kernels.close()
        for name, entry in tuple(self._entries.items()):
            if not entry.lock.locked():
                async with self._changing(name) as entry:
                    self._keeper.clear(entry, "the gateway is stopping")

    async def compile(self, more: Collection[str] = ()) -> bool:
        """Compile `more` and the kernels that the version with the fewest missing ones lacks; then versions that lack
        none run natively. Returns whether any were missing. Kernels that cannot be compiled are told of, and not tried
        again for these versions."""
        bundles = (served for served in self.served() if isinstance(served, Served))
        waiting = sorted((served for served in bundles if served.awaits), key=lambda of: len(of.awaits))
        missing = frozenset(more).union(*(served.awaits for served in waiting))
        if not missing:
            return False
        now = more or waiting[0].awaits
        compiled = await self.kernels.compile(now, left=len(missing) - len(now))
        for served in waiting:
            if not compiled and not set(now).isdisjoint(served.awaits):
                served.awaits = ()
            elif compiled and not set(served.awaits) <= set(now):
                served.awaits = tuple(family for family in served.awaits if family not in now)
            elif compiled:
                await self._exchange(served)
        return True

    async def _exchange(self, served: Served) -> None:
        """Let a version run natively, now that its kernels are there."""
        facts = {"model": served.name, "version": served.version}
        try:
            served.exchange(await self._call(self._loader.again, served))
        except NotCompiledError as error:
            served.awaits = error.families  # for other shapes
        except GatewayError as error:
            served.awaits = ()
            self._options.tell("version stays on the reference", {**facts, "reason": str(error)})
        else:
            self._options.tell("version runs natively", facts)

    async def load(self, name: str, config: Any = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model: from its source, or with `config` (JSON text) and `files` (`uploads.files_of`)
        instead. If anything fails, nothing changes.

        Raises GatewayError: 404 for a model that no source has, else the problem.
        """
        check_name(name, "load")
        override = parse_override(config, f"load {name!r}: config") if config is not None else None
        async with self._changing(name) as entry:
            listing = (await self._scan()).get(name)
            if listing is None and not files:
                raise unknown(name)
            folder = await self._call(uploads.unpack, name, files) if files else None
            try:
                given = (await self._call(Folder(folder.name).scan)).get(name) if folder is not None else listing
                await self._keeper.bring(entry, _offered(name, given or Listing({}), override, folder), strict=True)
            except BaseException:
                if folder is not None:
                    folder.cleanup()
                raise
            entry.listing, entry.seen, entry.wanted = listing or Listing({}), None, True
        self._tell_of_ensembles()

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model, which stays unloaded until it is loaded again. Current requests are answered.

        unload_dependents: whether to unload the ensembles that use it as well. Raises GatewayError (404).
        """
        self._entry(name)
        for each in (*self.dependents(name), name) if unload_dependents else (name,):
            async with self._changing(each) as entry:
                entry.wanted = False
                self._keeper.clear(entry, "unloaded")
        self._tell_of_ensembles()

    def dependents(self, name: str) -> list[str]:
        """The ensembles with a version that uses this model, directly or through other ensembles."""
        uses = [(served.name, served.scheduling.models) for served in self.served() if isinstance(served, Ensemble)]
        found, before = {name}, 0
        while len(found) > before:
            before = len(found)
            found.update(ensemble for ensemble, models in uses if not models.isdisjoint(found))
        return sorted(found - {name})

    async def poll(self) -> None:
        """Read the sources again: load new and changed models, unload removed ones.

        A change is loaded at the second check that finds it unchanged, so that a file that is still being written is
        not read. Models that were unloaded, or loaded from a request's files, stay as they are, and so do those of a
        source that cannot be read: see `sources`.
        """
        listings = await self._scan()
        for name in sorted({*listings, *self._entries}):
            async with self._changing(name) as entry:
                if entry.fresh:
                    entry.wanted = self._options.autoload
                if not entry.settled(listings.get(name, Listing({}))) or entry.offer.folder is not None:
                    continue
                if name not in listings:
                    self._keeper.clear(entry, "its files are gone")
                elif entry.wanted:
                    await self._keeper.renew(entry)
        self._keeper.trim()
        self._tell_of_ensembles()

    async def judge(self) -> None:
        """Judge all versions again, after the trusted keys have changed: those whose key is not trusted any more are
        unloaded, and those that were refused tried again."""
        for name in tuple(self._entries):
            async with self._changing(name) as entry:
                refused = [number for number, one in entry.failed.items() if isinstance(one.error, Untrusted)]
                doubtful = [
                    number for number, served in entry.loaded.items()
                    if not await self._call(self._loader.trusts, served)
                ]  # fmt: skip
                for number in refused:
                    del entry.failed[number]
                for number in doubtful:
                    entry.stamps.pop(number, None)
                if doubtful:
                    rest = {number: served for number, served in entry.loaded.items() if number not in doubtful}
                    entry.publish(rest, "the key that has signed it is not trusted any more")
                    self._options.tell("model unloaded", {"model": name, "reason": entry.reason, "versions": doubtful})
                if (doubtful or refused) and entry.wanted and entry.offer.folder is None:
                    await self._keeper.renew(entry)

    # -- how -----------------------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None or entry.empty:
            raise unknown(name)
        return entry

    @asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[Entry]:
        """A model's entry with its lock held; an entry that is empty afterwards is dropped."""
        entry = self._entries.setdefault(name, Entry(name))
        entry.users += 1
        try:
            async with entry.lock:
                yield entry
        finally:
            entry.users -= 1
            if not entry.users and entry.fresh:
                self._entries.pop(name, None)

    async def _call(self, what: Callable[..., T], *given: Any) -> T:
        return await asyncio.wrap_future(self._workers.submit(what, *given))

    async def _scan(self) -> dict[str, Listing]:
        """The listings of all sources; of a source that cannot be read now, the last ones. Raises GatewayError if a
        folder was never read."""
        await asyncio.gather(*(watch.look(PATIENCE if watch.source.remote else None) for watch in self._watches))
        self._tell_of_sources()
        for watch in self._watches:
            if watch.found is None and watch.error is not None and not watch.source.remote:
                raise watch.error
        return merged([watch.found or {} for watch in self._watches])

    def _tell_of_ensembles(self) -> None:
        """Report ensembles that are not ready for a new reason, and those that are ready again."""
        states = {(served.name, served.version): served.problem for served in self.served()}
        unready = {key: why for key, why in states.items() if why}
        for (name, version), why in unready.items():
            if self._unready.get((name, version)) != why:
                self._options.tell("ensemble is not ready", {"model": name, "version": version, "reason": why})
        for name, version in self._unready.keys() - unready.keys():
            if (name, version) in states:
                self._options.tell("ensemble is ready", {"model": name, "version": version})
        self._unready = unready

    def _tell_of_sources(self) -> None:
        """Report sources whose problem is new, and those that have none any more."""
        for watch in self._watches:
            name, _, _, reason = state = watch.state
            before, now = self._problems.get(name, ""), "" if state.state == "ok" else reason
            if now and now != before:
                self._options.tell("source of models has a problem", {"source": name, "reason": now})
            elif before and not now:
                self._options.tell("source of models is up to date again", {"source": name})
            self._problems[name] = now


def _offered(
    name: str, listing: Listing, override: ModelConfig | None, folder: TemporaryDirectory[str] | None
) -> Offer:
    """The offer of a load request. Raises GatewayError (400) if it is invalid."""
    problem = listing.misconfigured if override is None else ""
    if not listing.versions:
        problem = listing.problem or "there is no bundle"
    if problem:
        raise GatewayError(400, f"load {name!r}: {problem}")
    return Offer(listing.versions, override or listing.config or ModelConfig(), override=override, folder=folder)
