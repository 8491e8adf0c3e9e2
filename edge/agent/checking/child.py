"""The process that reads and runs a bundle before it may be used: `python -m edge.agent.checking.child`.

It reads one line of JSON from standard input, writes one to standard output, and ends when standard input does. Limits
are set before a byte of a bundle is read.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["main"]

_MEGABYTE = 1 << 20
_RUNS, _SECONDS = 50, 1.0
"""Runs of a golden sample by which its latency is judged: at most so many, in at most so much time."""


def _limited(limits: Mapping[str, Any]) -> None:
    """Bound this process's memory, processor time and core dumps, where the system can."""
    try:
        import resource
    except ImportError:  # Windows: the agent's limit of time remains
        return
    seconds = int(limits["seconds"]) * (os.cpu_count() or 1) + 1
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, seconds)]
    if limits["memory"]:
        wanted.append((resource.RLIMIT_DATA, max(limits["memory"], 256 * _MEGABYTE)))
    for what, most in wanted:
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _peak() -> int:
    """Most bytes of memory that this process had so far; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _resident() -> int:
    """Bytes of memory that this process has now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


def _test(words: Mapping[str, Any]) -> dict[str, Any]:
    """Digest, signatures, golden samples; natively also latency and memory."""
    import numpy  # noqa: F401 # what it takes is not the bundle's

    from lite_runtime import bundle
    from lite_runtime.errors import MsedgeError
    from lite_runtime.running.golden import self_test
    from lite_runtime.running.session import load

    before = max(_resident(), 1)
    file = bundle.opened(words["path"])
    if file.digest != words["digest"]:
        return _refused("broken", f"expected the bundle digest {words['digest'][:16]}…, got {file.digest[:16]}…")
    if words["keys"]:
        from lite_runtime.bundle import keys

        try:
            trusted = [keys.public_key(path) for path in words["keys"]]
        except MsedgeError as problem:  # this device is not set up right, which says nothing about the bundle
            return _refused("failed", f"checks.keys: {problem}")
        keys.check(file, trusted, time.time())
    model = load(words["path"], backend=words["backend"])
    samples = self_test(model, model.bundle.golden)
    took = _latency(model) if words["backend"] == "auto" else 0.0
    peak = _peak()
    memory = max(0, peak - before) if peak else 0
    if words["backend"] == "auto":
        if words["latency_ms"] and not samples:
            return _refused("refused", "expected a golden sample to measure the latency by, got none; convert it again")
        if words["latency_ms"] and took > words["latency_ms"]:
            expected = f"at most {words['latency_ms']:g} ms for its golden sample"
            return _refused("too-slow", f"expected {expected}, got {took:.3g}")
        if words["memory"] and memory > words["memory"]:
            return _refused("too-large", f"expected at most {words['memory']} bytes of memory, got {memory}")
    from lite_runtime.native import build

    native = words["backend"] == "auto" and build.available()
    return {"samples": samples, "latency_ms": took, "memory": memory, "native": native}


def _latency(model: Any) -> float:
    """The median of the milliseconds that the slowest golden sample takes."""
    slowest = 0.0
    for name, (inputs, _) in model.bundle.golden.items():
        reads = set(model.bundle.uses[name].reads) if name in model.bundle.uses else set()
        given = {key: array for key, array in inputs.items() if key not in reads}
        times: list[float] = []
        end = time.perf_counter() + _SECONDS
        while not times or (len(times) < _RUNS and time.perf_counter() < end):
            inputs = {key: array.copy() for key, array in given.items()}  # caches of language models change in place
            begin = time.perf_counter()
            model.run(inputs, name)
            times.append(time.perf_counter() - begin)
        slowest = max(slowest, 1e3 * sorted(times)[len(times) // 2])
    return slowest


def _refused(kind: str, reason: str) -> dict[str, Any]:
    return {"refusal": [kind, reason]}


def _carry(words: Mapping[str, Any]) -> dict[str, Any]:
    """What was learned, on one bundle, over to another; texts are examples of language models."""
    if words["examples"].endswith((".jsonl", ".txt")):
        from edge.agent.personal.language import carried_adapter

        return carried_adapter(words)
    from edge.agent.personal.carrying import carried_here

    return carried_here(words)


_DO: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"test": _test, "carry": _carry}


def _done(words: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request. Whatever a bundle causes is a reason to refuse it."""
    try:
        _limited(words["limits"])
        return _DO[words["do"]](words)
    except MemoryError:
        return _refused("no-memory", f"it takes more than {words['limits']['memory']} bytes of memory, its limit")
    except Exception as error:  # request: the test of one bundle
        from lite_runtime.running.golden import SelfTestError

        kind = "self-test" if isinstance(error, SelfTestError) else "broken"
        return _refused(kind, f"{type(error).__name__}: {str(error)[:400]}" if kind == "broken" else str(error)[:400])


def main() -> int:
    """Answer the request on standard input."""
    words = json.loads(sys.stdin.buffer.readline(_MEGABYTE))

    def watch() -> None:
        sys.stdin.buffer.read()  # ends when the agent does
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    answer = json.dumps(_done(words)).encode() + b"\n"
    os.write(sys.stdout.fileno(), answer)
    os._exit(0)  # without destructors of what a bundle made


if __name__ == "__main__":
    sys.exit(main())
