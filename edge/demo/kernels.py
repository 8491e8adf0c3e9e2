"""Compiles kernels on all cores, in separate processes, while the demo imports the trainer and trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["preparing"]


@contextmanager
def preparing(progress: Callable[[int, int], None]) -> Iterator[Callable[[], None]]:
    """Compile missing kernels in the background. Yields a function that waits until all are compiled and raises the
    exception of a failed compilation. `progress` is called from another thread with the number of kernel families done
    and the total."""
    from lite_runtime.errors import MissingExtraError, MsedgeError
    from lite_runtime.native import build

    failed: list[MsedgeError] = []

    def compiling() -> None:
        try:
            build.prepare(progress=progress)
        except MissingExtraError:
            pass  # without a compiler there is nothing to prepare
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
