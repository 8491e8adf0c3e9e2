"""Training that survives the loss of processes: start several, and if one is lost, continue with the rest.

The loss of one process leaves the others waiting in a collective operation for ever. Therefore all are killed, and the
remaining number is restarted: they meet at another port, plan and shard again, read the newest checkpoint and continue
with the same batches, which depend only on seed, epoch and step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from cloud.errors import TrainError
from cloud.train.many.preempt import PREEMPTED
from cloud.train.many.processes import VARIABLES, free_port, with_devices

__all__ = ["RESTARTS", "Outcome", "supervise"]

RESTARTS = "MSEDGE_RESTARTS"
"""Environment variable: how often the processes were restarted. Above 0, a worker resumes from a checkpoint if any."""

_LOOK = 0.05
_GRACE = 60.0
"""Seconds for saving, between a signal to stop and the kill."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the exit status for the caller, how many processes were left, the number of restarts, and a log
    of messages."""

    status: int
    processes: int
    restarts: int
    log: tuple[str, ...] = ()


def supervise(
    command: Sequence[str], processes: int, *, restarts: int = 3, least: int = 1, devices: int | None = None,
    fits: Callable[[int], bool] = lambda count: True, patience: float = 600.0,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    environment: Mapping[str, str] = os.environ,
) -> Outcome:  # fmt: skip
    """Run `command` as `processes` processes that train together (see `processes.join`) on this machine, until it ends.

    A process killed by a signal is lost; the rest are restarted, at most `restarts` times and with at least `least`
    processes, in a number that `fits` accepts (one that divides the batch, for example). All are restarted too if no
    process makes progress for `patience` seconds, or if all exit with `PREEMPTED`. A process that exits with another
    status ends the run: repeating it would not help. The first process writes to this process's stdout and stderr; the
    last output of another is shown when it fails. `devices`: parts of the CPU for each. SIGINT and SIGTERM are passed
    on, as SIGTERM; workers then have a minute to save.
    """
    if not 1 <= least <= processes:
        raise TrainError(f"expected at least 1 process and no fewer than {least}, got {processes}")
    crew = _Crew(tuple(command), devices, environment)
    log: list[str] = []

    def tell(line: str) -> None:
        log.append(line)
        say(line)

    count = _fitting(processes, least, fits)
    if not count:
        raise TrainError(f"no number of processes from {least} to {processes} divides the batch: use another size")
    if count < processes:
        tell(f"the batch does not divide among {processes} processes: starting {count}")
    attempt = 0
    with crew.signals():
        while True:
            with crew.started(count, attempt) as workers:
                end = _watched(workers, crew, patience)
            if end.status is not None:
                if end.why:
                    tell(end.why)
                return Outcome(end.status, count, attempt, tuple(log))
            left = _fitting(count - end.lost, least, fits)
            if attempt == restarts or not left:
                short = f"fewer than {least} are left" if not left else f"gave up after {restarts} restarts"
                tell(f"{end.why}; {short}")
                return Outcome(1, count, attempt, tuple(log))
            tell(f"{end.why}; restarting with {left} of {count} processes")
            count, attempt = left, attempt + 1


def _fitting(most: int, least: int, fits: Callable[[int], bool]) -> int:
    """The largest number that `fits`; 0 if there is none."""
    return next((count for count in range(most, least - 1, -1) if fits(count)), 0)


@dataclass(frozen=True)
class _Worker:
    index: int
    process: subprocess.Popen[bytes]
    heart: Path
    output: IO[bytes] | None

    def failure(self, code: int) -> str:
        """A message with the last lines of output, which were not shown."""
        what = f"process {self.index} failed with exit status {code}"
        if self.output is None:
            return what
        self.output.seek(max(0, self.output.seek(0, os.SEEK_END) - 2000))
        return f"{what}:\n{self.output.read().decode(errors='replace').strip()}"


@dataclass
class _Crew:
    """Starts workers and ends them. `stopping`: when a signal to stop was passed on, else 0."""

    command: tuple[str, ...]
    devices: int | None
    environment: Mapping[str, str]
    workers: list[_Worker] = field(default_factory=list)
    stopping: float = 0.0

    @contextlib.contextmanager
    def started(self, count: int, attempt: int) -> Iterator[list[_Worker]]:
        """`count` workers; all have ended afterwards."""
        address = f"127.0.0.1:{free_port()}"
        with tempfile.TemporaryDirectory(prefix="msedge-") as folder, contextlib.ExitStack() as stack:
            held, leash = os.pipe()  # workers end when `leash` is closed in this process
            stack.callback(os.close, leash)
            stack.callback(self._kill)
            try:
                for index in range(count):
                    heart = Path(folder, f"{index}.heart")
                    heart.touch()
                    output = stack.enter_context(open(Path(folder, f"{index}.txt"), "w+b")) if index else None
                    said = self._said(address, count, index, attempt, heart, held)
                    process = subprocess.Popen(
                        self.command, env=said, pass_fds=(held,), stdin=subprocess.DEVNULL, stdout=output,
                        stderr=output, start_new_session=True,
                    )  # fmt: skip
                    self.workers.append(_Worker(index, process, heart, output))
            finally:
                os.close(held)
            yield self.workers

    def _said(self, address: str, count: int, index: int, attempt: int, heart: Path, held: int) -> dict[str, str]:
        said = dict(self.environment)
        said |= dict(zip(VARIABLES, (address, str(count), str(index)), strict=True))
        said |= {"MSEDGE_HEARTBEAT": str(heart), "MSEDGE_LEASH": str(held), RESTARTS: str(attempt)}
        if self.devices is not None:
            said = with_devices(said, self.devices)
        return said

    def _kill(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self.workers:
            worker.process.wait()
        self.workers.clear()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Pass signals to stop on to the workers."""

        def stop(number: int, _frame: FrameType | None) -> None:
            self.stopping = self.stopping or time.monotonic()
            for worker in self.workers:
                if worker.process.poll() is None:
                    worker.process.send_signal(signal.SIGTERM)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _End(NamedTuple):
    """The end of one attempt: exit status of the run, or None to restart; the reason; how many were lost."""

    status: int | None
    why: str = ""
    lost: int = 0


