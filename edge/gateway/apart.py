"""Threads that the end of the process does not wait for: what they read may not answer for minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """Up to `count` daemon threads, started when they are first needed. (Python ends only after the threads of
    `concurrent.futures`.)"""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._given: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock, self._idle = threading.Lock(), 0

    def submit(self, what: Callable[..., T], *given: Any) -> Future[T]:
        """Call `what(*given)` on one of the threads; the future gets its result or exception."""
        future: Future[T] = Future()
        with self._lock:
            self._idle -= 1
            if self._idle < 0 and len(self._threads) < self._count:
                self._idle += 1
                self._threads.append(threading.Thread(target=self._work, name=self._name, daemon=True))
                self._threads[-1].start()
        self._given.put((future, what, given))
        return future

    def _work(self) -> None:
        while True:
            _call(*self._given.get())
            with self._lock:
                self._idle += 1


def _call(future: Future[Any], what: Callable[..., Any], given: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = what(*given)
    except BaseException as error:  # thread: passed on to whoever waits
        _settle(future.set_exception, error)
        del future  # the error refers to this frame, and would be freed late by the garbage collector
    else:
        _settle(future.set_result, result)


def _settle(settle: Callable[[Any], None], value: object) -> None:
    """Set the result; if the event loop that waited for it is closed, nobody needs it."""
    try:
        settle(value)
    except RuntimeError:
        return
