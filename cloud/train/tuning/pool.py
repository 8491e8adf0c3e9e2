"""Where trials run: in processes of this machine, each on its share of the cores."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from cloud.train.tuning.trial import Message, serve

__all__ = ["Pool", "Processes", "shares"]

_GRACE = 20.0
"""Seconds for a process to end after its step, before it is killed."""


class Pool(Protocol):
    """Workers numbered from 0, each with at most one trial (see `serve`)."""

    size: int

    def send(self, worker: int, message: Message) -> None:
        """Give a worker a trial, or an answer; one that was lost is replaced first."""

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        """What workers told, at the latest after `seconds`. {"kind": "lost", "why"}: the worker ended."""
        raise NotImplementedError

    def close(self) -> None:
        """End all workers, in the middle of a trial too."""


class Processes:
    """A pool of `size` processes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._cores = shares(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (), size)
        self._there: dict[int, tuple[Any, Connection]] = {}

    def send(self, worker: int, message: Message) -> None:
        """See `Pool`."""
        if worker not in self._there:
            self._there[worker] = _started(self._cores[worker])
        with contextlib.suppress(OSError):  # it is lost: `wait` says so
            self._there[worker][1].send_bytes(json.dumps(message).encode())

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        """See `Pool`."""
        by_pipe = {pipe: worker for worker, (_, pipe) in self._there.items()}
        if not by_pipe:
            time.sleep(seconds)
        found: list[tuple[int, Message]] = []
        for pipe in wait(list(by_pipe), seconds) if by_pipe else ():
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                found.append((worker, json.loads(self._there[worker][1].recv_bytes())))
            except (EOFError, OSError):
                process, mine = self._there.pop(worker)
                mine.close()
                process.join()
                found.append((worker, {"kind": "lost", "why": f"its process ended with status {process.exitcode}"}))
        return found

    def close(self) -> None:
        """See `Pool`."""
        for process, pipe in self._there.values():
            process.terminate()
            pipe.close()
        until = time.monotonic() + _GRACE
        for process, _ in self._there.values():
            process.join(max(0.0, until - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        self._there.clear()


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """The cores of each of `count` processes: equal parts of them, at least one each."""
    if not cores:
        return [[] for _ in range(count)]
    each, more = divmod(len(cores), count)
    if not each:
        return [[cores[at % len(cores)]] for at in range(count)]
    sizes = [each + (at < more) for at in range(count)]
    return [list(cores[sum(sizes[:at]) : sum(sizes[: at + 1])]) for at in range(count)]


def _started(cores: Sequence[int]) -> tuple[Any, Connection]:
    context = get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=_work, args=(other, list(cores)), name="trials", daemon=True)
    process.start()
    other.close()
    return process, mine


def _work(pipe: Connection, cores: Sequence[int]) -> None:
    """The main function of a process: the parent handles Ctrl-C; without a parent it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # what a user's functions print is no result
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before JAX counts them

    def take() -> Message | None:
        try:
            made: Message = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        return made

    def tell(message: Message) -> None:
        try:
            pipe.send_bytes(json.dumps(message).encode())
        except OSError:
            raise SystemExit from None

    serve(take, tell)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