def _lost(codes: Mapping[int, int | None]) -> dict[int, str]:
    """Signals by which processes were killed; processes that aborted because of such a loss (as they do when a peer
    disappears) are not lost."""
    killed = {index: -code for index, code in codes.items() if code is not None and code < 0}
    first = {index: number for index, number in killed.items() if number != signal.SIGABRT} or killed
    return {index: signal.Signals(number).name for index, number in first.items()}


def _watched(workers: Sequence[_Worker], crew: _Crew, patience: float) -> _End:
    """Wait until the attempt has ended."""
    while True:
        time.sleep(_LOOK)
        codes = {worker: worker.process.poll() for worker in workers}
        found = [code for code in codes.values() if code is not None]
        if crew.stopping:
            if len(found) == len(codes) or time.monotonic() - crew.stopping > _GRACE:
                saved = all(code in (0, PREEMPTED) for code in codes.values())
                return _End(max(found), "stopped") if saved else _End(1, "stopped, but not every process saved")
            continue
        if lost := _lost({worker.index: code for worker, code in codes.items()}):
            names = ", ".join(f"process {index} by {name}" for index, name in lost.items())
            return _End(None, f"lost {names}", len(lost))
        if failed := {worker: code for worker, code in codes.items() if code and code != PREEMPTED}:
            return _End(max(failed.values()), "\n".join(worker.failure(code) for worker, code in failed.items()))
        if len(found) == len(codes):
            return _End(None, "preempted, every process saved") if PREEMPTED in found else _End(0)
        if time.time() - max(worker.heart.stat().st_mtime for worker in workers) > patience:
            return _End(None, f"no process made progress for {patience:g} s")
