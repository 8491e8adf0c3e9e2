"""Personal versions for all models of a gateway: the store, and for each model its heads and runners."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from edge.gateway.job import Job
from edge.gateway.personal.heads import Heads
from edge.gateway.personal.runner import PersonalRunner
from edge.gateway.personal.versions import Versions
from edge.gateway.ports import Ports
from federated.server.store import PersonalReader
from lite_runtime import Model

__all__ = ["Personal"]

Tell = Callable[[str, Mapping[str, Any]], None]


class Personal:
    """`await start()` before the first request, `await close()` after the last.

    store: the file of `federated.server.store`. devices: number of devices whose tensors are in a model's tables at
    once; refresh: seconds between checks of the store; memory: bytes of cached heads per model, and of tables per
    runner. tell: callback for events.
    For a request that names a device:

        job = Job(…, device=check_device(name))
        if not personal.admit(job, model):
            await personal.ready(job, model)
        runner = served.runner_for(job)         # the factory calls `runner` for jobs that name a device
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        devices: int = 1024,
        refresh: float = 5.0,
        memory: int = 256 << 20,
        tell: Tell = lambda event, facts: None,
    ) -> None:
        """Raises FederatedError for a missing file, and for one that is no store."""
        self._versions = Versions(PersonalReader(store), refresh=refresh, tell=tell)
        self._devices, self._memory, self._tell = devices, memory, tell
        self._threads = ThreadPoolExecutor(2, "msedge-personal")
        self._heads: WeakKeyDictionary[Model, Heads] = WeakKeyDictionary()
        self._runners: WeakKeyDictionary[Model, WeakSet[PersonalRunner]] = WeakKeyDictionary()
        self._watch: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """Why the store cannot be read at present; "" if it can."""
        return self._versions.problem

    @property
    def read(self) -> float:
        """When the store was last read, in seconds since 1970."""
        return self._versions.read

    async def start(self) -> None:
        """Read the store, and start to watch it."""
        await asyncio.to_thread(self._versions.look)
        self._watch = asyncio.create_task(self._versions.watch())

    async def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._threads.shutdown(wait=False, cancel_futures=True)

    def heads(self, model: Model) -> Heads:
        """A loaded model's heads."""
        found = self._heads.get(model)
        if found is None:
            found = self._heads[model] = Heads(self._versions, model, self._threads, memory=self._memory)
        return found

    def admit(self, job: Job, model: Model) -> bool:
        """Whether a job that names a device can be queued at once. If the device has no version that may be served, the
        job is changed to use the common model, and its notes say so."""
        return self.heads(model).admit(job)

    async def ready(self, job: Job, model: Model) -> None:
        """Load the version that a job needs, then admit the job. Raises GatewayError (503)."""
        heads = self.heads(model)
        head = await heads.ready(job.device)
        for runner in tuple(self._runners.get(model, ())):
            if head.device and not runner.knows(head):
                await asyncio.get_running_loop().run_in_executor(self._threads, runner.meet, head)
        heads.admit(job)

    def runner(
        self,
        model: Model,
        signature: str,
        ports: Ports,
        row_shapes: Mapping[str, tuple[int, ...]],
        *,
        name: str,
        version: str,
        limit: int = 64,
    ) -> PersonalRunner:
        """The runner of jobs that name devices; arguments as for `ModelRunner`."""
        made = PersonalRunner(
            model, signature, ports, row_shapes, self.heads(model), name=name, version=version, limit=limit,
            slots=self._devices + 1, memory=self._memory, tell=self._tell,
        )  # fmt: skip
        self._runners.setdefault(model, WeakSet()).add(made)
        return made

    def figures(self, model: Model) -> dict[str, int]:
        """devices: number of cached heads; capacity: number of devices whose tensors fit in the tables; bytes: of heads
        and tables; hits: jobs answered by a device's version; misses: jobs that named a device but were answered by the
        common model."""
        heads, runners = self.heads(model), list(self._runners.get(model, ()))
        return {
            "devices": len(heads),
            "capacity": self._devices,
            "bytes": heads.nbytes + sum(runner.nbytes for runner in runners),
            "hits": heads.hits,
            "misses": heads.misses,
        }
