"""A process for every case: a parent that has imported everything forks a child, which tries one file and ends.

A fork costs milliseconds, a new Python with the converter a second. The parent runs no threads of its own, so that a
child may. Limits: memory beyond what the parent has, processor time, and time on the clock.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.converting.trying import Case, Outcome, try_case

__all__ = ["Limits", "Served", "serve"]


class Limits(NamedTuple):
    """What one case may take: seconds of processor time and on the clock, and bytes beyond what all share."""

    processor: int = 20
    clock: float = 120.0
    memory: int = 2 << 30


class Served(NamedTuple):
    """A case's outcome, the processor time it took in seconds, and the most bytes it held beyond the parent's."""

    case: Case
    outcome: Outcome
    seconds: float
    memory: int


@dataclass
class _Child:
    case: Case
    process: int
    answer: int
    folder: Path
    until: float
    said: bytes = b""


def serve(cases: Iterable[Case], workers: int, limits: Limits = Limits()) -> Iterator[Served]:  # noqa: B008 (immutable)
    """The outcome of every case, in the order in which they end. At most `workers` run at a time."""
    gc.collect()
    gc.freeze()
    pending, running = iter(cases), list[_Child]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        more = True
        try:
            while more or running:
                while more and len(running) < workers:
                    case = next(pending, None)
                    if case is None:
                        more = False
                    else:
                        running.append(_start(case, Path(root), limits))
                for child in _ended(running) if running else ():
                    running.remove(child)
                    yield _outcome(child)
                    shutil.rmtree(child.folder, ignore_errors=True)
        finally:
            for child in running:
                os.kill(child.process, signal.SIGKILL)
                os.waitpid(child.process, 0)


def _start(case: Case, root: Path, limits: Limits) -> _Child:
    folder = Path(tempfile.mkdtemp(dir=root))
    answer, write = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            os.close(answer)
            _try(case, folder, write, limits)
        except BaseException:
            traceback.print_exc()  # into the file of errors; the parent calls it a crash
        finally:
            os._exit(70)
    os.close(write)
    return _Child(case, process, answer, folder, time.monotonic() + limits.clock)


def _try(case: Case, folder: Path, write: int, limits: Limits) -> None:
    """In the child: try the case and say what came of it."""
    with open(folder.with_suffix(".errors"), "wb", 0) as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        faulthandler.enable(errors)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + limits.memory, held + limits.memory))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.processor, limits.processor + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        folder.mkdir(exist_ok=True)
        found = try_case(case.file(), case.asked(), folder, case.seeds.form, case.key)
        rest = json.dumps(found).encode()
        while rest:
            rest = rest[os.write(write, rest) :]
        os._exit(0)


def _ended(running: list[_Child]) -> list[_Child]:
    """Children whose pipe is closed or whose time is over, once there is one."""
    while True:
        soon = max(0.0, min(child.until for child in running) - time.monotonic())
        ready, _, _ = select.select([child.answer for child in running], [], [], soon)
        ended = []
        for child in running:
            if child.answer in ready:
                block = os.read(child.answer, 1 << 16)
                child.said += block
                if not block:
                    ended.append(child)
            elif time.monotonic() > child.until:
                os.kill(child.process, signal.SIGKILL)
                ended.append(child)
        if ended:
            return ended


def _outcome(child: _Child) -> Served:
    late = time.monotonic() > child.until
    _, status, used = os.wait4(child.process, 0)
    os.close(child.answer)
    seconds = used.ru_utime + used.ru_stime
    errors = child.folder.with_suffix(".errors")
    said = errors.read_text("utf-8", "replace") if errors.exists() else ""
    errors.unlink(missing_ok=True)
    outcome = _ending(child, status, late, said)
    return Served(child.case, outcome, seconds, used.ru_maxrss * 1024)


def _ending(child: _Child, status: int, late: bool, said: str) -> Outcome:
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        found: Any = json.loads(child.said)
        return Outcome(*found)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if late or number in (signal.SIGXCPU, signal.SIGKILL):
        return Outcome("hang", _innermost(said), said[-4000:])
    name = signal.Signals(number).name if number else f"exit status {os.WEXITSTATUS(status)}"
    return Outcome("crash", f"{name} at {_innermost(said)}", said[-4000:])


def _innermost(said: str) -> str:
    """The innermost line of the product in what faulthandler wrote."""
    for line in said.splitlines():
        if 'File "' in line and "site-packages" not in line and "/tests/" not in line and "/lib/python" not in line:
            path, _, rest = line.partition('File "')[2].partition('", line ')
            return f"{'/'.join(path.split('/')[-3:])}:{rest.split(' ')[0]}"
    return "?"
