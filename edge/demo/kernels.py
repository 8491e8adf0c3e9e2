"""Kernels are compiled while the demo imports the trainer and trains: on all cores, in processes of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["preparing"]


@contextmanager
def preparing(progress: Callable[[int, int], None]) -> Iterator[Callable[[], None]]:
    """Compile in the background what is not there yet; gives a function that waits until all is there, and raises
    what compiling raised. `progress` is told, from another thread, how many kernel families of how many are done."""
    from lite_runtime.errors import MissingExtraError, MsedgeError
    from lite_runtime.native import build

    failed: list[MsedgeError] = []

    def compiling() -> None:
        try:
            build.prepare(progress=progress)
        except MissingExtraError:
            pass  # without a compiler there is nothing to do ahead
        except MsedgeError as error:
            failed.append(error)

    thread = threading.Thread(target=compiling, name="compiling kernels")
    thread.start()

    def wait() -> None:
        thread.join()
        if failed:
            raise failed[0]

    try:
        yield wait
    finally:
        thread.join()
