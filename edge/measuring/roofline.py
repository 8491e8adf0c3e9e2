"""The roofline of this machine, measured once and saved: peak arithmetic, and bandwidth of each level of memory.

A step with n multiplications that moves b bytes takes at least max(n / peak, b / bandwidth) seconds (Williams,
Waterman and Patterson 2009); this bound divided by the actual time shows how much can still be gained.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.native import build, trust
from lite_runtime.native.target import Target, host

__all__ = ["Roofline", "measure", "roofline"]

CHAINS, LINES = 12, 8
"""As in `lite_runtime/kernels/peak.py`."""
SIZES = 256 << 10, 4 << 20, 16 << 20, 64 << 20, 256 << 20
"""Bytes that are read over and over: from a core's own cache by way of the shared one to memory."""
SECONDS, PATIENCE = 0.01, 0.3
"""How long a round of arithmetic lasts, and how long rounds go on: the fastest counts."""
_VERSION = 2
_INT = ctypes.c_int64


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates of `threads` cores together: operations (a multiply-add is two) and bytes a second."""

    machine: str
    target: str
    threads: int
    date: str
    f32: float
    int8: float
    bytes: tuple[float, ...]
    """Of working sets of each of SIZES, a thread."""
    version: int = _VERSION

    @property
    def text(self) -> str:
        """The rates in one line."""
        reads = ", ".join(f"{rate / 1e9:.0f} of {size >> 10} KiB" for size, rate in zip(SIZES, self.bytes, strict=True))
        return (
            f"measured {self.date} ({self.target}, {self.threads} thread{'s' * (self.threads != 1)}):"
            f" {self.f32 / 1e9:.0f} GFLOP/s float32, {self.int8 / 1e9:.0f} GOP/s int8; GB/s reading {reads}"
        )

    def seconds(self, kernel: str, operations: int, nbytes: int) -> float:
        """The least time for a step of that kernel (as profiles name it), operations and bytes moved."""
        rate = np.interp(np.log(max(nbytes, 1)), np.log(SIZES), self.bytes)
        return max(operations / (self.int8 if _on_integers(kernel) else self.f32), nbytes / float(rate))


def roofline(threads: int = 1, *, afresh: bool = False) -> Roofline | None:
    """This machine's, out of the cache folder or measured now (two seconds) and kept; None where no kernels run."""
    target = host()
    if target is None or not build.available():
        return None
    path = Path(build.cache_folder()) / f"roofline-{target.name}-{threads}.json"
    held = _kept(path)
    if held is not None and held.machine == _machine() and not afresh:
        return held
    made = measure(target, threads)
    try:
        trust.write(str(path), json.dumps(asdict(made), indent=2).encode())
    except (OSError, MsedgeError):
        return made  # a folder that cannot be written or trusted costs a measurement each time, no more
    return made


def measure(target: Target, threads: int) -> Roofline:
    """Measure it, `threads` cores at a time."""
    products = 4 if target.dot == "vpdpbusd" else 2
    return Roofline(
        _machine(),
        target.name,
        threads,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        _arithmetic("f32", threads) * 2 * CHAINS * target.lanes,
        _arithmetic("int8", threads) * 2 * CHAINS * target.lanes * products,
        tuple(_reading(size, threads, 4 * target.lanes * LINES) for size in SIZES),
    )


def _on_integers(kernel: str) -> bool:
    """Whether a kernel multiplies bytes: their families begin with q (`qgemm`, `qdepthwise` …)."""
    return kernel.startswith("q") and not kernel.startswith("quantize")


def _machine() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        name = ""
    return f"{name or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _kept(path: Path) -> Roofline | None:
    try:
        with trust.opened(str(path)) as file:
            fields = json.load(file)
        held = Roofline(**{**fields, "bytes": tuple(fields["bytes"])})
        return held if held.version == _VERSION else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    except trust.TrustError as problem:
        trust.warn(problem, "this machine is measured again")
        return None


def _arithmetic(name: str, threads: int) -> float:
    """Rounds a second of an entry point of the peak kernels, all threads together."""
    call = build.function("peak", name, _INT, _INT)
    sums = [_vectors(64 * CHAINS) for _ in range(threads)]
    at = [array.ctypes.data for array in sums]

    def seconds(rounds: int, patience: float) -> float:
        return _fastest(lambda i: call(rounds, at[i]), threads, patience)

    rounds = 1 << 12
    while seconds(rounds, 0.0) < SECONDS / 2:
        rounds *= 2
    return threads * rounds / seconds(rounds, PATIENCE)


def _reading(size: int, threads: int, line: int) -> float:
    """Bytes a second that all threads together read, each over `size` bytes of its own; `line`: bytes of a round."""
    call = build.function("peak", "read", _INT, _INT, _INT, _INT)
    blocks, sums = ([_vectors(n) for _ in range(threads)] for n in (size, 64 * LINES))
    at, to = ([array.ctypes.data for array in arrays] for arrays in (blocks, sums))
    times = max(1, SIZES[-1] // size)
    return threads * times * size / _fastest(lambda i: call(at[i], size // line, times, to[i]), threads, PATIENCE)


def _vectors(nbytes: int) -> Array:
    """Bytes that start at a cache line, every float32 of them 0.5: neither sums nor products leave the normal range."""
    raw = np.full(nbytes // 4 + 16, 0.5, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + nbytes // 4]


def _fastest(work: Callable[[int], object], threads: int, patience: float) -> float:
    """Seconds of the fastest round in which all threads do `work(their number)` at the same time; of one at least."""
    gate, best, enough = threading.Barrier(threads), float("inf"), perf_counter() + patience
    spans: list[tuple[float, float]] = [(0.0, 0.0)] * threads

    def run(i: int) -> None:
        gate.wait()
        start = perf_counter()
        work(i)
        spans[i] = start, perf_counter()

    while best == float("inf") or perf_counter() < enough:
        others = [threading.Thread(target=run, args=(i,)) for i in range(1, threads)]
        for thread in others:
            thread.start()
        run(0)
        for thread in others:
            thread.join()
        best = min(best, max(end for _, end in spans) - min(start for start, _ in spans))
    return best
