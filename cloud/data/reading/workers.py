"""Reading ahead in processes: a pool that exists until the program ends, for all pipelines and epochs.

grain's own processes were tried and were worse: two of them are started again every epoch and import JAX each time (9 s
to the first batch on two busy cores, 2.5 s to stop; ours 1.2-2.3 s, once), and keep running when their parent is
killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, lru_cache
from multiprocessing import get_context, parent_process
from typing import Any

from cloud.data._grain import Numbered
from cloud.errors import DataError

__all__ = ["ahead_in_processes"]


def ahead_in_processes(items: Numbered, start: int, *, workers: int, buffer: int) -> Iterator[Any]:
    """Items from number `start` on, in order, each read by one of `workers` processes, which keep `buffer` each ready.

    Processes are spawned: a script that uses them starts under `if __name__ == "__main__":`. Data in
    memory are copied to each; files are opened there. Raises DataError if a process dies.
    """
    pending: deque[Future[Any]] = deque()
    with _shipped(items) as path:
        try:
            pool = _pool(workers)
            for number in range(start, len(items)):
                pending.append(pool.submit(_get, path, number))
                if len(pending) > workers * buffer:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as problem:
            _pool.cache_clear()
            raise DataError(
                "a worker process that reads data ended: was there too little memory, or does the script lack "
                'if __name__ == "__main__": around its main code?'
            ) from problem
        finally:
            for future in pending:
                future.cancel()


@cache
def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn"), _started)


def _started() -> None:
    """Set up a new worker: the parent handles Ctrl-C; workers end when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _shipped(items: Numbered) -> Iterator[str]:
    """A private file with the data for workers, from this process to its children, deleted afterwards."""
    import cloudpickle

    try:
        sent = cloudpickle.dumps(items)
    except Exception as problem:  # user code: objects define how they are pickled
        raise DataError(f"the pipeline cannot be sent to worker processes: {problem}; read with workers=0") from problem
    handle, path = tempfile.mkstemp(dir=_folder().name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(sent)
        yield path
    finally:
        os.unlink(path)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder, removed when the program ends."""
    return tempfile.TemporaryDirectory(prefix="msedge-data-")


@lru_cache(maxsize=2)  # for training and validation
def _opened(path: str) -> Numbered:
    with open(path, "rb") as file:
        opened: Numbered = pickle.load(file)
    return opened


def _get(path: str, number: int) -> Any:
    return _opened(path).get(number)
