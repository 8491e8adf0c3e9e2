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
from lite_runtime.native.target import host
from lite_runtime.targets import Target

__all__ = ["Roofline", "measure", "roofline"]

CHAINS, LINES = 12, 8
"""The same values as in `lite_runtime/kernels/peak.py`."""
SIZES = 256 << 10, 4 << 20, 16 << 20, 64 << 20, 256 << 20
"""Sizes in bytes of the arrays that are read repeatedly: they fit in a core's own cache, in the shared cache, or only
in memory."""
SECONDS, PATIENCE = 0.01, 0.3
"""The length of one round of arithmetic, and the total time for rounds; the fastest round counts."""
_VERSION = 2
_INT = ctypes.c_int64


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates of `threads` cores together: operations (a multiply-add is two) and bytes per second."""

    machine: str
    target: str
    threads: int
    date: str
    f32: float
    int8: float
    bytes: tuple[float, ...]
    """The reading rate for each of SIZES, which is the number of bytes that each thread reads."""
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
    """This machine's roofline, from the cache folder, or else measured now (two seconds) and saved; None if native
    kernels cannot run."""
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
        return made  # if the folder cannot be written or trusted, it is measured each time
    return made


def measure(target: Target, threads: int) -> Roofline:
    """Measure this machine with `threads` cores in use."""
    entry, products = ("int8", 4) if target.sums_four else ("int16", 2)
    return Roofline(
        _machine(),
        target.name,
        threads,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        _arithmetic("f32", threads) * 2 * CHAINS * target.lanes,
        _arithmetic(entry, threads) * 2 * CHAINS * target.lanes * products,
        tuple(_reading(size, threads, 4 * target.lanes * LINES) for size in SIZES),
    )


def _on_integers(kernel: str) -> bool:
    """Whether a kernel multiplies 8-bit integers: names of such families begin with q (`qgemm`, `qdepthwise` …)."""
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
    """Rounds per second of an entry point of the peak kernels, summed over all threads."""
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
    """Bytes per second read by all threads together, each from its own array of `size` bytes; `line`: bytes per
    round."""
    call = build.function("peak", "read", _INT, _INT, _INT, _INT)
    blocks, sums = ([_vectors(n) for _ in range(threads)] for n in (size, 64 * LINES))
    at, to = ([array.ctypes.data for array in arrays] for arrays in (blocks, sums))
    times = max(1, SIZES[-1] // size)
    return threads * times * size / _fastest(lambda i: call(at[i], size // line, times, to[i]), threads, PATIENCE)


def _vectors(nbytes: int) -> Array:
    """Memory that starts at a cache line, filled with the float32 value 0.5: sums and products stay normal numbers."""
    raw = np.full(nbytes // 4 + 16, 0.5, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + nbytes // 4]


def _fastest(work: Callable[[int], object], threads: int, patience: float) -> float:
    """Seconds of the fastest round (of at least one) in which all threads run `work(number of the thread)` at the same
    time."""
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
