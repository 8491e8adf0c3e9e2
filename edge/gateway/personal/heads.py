"""The tensors in which devices' versions differ from the model, cached while they are in use."""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Executor
from itertools import islice
from types import MappingProxyType

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.personal.versions import Stamp, Versions
from federated.server.store import Version
from lite_runtime import Model
from lite_runtime.graph import Array

__all__ = ["GLOBAL", "Head", "Heads", "check_device"]

LONGEST = 256
"""Most characters of a device's name."""


class Head:
    """The tensors for one device. `device`: "" for the common model; `state`: arrays by name that replace the model's;
    `note`: the text in the reply."""

    __slots__ = ("device", "key", "names", "nbytes", "note", "state", "version")

    def __init__(self, device: str, version: int, state: Mapping[str, Array], note: str, created: float = 0.0) -> None:
        self.device, self.version, self.state, self.note = device, version, state, note
        self.key = device, version, created
        self.names = frozenset(state)
        self.nbytes = sum(array.nbytes for array in state.values())


GLOBAL = Head("", 0, MappingProxyType({}), "global")
"""The common model."""


def check_device(name: object) -> str:
    """Validate a device's name from a request. Raises GatewayError (400)."""
    if not isinstance(name, str) or len(name) > LONGEST or not name.isprintable():
        got = f"{len(name)} characters" if isinstance(name, str) else type(name).__name__
        raise GatewayError(400, f"device: expected up to {LONGEST} printable characters, got {got}")
    return name


class Heads:
    """The heads of one loaded model; the least recently used ones are dropped beyond `memory` bytes or `most` devices.

    A version is used if its device consented to serving (`federated.server.store`), and if it belongs to exactly this
    bundle and fits it; a device without one gets GLOBAL. Reads need no lock; changes are made on the event loop's
    thread.
    """

    def __init__(
        self, versions: Versions, model: Model, threads: Executor, *, memory: int = 256 << 20, most: int = 1 << 16
    ) -> None:
        self._versions, self._threads, self._memory, self._most = versions, threads, memory, most
        held = model.bundle
        self.digest = held.digest
        writes = {name for name, use in held.uses.items() if use.writes}
        reads = {state for name, use in held.uses.items() if name not in writes for state in use.reads.values()}
        self._state = {name: held.state[name] for name in reads}
        self._heads: OrderedDict[str, tuple[Stamp, Head]] = OrderedDict()
        """By device: the newest version in the store at the time of loading, and the resulting head."""
        self._coming: dict[str, asyncio.Future[Head]] = {}
        self._counting = allocate_lock()
        self.nbytes = self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._heads)

    def names(self, sample: int = 16) -> set[frozenset[str]]:
        """The sets of state names that versions change: of the cached ones, else of up to `sample` devices in the
        store. On any thread but the event loop's. Raises GatewayError (503)."""
        found = {head.names for _, head in list(self._heads.values())}
        return found or {self.load(device).names for device in islice(self._versions.newest, sample)}

    def find(self, device: str) -> Head | None:
        """The device's head; None if it must be loaded with `ready`. Costs two look-ups."""
        newest = self._versions.newest.get(device)
        if newest is None:
            return GLOBAL
        found = self._heads.get(device)
        return found[1] if found is not None and found[0] == newest else None

    def admit(self, job: Job) -> bool:
        """Whether a job that names a device can be queued at once; if not, await `ready` and call this again. A job of
        a device without a version is changed to use the common model."""
        self._versions.demand()
        head = self.find(job.device)
        if head is None:
            return False
        if not head.device:
            self.count(0, 1)
            job.device, job.notes["personal"] = "", head.note
        else:
            self._heads.move_to_end(job.device)
        return True

    async def ready(self, device: str) -> Head:
        """The device's head, loaded on another thread if necessary; callers for the same device share one loading.
        Raises GatewayError (503) for a store that cannot be read."""
        head = self.find(device)
        if head is not None:
            return head
        coming = self._coming.get(device)
        if coming is None:
            newest = self._versions.newest.get(device, (0, 0.0))
            coming = asyncio.get_running_loop().run_in_executor(self._threads, self.load, device)
            coming.add_done_callback(lambda done: self._came(device, newest, done))
            self._coming[device] = coming
        return await asyncio.shield(coming)

    def now(self, device: str) -> Head:
        """`ready` for threads that may block: the head may have been dropped since its job was queued."""
        return self.find(device) or self.load(device)

    def load(self, device: str) -> Head:
        """Read the device's version from the store. Raises GatewayError (503)."""
        version = self._versions.load(device)
        if version is None:
            return GLOBAL
        if version.base != self.digest:
            return self._refused(version, "belongs to another model")
        state = {name: delta for name, delta in version.delta.items() if name in self._state}
        for name, delta in state.items():
            own = self._state[name]
            if getattr(delta, "shape", None) != own.shape or delta.dtype != own.dtype:
                return self._refused(version, "belongs to a model with other shapes")
        with np.errstate(over="ignore", invalid="ignore"):
            made = version.params({name: self._state[name] for name in state})
        if not all(np.isfinite(array).all() for array in made.values() if array.dtype.kind == "f"):
            return self._refused(version, "contains NaN or infinities")
        return Head(device, version.version, made, f"version {version.version}", version.created)

    def _refused(self, version: Version, what: str) -> Head:
        return Head("", 0, GLOBAL.state, f"global: version {version.version} {what}")

    def count(self, hits: int, misses: int) -> None:
        """Count jobs answered by a device's version, and jobs that named a device but were answered by the common
        model."""
        with self._counting:
            self.hits += hits
            self.misses += misses

    def _came(self, device: str, newest: Stamp, done: asyncio.Future[Head]) -> None:
        del self._coming[device]
        if done.cancelled() or done.exception() is not None:
            return
        self._drop(device)
        self._heads[device] = newest, done.result()
        self.nbytes += done.result().nbytes
        while len(self._heads) > 1 and (self.nbytes > self._memory or len(self._heads) > self._most):
            self._drop(next(iter(self._heads)))

    def _drop(self, device: str) -> None:
        gone = self._heads.pop(device, None)
        if gone is not None:
            self.nbytes -= gone[1].nbytes
