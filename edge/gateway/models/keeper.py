"""Hot-swapping of models: new versions are loaded beside the serving ones, then take their place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import stat
from time import perf_counter
from typing import Any, TypeVar

from edge.gateway.ensembles.ensemble import as_target
from edge.gateway.errors import GatewayError
from edge.gateway.models import describe, routing
from edge.gateway.models.config import ModelConfig
from edge.gateway.models.entry import Entry, Failure, Full, Offer
from edge.gateway.models.loading import Loader
from edge.gateway.models.memory import Resident, victims
from edge.gateway.models.names import shown, version_of
from edge.gateway.models.serving import Serving
from edge.gateway.sources.listing import Candidate, is_ensemble

__all__ = ["Keeper", "Options"]

T = TypeVar("T")
Tell = Callable[[str, Mapping[str, Any]], None]
"""Callback for events: "model configured", "version loaded", "version refused", "model failed" or "model unloaded",
and facts: model, version, digest, seconds, reason. It is called after the loaded or configured version serves."""


@dataclass(frozen=True)
class Options:
    """memory: bytes that all loaded models may hold, 0: any number. pinned: models that are never unloaded to save
    memory. wake: seconds that a request waits for a model that was unloaded to save memory. autoload: whether models
    are loaded when they are found, at the start and later; else only on request. limit: most rows of a batch, as shown
    in configurations. tell: callback for events."""

    memory: int = 0
    pinned: frozenset[str] = frozenset()
    wake: float = 10.0
    autoload: bool = True
    limit: int = 64
    tell: Tell = lambda event, facts: None


class Keeper:
    """Changes entries; the caller must hold their locks. `call` runs a function on another thread."""

    def __init__(
        self, entries: Mapping[str, Entry], loader: Loader, options: Options, call: Callable[..., Awaitable[Any]]
    ) -> None:
        self._entries, self._loader, self._options, self._call = entries, loader, options, call

    async def renew(self, entry: Entry, *, evict: bool = True) -> None:
        """Load what the listing contains, as far as possible; the index shows what failed."""
        listing, before = entry.listing, entry.offer
        config = before.override or listing.config or ModelConfig()
        if listing.misconfigured and before.override is None:
            self._options.tell("model failed", {"model": entry.name, "reason": listing.misconfigured})
            if not entry.loaded:
                entry.publish({}, listing.misconfigured)
                return
            config = before.config
        offer = Offer(listing.versions, config, override=before.override)
        if entry.asleep:
            entry.offer = offer
            return
        try:
            await self.bring(entry, offer, evict=evict)
        except Full as error:
            self._options.tell("model failed", {"model": entry.name, "reason": str(error)})
            entry.offer = offer
            entry.publish(entry.loaded, str(error), asleep=not entry.loaded)
        except GatewayError as error:
            if not entry.loaded:
                entry.publish({}, str(error))

    async def bring(self, entry: Entry, offer: Offer, *, strict: bool = False, evict: bool = True) -> None:
        """Load the versions of an offer and serve them.

        If a version cannot be loaded, its former state stays; with `strict`, the whole model stays as it was. evict:
        whether other models may be unloaded to make room. Raises GatewayError if nothing could be loaded, with `strict`
        if any version could not; `Full` if there is not enough memory, and then nothing has changed.
        """
        found: dict[int, Serving] = {}
        failed: dict[int, Failure] = {}
        todo = routing.plan(offer.config.versions, offer.versions, _numbers(offer.config))
        try:
            for version in todo.order:
                if version not in todo.named and len(found) >= todo.enough:
                    continue
                try:
                    found[version] = await self._version(entry, version, offer, found, strict, evict)
                except GatewayError as error:
                    if strict or isinstance(error, Full):
                        raise
                    failed[version] = Failure(offer.versions.get(version), error)
                    if version in entry.loaded:
                        found[version] = entry.loaded[version]
        except BaseException:
            self._drop(entry, found.values())
            raise
        finally:
            entry.loading.clear()
        self._take(entry, offer, found, failed)
        if not found:
            problem = entry.listing.problem or "there is no version of it"
            why = next(iter(failed.values())).error if failed else GatewayError(404, problem)
            entry.reason = str(why)
            self._options.tell("model failed", {"model": entry.name, "reason": entry.reason})
            raise why

    def clear(self, entry: Entry, reason: str) -> None:
        """Unload a model."""
        if entry.offer.folder is not None:
            entry.offer.folder.cleanup()
        entry.offer, entry.failed, entry.stamps, entry.weights = Offer({}, ModelConfig()), {}, {}, {}
        entry.publish({}, reason)
        self._options.tell("model unloaded", {"model": entry.name, "reason": reason})

    def trim(self) -> None:
        """Unload the least recently used models if the loaded ones exceed the memory limit, as far as they may be
        unloaded."""
        with suppress(Full):
            self._make_room(None, 0, True)

    def _take(self, entry: Entry, offer: Offer, found: Mapping[int, Serving], failed: dict[int, Failure]) -> None:
        """Replace the serving versions."""
        if not found and (failed or entry.listing.problem):
            found = entry.loaded
        before, entry.offer, entry.failed = entry.offer, offer, failed
        if before.folder is not None and before.folder is not offer.folder:
            before.folder.cleanup()
        entry.stamps = {v: offer.versions[v] for v in found if v in offer.versions and v not in failed}
        entry.publish(found)
        if offer.config != before.config:
            self._options.tell("model configured", {"model": entry.name})
        for version, seconds in entry.seconds.items():
            facts = {"model": entry.name, "version": version, "digest": found[version].digest, "seconds": seconds}
            if found[version].signer:
                facts["signer"] = found[version].signer
            self._options.tell("version loaded", facts)
        entry.seconds.clear()

    def _drop(self, entry: Entry, made: Iterable[Serving]) -> None:
        """Release versions that were loaded but will not serve."""
        for served in made:
            if served not in entry.loaded.values():
                served.retire()
        entry.seconds.clear()

    async def _version(
        self, entry: Entry, version: int, offer: Offer, found: Mapping[int, Serving], strict: bool, evict: bool
    ) -> Serving:
        """That version, loaded now or earlier; `found`: versions that are already loaded."""
        candidate, old = offer.versions.get(version), entry.loaded.get(version)
        if candidate is None:
            raise GatewayError(404, f"there are no files of version {version}")
        known = entry.failed.get(version)
        if old is not None and old.config.made_as(offer.config) and entry.stamps.get(version) == candidate:
            return _checked(old, offer.config, self._options.limit, strict)
        if known is not None and known.candidate == candidate and not strict:
            raise known.error
        weighed = entry.weights.get(version)
        guess = weighed[1] if weighed is not None and weighed[0] == candidate else await self._call(_weight, candidate)
        if not is_ensemble(candidate.path):
            self._make_room(entry, guess + _gained(entry, found, version), evict)
        entry.loading.add(version)
        begun = perf_counter()
        try:
            served: Serving = await self._call(self._loader.load, entry.name, version, candidate, offer.config, old)
        except GatewayError as error:
            facts = {"model": entry.name, "version": version, "reason": str(error)}
            self._options.tell("version refused", facts)
            raise
        finally:
            entry.loading.discard(version)
        if served is not old:
            entry.seconds[version] = perf_counter() - begun
        try:
            entry.weights[version] = candidate, served.nbytes
            if not is_ensemble(candidate.path):
                self._make_room(entry, served.nbytes + _gained(entry, found, version), evict)
            return _checked(served, offer.config, self._options.limit, strict)
        except GatewayError:
            self._drop(entry, [served])
            raise

    def _make_room(self, entry: Entry | None, wanted: int, evict: bool) -> None:
        """Unload other models, the least recently used first, until so many more bytes fit. Raises `Full` (503).

        The version that is replaced counts as unloaded, although both are in memory during the swap.
        """
        if not self._options.memory:
            return
        residents = [
            Resident(
                other.name, other.nbytes, max((s.used for s in other.loaded.values()), default=0.0),
                evict and other is not entry and self._may_go(other),
            )
            for other in self._entries.values()
        ]  # fmt: skip
        chosen = victims(residents, self._options.memory, wanted)
        if chosen is None:
            raise Full(entry.name if entry is not None else "", wanted, self._options.memory)
        for name in chosen:
            self._entries[name].stamps = {}
            self._entries[name].publish({}, "unloaded to save memory; the next request loads it", asleep=True)
            self._options.tell("model unloaded", {"model": name, "reason": "to save memory"})

    def _may_go(self, entry: Entry) -> bool:
        pinned = entry.offer.config.pinned or entry.name in self._options.pinned
        idle = not any(served.in_flight for served in entry.loaded.values())
        held = any(served.nbytes for served in entry.loaded.values())
        return held and idle and not pinned and not entry.lock.locked()


def _gained(entry: Entry, found: Mapping[int, Serving], version: int) -> int:
    """Bytes of the versions found so far, less those of the versions that they and this one replace."""
    new = sum(served.nbytes for served in found.values())
    return new - sum(served.nbytes for number, served in entry.loaded.items() if number in (*found, version))


def _numbers(config: ModelConfig) -> Iterable[int]:
    """Versions that the configuration names."""
    yield from (version for version in config.labels.values() if isinstance(version, int))
    yield from (number for name in config.named if (number := version_of(name)) is not None)


def _weight(candidate: Candidate) -> int:
    """Approximate bytes of a file's model: see `Served.resident`. 0 if the file is gone."""
    try:
        return 2 * stat(candidate.path).st_size
    except OSError:
        return 0


def _checked(served: Serving, config: ModelConfig, limit: int, strict: bool) -> Serving:
    """The version, if it can have this configuration, matches the description in the load request, and, with `strict`,
    could answer now. Raises GatewayError (400)."""
    served.check(config)
    if strict and served.problem:
        raise GatewayError(400, served.problem)
    if config.described:
        actual = describe.configuration(as_target(served), limit)
        for key, value in config.described.items():
            if not _agrees(value, actual.get(key)):
                raise GatewayError(
                    400, f"config: {key}: expected the bundle's value, {shown(actual.get(key))}, got {shown(value)};"
                    " omit the key, or load another bundle"
                )  # fmt: skip
    return served


def _agrees(said: Any, actual: Any) -> bool:
    """Whether a description matches; an empty one (such as an empty table) always does."""
    if isinstance(said, Mapping) and isinstance(actual, Mapping):
        return all(_agrees(value, actual.get(key)) for key, value in said.items())
    if isinstance(said, list) and isinstance(actual, list):
        return not said or (len(said) == len(actual) and all(map(_agrees, said, actual)))
    return said == actual or (actual is None and not said)
