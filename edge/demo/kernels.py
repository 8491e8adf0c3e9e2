"""Compiles the demo's kernels on all cores, in separate processes, while the demo imports the trainer and trains.

`python -m edge.demo.kernels` does the same, silently, while packages are still being installed: it needs NumPy and
Numba only. A demo that is started meanwhile waits for kernels that are being compiled and reports what fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lite_runtime.errors import MissingExtraError, MsedgeError
from lite_runtime.native import build

__all__ = ["FAMILIES", "preparing"]

FAMILIES = (
    *("copy", "elementwise", "gemm", "grouped", "jsontext", "normalize", "order", "outer", "packing", "qelementwise"),
    *("qgemm", "qreduce", "reduce", "transposed", "walker", "winograd"),
)
"""Kernel families of the demo's programs."""


@contextmanager
def preparing(progress: Callable[[int, int], None]) -> Iterator[Callable[[], None]]:
    """Compile missing kernels in the background. Yields a function that waits until all are compiled and raises the
    exception of a failed compilation. `progress` is called from another thread with the number of kernel families done
    and the total."""
    failed: list[MsedgeError] = []

    def compiling() -> None:
        try:
            build.prepare(FAMILIES, progress=progress)
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


if __name__ == "__main__":
    build.prepare(FAMILIES, progress=lambda done, count: None)
