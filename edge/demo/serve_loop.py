"""The end of the demo: the resulting models are served over HTTP, the common model in batches and a personal version
for each device.

Clients run in threads. They send images in batches, and the images of devices one by one, as real devices would. The
measured times include the clients.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lite_runtime.graph import Array

if TYPE_CHECKING:
    from federated.learner import Batch

__all__ = ["BATCH", "CLIENTS", "Load", "ServeOutcome", "run_serve"]

CLIENTS, BATCH = 8, 32


@dataclass(frozen=True, slots=True)
class Load:
    """Results of `CLIENTS` clients: number of requests, accuracy, images per second, median seconds of a request, and
    mean rows per batch."""

    requests: int
    accuracy: float
    rate: float
    median: float
    rows: float


@dataclass(frozen=True, slots=True)
class ServeOutcome:
    """Results for: all digits with the digits model; every device's images with the fleet's common model, and with the
    device's personal version."""

    everybody: Load
    common: Load
    personal: Load
    devices: int
    answered_by_own: int
    """Number of requests whose reply says that the device's own version answered."""

    @property
    def ok(self) -> bool:
        """Whether personal versions answered, with higher accuracy than the common model."""
        return self.answered_by_own == self.personal.requests and self.personal.accuracy > self.common.accuracy


def run_serve(
    folder: Path, digits: tuple[Array, Array], shards: Mapping[str, Batch], threads: int, say: Callable[[str], None]
) -> ServeOutcome:
    """Serve digits.mslite and global.mslite from `folder`, the latter with personal.sqlite, and send `digits` and the
    examples of each device as requests."""
    say("gateway: serving the models over HTTP on 127.0.0.1")
    models = (f"digits={folder / 'digits.mslite'}", f"fleet={folder / 'global.mslite'}")
    with _serving(models, folder / "personal.sqlite", threads) as gateway:
        x, y = digits
        parts = range(0, len(x), BATCH)
        everybody = _ask(gateway, "digits", [Asked(x[i : i + BATCH], y[i : i + BATCH]) for i in parts])
        mine = [asked for name, batch in shards.items() for asked in _one_by_one(batch, name)]
        order = np.random.default_rng(0).permutation(len(mine))
        mine = [mine[i] for i in order]
        common = _ask(gateway, "fleet", [asked._replace(device="") for asked in mine])
        before = gateway.hits
        personal = _ask(gateway, "fleet", mine)
        return ServeOutcome(everybody, common, personal, len(shards), gateway.hits - before)


class Asked(NamedTuple):
    """A request: images [n, ...], labels [n], and the device ("": none)."""

    images: Array
    labels: Array
    device: str = ""


def _one_by_one(batch: Batch, device: str) -> Iterator[Asked]:
    images = next(iter(batch.inputs.values()))
    return (Asked(images[i : i + 1], batch.labels[i : i + 1], device) for i in range(len(images)))


class _Gateway:
    """A gateway in a separate thread. `hits`: number of replies from devices' own versions so far."""

    def __init__(self, address: str, gateway: Any) -> None:
        self.address, self.gateway, self.hits = address, gateway, 0

    def rows(self, model: str) -> tuple[int, int]:
        """Rows and batches computed so far."""
        numbers = self.gateway.statistics.of(model, "1")
        return numbers.rows, numbers.executions


@contextmanager
def _serving(models: Sequence[str], store: Path, threads: int) -> Iterator[_Gateway]:
    from edge.gateway.http.inside import running
    from edge.gateway.operate.sources import resolve

    flags = {"models": tuple(models), "threads": threads, "personal.store": str(store), "logs.level": "warning"}
    with running(resolve({**flags, "host": "127.0.0.1", "port": 0}, environment={})) as there:
        gc.collect()
        gc.freeze()  # as `msedge serve` does; the objects of the demo's first half take 0.25 s to traverse
        try:
            yield _Gateway(there.address, there.gateway)
        finally:
            gc.unfreeze()


def _ask(gateway: _Gateway, model: str, requests: Sequence[Asked]) -> Load:
    """Send all requests over `CLIENTS` connections."""
    from edge.client import Client

    def ask(mine: Sequence[Asked]) -> tuple[int, list[float], int]:
        seconds, right, own = [], 0, 0
        with Client(gateway.address) as client:
            (name,) = (one["name"] for one in client.metadata(model)["inputs"])
            for images, labels, device in mine:
                begun = perf_counter()
                outputs = client.infer(model, {name: images}, device=device)
                seconds.append(perf_counter() - begun)
                right += int((next(iter(outputs.values())).argmax(axis=-1) == labels).sum())
                own += str(client.notes.get("personal", "")).startswith("version")
        return right, seconds, own

    rows, batches = gateway.rows(model)
    begun = perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        parts = list(pool.map(ask, [requests[i::CLIENTS] for i in range(CLIENTS)]))
    took = perf_counter() - begun
    now_rows, now_batches = gateway.rows(model)
    gateway.hits += sum(own for _, _, own in parts)
    images = sum(len(asked.labels) for asked in requests)
    median = float(np.median(np.concatenate([seconds for _, seconds, _ in parts])))
    each = (now_rows - rows) / max(1, now_batches - batches)
    return Load(len(requests), sum(right for right, _, _ in parts) / images, images / took, median, each)
