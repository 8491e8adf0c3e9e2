"""Transfer of batches to the device during the computation on earlier ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cloud.data.reading.iterate import Batches
from cloud.errors import DataError

__all__ = ["to_device"]


class _Failed:
    def __init__(self, problem: BaseException) -> None:
        self.problem = problem


_END = object()


class _Placed(Iterator[Any]):
    """Batches that a thread places on the device in advance; `position()` counts those taken, not those placed."""

    def __init__(self, batches: Batches, place: Callable[[Any], Any], depth: int) -> None:
        self._ready: queue.Queue[Any] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._position, self._over = batches.position(), False
        self._thread = threading.Thread(target=self._fill, args=(batches, place), daemon=True)
        self._thread.start()

    def __iter__(self) -> _Placed:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        found = self._ready.get()
        if isinstance(found, tuple):
            batch, self._position = found
            return batch
        self._over = True
        if isinstance(found, _Failed):
            raise found.problem
        raise StopIteration

    def position(self) -> dict[str, Any]:
        """See `Batches.position`."""
        return dict(self._position)

    def close(self) -> None:
        """Stop the thread and what it reads from."""
        self._over = True
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> _Placed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, batches: Batches, place: Callable[[Any], Any]) -> None:
        last: Any = _END
        try:
            with batches:
                for batch in batches:
                    if not self._put((place(batch), batches.position())):
                        return
        except BaseException as problem:  # thread: raised again for the caller that takes the next batch
            last = _Failed(problem)
        self._put(last)

    def _put(self, found: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(found, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def to_device(
    batches: Batches, sharding: Any = None, *, place: Callable[[Any], Any] | None = None, depth: int = 2
) -> _Placed:  # fmt: skip
    """The batches placed by `jax.device_put` with `sharding` (None: the default device), or by `place`, up to `depth`
    of them in advance by a thread. It has `position()` and `close()` like `Batches`. Raises DataError for a `depth`
    below 1."""
    if depth < 1:
        raise DataError(f"expected a depth of at least 1, got {depth}")
    if place is None:
        import jax

        def place(batch: Any) -> Any:
            return jax.device_put(batch, sharding)

    return _Placed(batches, place, depth)
