"""Kernels that models need and that are not compiled yet: compiled apart, while these models run by reference."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from time import perf_counter
from typing import Any, NamedTuple

from edge.gateway.apart import Workers
from lite_runtime.errors import MsedgeError
from lite_runtime.native import build

__all__ = ["Compiling", "Kernels"]

NICE = 10
"""How far the compilers' priority is below that of requests."""


class Compiling(NamedTuple):
    """done, of: kernel families that were compiled, of all that models have lacked since none were; of is 0 if none are
    lacking. problem: why the last compilation failed, "" if it did not."""

    done: int = 0
    of: int = 0
    problem: str = ""


class _EndedError(Exception):
    """The process ends."""


class Kernels:
    """Compiles on a thread of its own, in processes of low priority. tell: as in `keeper`."""

    def __init__(self, tell: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._tell = tell
        self._workers = Workers("msedge-kernels", 1)
        self._ended = False
        self._before, self._all = 0, 0
        self.state = Compiling()

    async def compile(self, families: Collection[str], left: int = 0) -> bool:
        """Compile kernel families; returns whether they are there now. left: how many will still be missing then. What
        went wrong is told, and in `state`."""
        wanted, begun = sorted(families), perf_counter()
        self._all = self._before + len(wanted) + left
        self._progress(0, len(wanted))
        self._tell("compiling kernels", {"families": " ".join(wanted)})
        try:
            await asyncio.wrap_future(self._workers.submit(self._compile, wanted))
        except _EndedError:
            return False
        except (MsedgeError, OSError) as error:
            self._before, self.state = 0, Compiling(problem=str(error))
            self._tell("kernels cannot be compiled", {"reason": str(error)[:2000]})
            return False
        self._before = self._before + len(wanted) if left else 0
        self.state = Compiling(self._before, self._all) if left else Compiling()
        self._tell("kernels compiled", {"families": " ".join(wanted), "seconds": round(perf_counter() - begun, 1)})
        return True

    def close(self) -> None:
        """End a compilation."""
        self._ended = True

    def _compile(self, wanted: list[str]) -> None:
        build.prepare(wanted, jobs=max(1, (os.cpu_count() or 1) - 1), progress=self._progress, nice=NICE)

    def _progress(self, done: int, of: int) -> None:
        if self._ended:
            raise _EndedError
        self.state = Compiling(self._before + done, self._all)
