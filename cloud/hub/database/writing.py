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
from cloud.hub.errors import DatabaseError, HubError

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
        """The result of a call that changes all that it does or, if it raises, nothing; after everything before it. It
        may be called twice, if the first transaction fails."""
        made: Future[T] = Future()
        self._queue.put(_Call(call, made))
        return made

    def close(self) -> None:
        """Store what waits, and stop."""
        self._queue.put(None)
        self._thread.join()
        self._database.close()

    def _work(self) -> None:
        over = False
        while not over:
            waiting = [self._queue.get()]
            while len(waiting) < MOST and not self._queue.empty():
                waiting.append(self._queue.get())
            items = [item for item in waiting if item is not None]
            over = len(items) < len(waiting)
            items = [item for item in items if item.done.set_running_or_notify_cancel()]  # later none can be cancelled
            if items:
                self._commit(items)

    def _commit(self, items: Sequence[_Batch | _Call], again: bool = True) -> None:
        """Store all in one transaction; if that fails, each in one of its own, so that only the culprit fails. again:
        whether one alone is stored once more where the connection broke."""
        try:
            with self._database.transaction() as cursor:
                results = self._stored(cursor, items)
        except Exception as problem:  # thread: the request that waits gets it
            if len(items) > 1:
                for item in items:
                    self._commit([item])
            elif again and self._database.lost:
                self._commit(items, again=False)
            else:
                items[0].done.set_exception(problem if isinstance(problem, HubError) else HubError(f"{problem}"))
            return
        self.commits += 1
        for item, (result, failure) in zip(items, results, strict=True):
            if failure is None:
                item.done.set_result(result)
            else:
                item.done.set_exception(failure)

    def _stored(self, cursor: Cursor, items: Sequence[_Batch | _Call]) -> list[tuple[Any, Exception | None]]:
        """What each gives, once this is committed. Changes that follow each other are stored by statement."""
        results: list[tuple[Any, Exception | None]] = []
        grouped: dict[str, list[Sequence[Any]]] = {}
        for item in items:
            if isinstance(item, _Batch):
                for words, values in item.changes:
                    grouped.setdefault(words, []).append(values)
                results.append((None, None))
                continue
            _flush(cursor, grouped)
            try:
                with cursor.attempt():
                    results.append((item.call(cursor), None))
            except DatabaseError:
                raise  # what was done before in this transaction may be gone: all is done again
            except Exception as problem:  # thread: the request that waits for the call gets it
                results.append((None, problem))
        _flush(cursor, grouped)
        return results


def _flush(cursor: Cursor, grouped: dict[str, list[Sequence[Any]]]) -> None:
    for words, rows in grouped.items():
        cursor.many(words, rows)
    grouped.clear()
