"""`Recorder`: writes one run's scalars in its own thread, so that a step costs only an append to a list."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from cloud.errors import TrackError
from cloud.track.facts import memory_now
from cloud.track.store import Row, Store

__all__ = ["Recorder"]

_EVERY, _BEAT = 0.5, 5.0
"""Seconds between writes, and between heartbeats."""
_MEMORY = 1.0
"""Seconds between two readings of the memory in use, while steps are done."""
_MOST = 1_000_000
"""Steps kept in memory while the file cannot be written; older ones are dropped."""


class Recorder:
    """Scalars and heartbeat of the run `run` in the store at `path`, until `close`; memory/process and memory/device,
    bytes in use, about once a second.

    A file that cannot be written (a full disk) does not stop training: steps wait in memory, and `close` raises
    TrackError if they still cannot be written then.
    """

    def __init__(self, path: str | os.PathLike[str], run: str) -> None:
        self.run = run
        self._store = Store(path)
        self._waiting: deque[tuple[int, float, Mapping[str, float]]] = deque(maxlen=_MOST)
        self._closing = threading.Event()
        self._failed: TrackError | None = None
        self._memory_at = 0.0
        self._thread = threading.Thread(target=self._work, name=f"recorder of {run}", daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Values by name at a step; the mapping must not change afterwards."""
        self._waiting.append((step, time.time(), values))

    def close(self) -> None:
        """Write the steps that wait and stop. Raises TrackError if that fails."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._store.close()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _work(self) -> None:
        beaten = time.monotonic()
        while not self._closing.wait(_EVERY):
            self._write()
            if time.monotonic() - beaten >= _BEAT:
                beaten = time.monotonic()
                self._attempt(lambda: self._store.beat(self.run))
        self._write()

    def _write(self) -> None:
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        rows: list[Row] = [(n, step, at, float(v)) for step, at, values in taken for n, v in values.items()]
        if rows and time.monotonic() - self._memory_at >= _MEMORY:
            self._memory_at = time.monotonic()
            step, at, _ = taken[-1]
            rows += [(f"memory/{name}", step, at, size) for name, size in memory_now().items()]
        if rows and not self._attempt(lambda: self._store.add_scalars(self.run, rows)):
            self._waiting.extendleft(reversed(taken))

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except TrackError as error:
            self._failed = error
            return False
        self._failed = None
        return True
