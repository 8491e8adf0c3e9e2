"""Trials of a study as actors of a Ray cluster: the pool for `msedge tune --ray`.

All machines need the folder of the run's file, and the store, at the same paths.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cloud.errors import TrainError
from cloud.train.tuning.trial import Message, serve

__all__ = ["Actors", "connected"]


class _Worker:
    """An actor: its trials run in a thread, so that it can be told and asked meanwhile."""

    def __init__(self) -> None:
        self._orders: queue.Queue[Message | None] = queue.Queue()
        self._told: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=serve, args=(self._orders.get, self._told.put), daemon=True).start()

    def send(self, message: Message) -> None:
        """A trial, or an answer."""
        self._orders.put(message)

    def heard(self) -> Message:
        """The next message; waits for it."""
        return self._told.get()


class Actors:
    """A pool (see `cloud.train.tuning.pool.Pool`) of `size` actors, each with `cpus` CPUs and `gpus` GPUs."""

    def __init__(self, size: int, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        import ray

        made: Any = ray.remote(_Worker)
        self._class = made.options(num_cpus=cpus, num_gpus=gpus, max_concurrency=2)
        self.size = size
        self._there: dict[int, Any] = {}
        self._coming: dict[Any, int] = {}
        """What is asked of which worker."""

    def send(self, worker: int, message: Message) -> None:
        """Give a worker a trial, or an answer."""
        if worker not in self._there:
            self._there[worker] = self._class.remote()
        self._there[worker].send.remote(message)
        if worker not in self._coming.values():
            self._coming[self._there[worker].heard.remote()] = worker

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        """What workers told; a trial whose worker is lost is told as "lost"."""
        import ray

        if not self._coming:
            time.sleep(seconds)
            return []
        done, _ = ray.wait(list(self._coming), timeout=seconds)
        found: list[tuple[int, Message]] = []
        for each in done:
            worker = self._coming.pop(each)
            try:
                message = ray.get(each)
            except ray.exceptions.RayActorError as error:
                del self._there[worker]
                message = {"kind": "lost", "why": str(error).splitlines()[0]}
            if message["kind"] not in ("finished", "pruned", "failed", "lost"):
                self._coming[self._there[worker].heard.remote()] = worker
            found.append((worker, message))
        return found

    def close(self) -> None:
        """Kill all actors."""
        import ray

        for actor in self._there.values():
            ray.kill(actor)
        self._there.clear()
        self._coming.clear()


@contextmanager
def connected(address: str) -> Iterator[Callable[[int], Actors]]:
    """A function that makes a pool on the Ray cluster at `address`; "local": one of this machine, which ends with the
    block. Raises TrainError if there is none."""
    import ray

    try:
        options = {"include_dashboard": False} if address == "local" else {}
        ray.init(address, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise TrainError(f"--ray: cannot connect to a Ray cluster at {address!r}: {error}") from error
    try:
        yield Actors
    finally:
        ray.shutdown()
