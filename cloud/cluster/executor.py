"""Jobs as processes of this machine: what the scheduler orders is done, what comes of it goes back as events.

Every gang is one process with virtual CPU devices. It is stopped by SIGTERM, saves a checkpoint and exits with
`cloud.train.many.preempt.PREEMPTED`; started again, it continues from there. Processes end with this one; a run that
was killed goes on from its journal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cloud.cluster.cluster import Cluster
from cloud.cluster.jobs import Job, Serving, Training
from cloud.cluster.journal import Journal, replayed
from cloud.cluster.result import Result
from cloud.cluster.scheduler import Scheduler
from cloud.cluster.state import Event, Order
from cloud.errors import ClusterError
from cloud.train.keeping.manifest import step_of
from cloud.train.many.elastic import RESTARTS
from cloud.train.many.preempt import PREEMPTED
from cloud.train.many.processes import with_devices

__all__ = ["Launches", "execute", "saved_steps"]

LOOK, PROGRESS = 0.05, 2.0
"""Seconds between two looks at processes, and at checkpoints."""
GRACE = 60.0
"""Seconds beyond the job's own until a process that does not save is killed, and from its start until one that told of
no step is told to stop."""
CRASHES = 3
"""A job whose process was killed this often without having saved in between has failed."""
TAIL = 2000


class Launches(Protocol):
    """What is started for a gang."""

    def command(self, order: Order) -> Sequence[str]:
        """Its command. The process touches the file MSEDGE_HEARTBEAT when it has made a step
        (`cloud.train.many.processes.Heartbeat`), and can save from then on."""
        ...

    def steps(self, job: str) -> float:
        """Steps of a training job that are saved."""
        ...


def saved_steps(folder: str | os.PathLike[str]) -> float:
    """The steps of the newest complete checkpoint in a folder of `cloud.train.keeping.checkpoint.Checkpoints`."""
    try:
        return float(max([0, *map(step_of, os.listdir(folder))]))
    except OSError:
        return 0.0


@dataclass
class _Child:
    order: Order
    process: subprocess.Popen[bytes]
    log: Path
    heart: Path
    born: int
    """The time of `heart` before its first step."""
    begun: float
    asked: bool = False
    told: float = 0.0
    """When it got the signal, 0: not yet."""

    def tell(self) -> None:
        """Let it save and end."""
        self.asked = True
        if not self.told and self.process.poll() is None:
            self.told = time.monotonic()
            self.process.send_signal(signal.SIGTERM)

    @property
    def steps(self) -> bool:
        """Whether it has made a step: before that it may not know what to do at a signal, and has nothing to save."""
        return self.heart.stat().st_mtime_ns != self.born or time.monotonic() - self.begun > GRACE


@dataclass
class _Run:
    scheduler: Scheduler
    result: Result
    journal: Journal
    launches: Launches
    folder: Path
    say: Callable[[str], None]
    jobs: dict[str, Job]
    environment: Mapping[str, str]
    children: dict[str, _Child] = field(default_factory=dict)
    crashes: dict[str, tuple[int, float]] = field(default_factory=dict)
    begun: float = 0.0
    leash: tuple[int, int] = (-1, -1)
    attempts: dict[str, int] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """Seconds of the cluster's clock, which stands still while nothing runs."""
        return max(time.monotonic() - self.begun, self.scheduler.state.now)

    def tell(self, event: Event) -> None:
        self.journal.add(event)
        orders = self.scheduler.apply(event)
        self.result.note(event, orders)
        for order in orders:
            _DO[order.kind](self, order)

    def start(self, order: Order) -> None:
        pool = self.result.cluster.pools[order.place.pool]
        devices = max(1, order.place.size // pool.parts)
        attempt = self.attempts.get(order.gang, 0)
        self.attempts[order.gang] = attempt + 1
        log, heart = self.folder / f"{order.gang}.log", self.folder / f"{order.gang}.heart"
        heart.touch()
        born = heart.stat().st_mtime_ns
        said = {
            **with_devices(self.environment, devices), "MSEDGE_LEASH": str(self.leash[0]),
            "MSEDGE_HEARTBEAT": str(heart), RESTARTS: str(attempt),
        }  # fmt: skip
        with open(log, "ab") as output:
            process = subprocess.Popen(
                list(self.launches.command(order)), env=said, pass_fds=(self.leash[0],), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.children[order.gang] = _Child(order, process, log, heart, born, time.monotonic())
        self.say(f"{order.gang}: starts on {devices} devices of {pool.name}{' again' if attempt else ''}")

    def stop(self, order: Order) -> None:
        child = self.children[order.gang]
        child.asked = True
        if isinstance(self.jobs[order.job], Serving):
            child.tell()
        self.say(f"{order.gang}: {order.why}; saves")

    def kill(self, order: Order) -> None:
        child = self.children.pop(order.gang)
        child.process.kill()
        child.process.wait()

    def look(self) -> bool:
        """Events of processes that ended; whether there were any."""
        found = False
        for name, child in list(self.children.items()):
            code = child.process.poll()
            job = self.jobs[child.order.job]
            saving = job.saving if isinstance(job, Training) else 0.0
            if code is None:
                if child.asked and child.steps and not self._over(job):
                    child.tell()
                if child.told and time.monotonic() - child.told > saving + GRACE:
                    child.process.kill()
                continue
            self.children.pop(name)
            self.tell(self._end(name, child, code, job))
            found = True
        return found

    def _over(self, job: Job) -> bool:
        """Whether a job has nothing left but to write its results, which a signal would cut off."""
        return isinstance(job, Training) and self.launches.steps(job.name) >= job.steps

    def _end(self, name: str, child: _Child, code: int, job: Job) -> Event:
        """What the end of a process means."""
        if isinstance(job, Serving):
            if not child.asked:
                self.say(f"{name}: ended with exit status {code}\n{_tail(child.log)}")
            return Event("stopped", self.now, name)
        steps = self.launches.steps(job.name)
        if code == 0:
            self.say(f"{name}: has ended")
            return Event("ended", self.now, name)
        if code == PREEMPTED or code < 0:
            count, before = self.crashes.get(name, (0, -1.0))
            again = code < 0 and not child.asked
            count = (count + 1 if steps <= before else 1) if again else 0
            self.crashes[name] = count, steps
            if count < CRASHES:
                how = "saved" if code == PREEMPTED else f"was killed by signal {-code}, saved are"
                self.say(f"{name}: {how} {steps:g} steps")
                return Event("stopped", self.now, name, value=steps)
        text = f"exit status {code}: {_tail(child.log)}"
        self.say(f"{name}: failed with {text}")
        return Event("failed", self.now, name, text=text)

    def progress(self) -> None:
        """Steps that were saved since the last look."""
        for name, child in self.children.items():
            gang = self.scheduler.state.named[name]
            if isinstance(gang.job, Training) and (steps := self.launches.steps(child.order.job)) > gang.done:
                self.tell(Event("progress", self.now, name, value=steps))

    def end_all(self) -> None:
        """Let all processes save, and note it."""
        for child in self.children.values():
            child.tell()
        while self.children:
            self.look()
            time.sleep(LOOK)


_DO: dict[str, Callable[[_Run, Order], None]] = {"start": _Run.start, "stop": _Run.stop, "kill": _Run.kill}


def _tail(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        return file.read().decode(errors="replace").strip()


def execute(
    cluster: Cluster, jobs: Sequence[Job], launches: Launches, folder: str | os.PathLike[str], *,
    stopping: Callable[[], bool] = lambda: False, more: Callable[[], Sequence[Job]] = tuple,
    say: Callable[[str], None] = lambda line: None, environment: Mapping[str, str] = os.environ,
) -> Result:  # fmt: skip
    """Run jobs until all training jobs have ended and every serving job has come to its `until`, or until `stopping`:
    then all processes save and end.

    `folder`: journal and logs; with a journal in it, the run goes on. `more`: jobs that came since, asked now and then.
    `launches`: see `Launches`. Raises ClusterError for a journal of another cluster, and for jobs that differ from
    those in it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "journal.jsonl"
    there = path.exists() and path.stat().st_size > 0
    with Journal(path, cluster) as journal:
        scheduler, result = replayed(path) if there else (Scheduler(cluster), Result(cluster))
        known = {job.name: job for job in jobs}
        told = {event.job.name: event.job for event in result.events if event.job is not None}
        for job in jobs:
            if told.get(job.name, job) != job:
                raise ClusterError(
                    f"{job.name}: expected the job as the journal in {os.fspath(folder)!r} has it, got another: use "
                    "another folder"
                )
        known = told | {job.name: job for job in jobs}
        run = _Run(scheduler, result, journal, launches, folder, say, known, environment)
        for gang in scheduler.state.gangs:
            run.attempts[gang.name] = gang.starts
        run.begun = time.monotonic() - scheduler.state.now
        run.leash = os.pipe()
        try:
            _resume(run)
            _loop(run, [job for job in jobs if job.name not in told], stopping, more)
        finally:
            for child in run.children.values():
                if child.process.poll() is None:
                    child.process.kill()
                child.process.wait()
            for end in run.leash:
                os.close(end)
    return result


def _resume(run: _Run) -> None:
    """Processes of a run that was killed are gone; saved is what they saved."""
    for gang in list(run.scheduler.state.gangs):
        if gang.status in ("running", "leaving"):
            steps = run.launches.steps(gang.job.name) if isinstance(gang.job, Training) else 0.0
            event = Event("stopped", run.now, gang.name, value=steps)
            run.journal.add(event)
            run.result.note(event, run.scheduler.apply(event))  # gives no orders


def _loop(
    run: _Run, coming: list[Job], stopping: Callable[[], bool], more: Callable[[], Sequence[Job]]
) -> None:  # fmt: skip
    seen = -PROGRESS
    while True:
        if stopping():
            run.end_all()
            return
        moved = run.look()
        if run.now - seen >= PROGRESS:
            seen = run.now
            run.progress()
            coming += [job for job in more() if job.name not in run.jobs]
            run.jobs.update((job.name, job) for job in coming)
        for job in sorted(coming, key=lambda job: job.arrives):
            if job.arrives <= run.now:
                coming.remove(job)
                run.tell(Event("submitted", run.now, job=job))
                moved = True
        if moved or run.now >= run.scheduler.due:
            run.tell(Event("tick", run.now))
        state = run.scheduler.state
        if not (coming or run.children or state.tasks or state.services):
            return
        time.sleep(LOOK)
