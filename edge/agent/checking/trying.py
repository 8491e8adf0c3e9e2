"""Tests a bundle in a process of its own: one that crashes, hangs or takes all memory ends that process alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.release import File, Requirements

__all__ = ["Limits", "Refusal", "Trial", "asked", "tried"]

MOST_ANSWER = 1 << 16
CHILD = "edge.agent.checking.child"


class Limits(NamedTuple):
    """What one test may take. seconds: of time. memory: bytes of data, 0 for three quarters of what is free. reference:
    also run the golden sample by the NumPy reference. keys: files of public keys, one of which must have signed a
    bundle; (): any bundle."""

    seconds: float = 120.0
    memory: int = 0
    reference: bool = True
    keys: tuple[str, ...] = ()


class Refusal(NamedTuple):
    """Why a bundle may not run: `kind` of `lite_runtime.updates.checkin.OUTCOMES`."""

    kind: str
    reason: str


class Trial(NamedTuple):
    """What a test found. samples: golden samples that were equal. latency_ms: median of running one, 0 if there is
    none. memory: bytes that the bundle took at most, loaded and running. native: whether kernels ran it."""

    samples: int
    latency_ms: float
    memory: int
    native: bool
    refusal: Refusal | None = None


def tried(path: Path, file: File, needs: Requirements, limits: Limits, free: int | None = None) -> Trial:
    """Test one bundle of a release. free: bytes of memory that programs can have."""
    found = Trial(0, 0.0, 0, False)
    for backend in ("auto", "reference") if limits.reference else ("auto",):
        words = {
            "do": "test", "path": os.fspath(path), "digest": file.digest, "keys": list(limits.keys), "backend": backend,
            "latency_ms": needs.latency_ms, "memory": needs.memory,
        }  # fmt: skip
        answer = asked(words, limits, free)
        if "refusal" in answer:
            kind, reason = answer["refusal"]
            if kind == "no-memory":  # if it had what the release says that it needs, the release is wrong
                enough = bool(limits.memory or (needs.memory and free is not None and 3 * free // 4 >= needs.memory))
                kind = "too-large" if enough else "failed"
            return found._replace(refusal=Refusal(kind, f"{path.name}: {reason}"))
        if backend == "auto":
            found = Trial(answer["samples"], answer["latency_ms"], answer["memory"], answer["native"])
            if not found.native:
                break  # the reference has run it already
    return found


def asked(words: Mapping[str, Any], limits: Limits, free: int | None = None) -> dict[str, Any]:
    """What a process of its own answers to a request; a `refusal` if it gives no answer."""
    memory = limits.memory or (0 if free is None else 3 * free // 4)
    line = json.dumps({**words, "limits": {"seconds": limits.seconds, "memory": memory}}).encode() + b"\n"
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    child = subprocess.Popen(  # -P: no module comes from the folder that this process happens to be in
        [sys.executable, "-P", "-m", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(line)
        child.stdin.flush()  # it stays open: its end tells the child that the agent is gone
        answer = _answer(child, limits.seconds)
    except OSError:  # it reads no more, so it is about to end
        answer = b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
    finally:
        _end(child)
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):  # what it has not read is written once more
                pipe.close()
    try:
        made = json.loads(answer)
        if isinstance(made, dict):
            return made
    except ValueError:
        pass
    return {"refusal": ["broken", _why(child.returncode, answer, limits, memory)]}


def _answer(child: subprocess.Popen[bytes], seconds: float) -> bytes:
    """A line of the child's, or what it said until its end or its time."""
    assert child.stdout is not None
    found: list[bytes] = []
    pipe = child.stdout

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            found.append(pipe.readline(MOST_ANSWER + 1))
            if not found[0].endswith(b"\n"):
                child.wait(10)

    reader = threading.Thread(target=read, name="msedge-answer", daemon=True)  # Windows can wait for sockets alone
    reader.start()
    reader.join(seconds)
    if reader.is_alive():
        _end(child)  # which ends the pipe, and so the thread
        reader.join(10)
    return found[0] if found else b""


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process, and those that it started."""
    if child.poll() is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (OSError, AttributeError):
            child.kill()
        child.wait()


def _why(code: int | None, answer: bytes, limits: Limits, memory: int) -> str:
    if answer.endswith(b"\n"):
        return "its test answered something else than was asked"
    if code is not None and -code == getattr(signal, "SIGKILL", 9):
        return f"its test was ended: it takes more than {limits.seconds:g} s, or too much memory"
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"its test crashed ({name}); a limit of {memory} bytes of memory was set"
    return f"its test ended without an answer (exit code {code})"
