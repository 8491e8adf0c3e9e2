"""What devices' versions change of a model, held ready while they are asked for."""

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
from federated.errors import FederatedError
from federated.server.store import Version
from lite_runtime import Model
from lite_runtime.graph import Array

__all__ = ["GLOBAL", "Head", "Heads", "check_device"]

LONGEST = 256
"""Characters of a device's name."""


class Head:
    """What one device is answered with. `device`: "" where that is the model for all; `state`: arrays by name that
    replace the model's; `note`: what the reply says of it."""

    __slots__ = ("device", "key", "names", "nbytes", "note", "state", "version")

    def __init__(
        self, device: str, version: int, state: Mapping[str, Array], note: str, created: float = 0.0
    ) -> None:
        self.device, self.version, self.state, self.note = device, version, state, note
        self.key = device, version, created
        self.names = frozenset(state)
        self.nbytes = sum(array.nbytes for array in state.values())


GLOBAL = Head("", 0, MappingProxyType({}), "global")
"""The model as it is for all."""


def check_device(name: object) -> str:
    """A device's name as a request gives it. Raises GatewayError (400)."""
    if not isinstance(name, str) or len(name) > LONGEST or not name.isprintable():
        got = f"{len(name)} characters" if isinstance(name, str) else type(name).__name__
        raise GatewayError(400, f"device: expected up to {LONGEST} characters that can be printed, got {got}")
    return name


class Heads:
    """The heads of one loaded model, those longest unused let go beyond `memory` bytes or `most` devices.

    A version counts where it was given to be served (`federated.server.store`), belongs to this very bundle and fits
    it; a device without one gets GLOBAL. Found without locks; changed on the event loop's thread.
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
        """By device: the newest version in the store when it was loaded, and what came of it."""
        self._coming: dict[str, asyncio.Future[Head]] = {}
        self._counting = allocate_lock()
        self.nbytes = self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._heads)

    def names(self, sample: int = 16) -> set[frozenset[str]]:
        """What versions change, sets of names of state: those at hand, else of up to `sample` devices in the store. On
        any thread but the event loop's. Raises GatewayError (503)."""
        found = {head.names for _, head in list(self._heads.values())}
        return found or {self.load(device).names for device in islice(self._versions.newest, sample)}

    def find(self, device: str) -> Head | None:
        """The device's head; None where it must be loaded: `ready`. A look into two tables."""
        newest = self._versions.newest.get(device)
        if newest is None:
            return GLOBAL
        found = self._heads.get(device)
        return found[1] if found is not None and found[0] == newest else None

    def admit(self, job: Job) -> bool:
        """Whether a job that names a device can be queued at once; if not, await `ready` of it, and ask again. One of
        a device without a version becomes a job for the model as it is for all."""
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
        """The device's head, loaded on another thread where it is not there; who asks for the same waits for the same.
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
        """`ready` for threads that may wait: what was queued may have had to make room since."""
        return self.find(device) or self.load(device)

    def load(self, device: str) -> Head:
        """Read the device's version from the store. Raises GatewayError (503)."""
        try:
            version = self._versions.load(device)
        except FederatedError as error:
            raise GatewayError(503, f"personal versions cannot be read now: {error}", retry_after=5.0) from error
        if version is None:
            return GLOBAL
        if version.base != self.digest:
            return self._refused(version, "is of another model")
        state = {name: delta for name, delta in version.delta.items() if name in self._state}
        for name, delta in state.items():
            own = self._state[name]
            if getattr(delta, "shape", None) != own.shape or delta.dtype != own.dtype:
                return self._refused(version, "is of a model of other shapes")
        with np.errstate(over="ignore", invalid="ignore"):
            made = version.params({name: self._state[name] for name in state})
        if not all(np.isfinite(array).all() for array in made.values() if array.dtype.kind == "f"):
            return self._refused(version, "holds numbers that are not finite")
        return Head(device, version.version, made, f"version {version.version}", version.created)

    def _refused(self, version: Version, what: str) -> Head:
        return Head("", 0, GLOBAL.state, f"global: version {version.version} {what}")

    def count(self, hits: int, misses: int) -> None:
        """Jobs answered by a device's version, and by the model for all though they named a device."""
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
