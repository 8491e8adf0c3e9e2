"""One writer: changes that wait for the disk are stored together, and each is answered when it is durable.

A fleet that checks in a thousand times a second would need a thousand commits; here all that has come while the last
commit was under way goes into the next one. Order is kept between changes of the same statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from cloud.hub.database.engine import Cursor, Database
from cloud.hub.errors import HubError

__all__ = ["Change", "Writer"]

T = TypeVar("T")
Change = tuple[str, Sequence[Any]]
"""A statement and its values."""
MOST = 2000
"""Most requests that one commit stores."""


class _Batch(NamedTuple):
    changes: Sequence[Change]
    done: Future[None]


class _Call(NamedTuple):
    call: Callable[[Cursor], Any]
    done: Future[Any]


_NOTHING = _Call(lambda cursor: None, Future())


class Writer:
    """A thread with a connection of its own, which it closes at the end. `commits` counts transactions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[_Batch | _Call | None] = SimpleQueue()
        self.commits = 0
        self._thread = Thread(target=self._work, name="hub-writer", daemon=True)
        self._thread.start()

    def store(self, changes: Sequence[Change]) -> Future[None]:
        """Done when these changes are durable; HubError if they could not be stored, none of them then."""
        made: Future[None] = Future()
        self._queue.put(_Batch(changes, made))
        return made

    def run(self, call: Callable[[Cursor], T]) -> Future[T]:
        """The result of a call in a transaction of its own, after everything before it."""
        made: Future[T] = Future()
        self._queue.put(_Call(call, made))
        return made

    def close(self) -> None:
        """Store what waits, and stop."""
        self._queue.put(None)
        self._thread.join()
        self._database.close()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            waiting: list[_Batch] = []
            while isinstance(item, _Batch):
                waiting.append(item)
                item = self._queue.get() if not self._queue.empty() and len(waiting) < MOST else _NOTHING
            if waiting:
                self._commit(waiting)
            if isinstance(item, _Call) and item is not _NOTHING:
                self._call(item)
            if item is None:
                return

    def _commit(self, waiting: Sequence[_Batch]) -> None:
        """Store all in one transaction; if that fails, each in one of its own, so that only the culprit fails."""
        problem = self._stored([change for batch in waiting for change in batch.changes])
        for batch in waiting:
            if problem is not None and len(waiting) > 1:
                self._commit([batch])
            elif problem is not None:
                batch.done.set_exception(problem)
            else:
                batch.done.set_result(None)

    def _stored(self, changes: Sequence[Change]) -> HubError | None:
        grouped: dict[str, list[Sequence[Any]]] = {}
        for words, values in changes:
            grouped.setdefault(words, []).append(values)
        try:
            with self._database.transaction() as cursor:
                for words, rows in grouped.items():
                    cursor.many(words, rows)
        except Exception as problem:  # thread: the request that waits for its change gets it
            return problem if isinstance(problem, HubError) else HubError(f"cannot store: {problem}")
        self.commits += 1
        return None

    def _call(self, item: _Call) -> None:
        try:
            with self._database.transaction() as cursor:
                result = item.call(cursor)
            self.commits += 1
        except Exception as problem:  # thread: the request that waits for the call gets it
            item.done.set_exception(problem)
        else:
            item.done.set_result(result)
