"""Real processes: jobs that count and jobs that train, stopped by their checkpoints and started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from cloud.cluster.cluster import Cluster, Rules
from cloud.cluster.executor import execute, saved_steps
from cloud.cluster.jobs import Job, Option, Serving
from cloud.cluster.journal import Journal, replayed
from cloud.cluster.result import Result
from cloud.cluster.state import Event, Order
from cloud.errors import ClusterError
from tests.cloud.cluster import job_worker
from tests.cloud.cluster.world import cluster, job, pool

ROOT = Path(__file__).parents[3]
FAST = Rules(round=0.1, quantum=0.1, patience=5.0)
HERE = cluster(pool("here", 1, 2), rules=FAST)
ONE, BOTH = (Option(0, 1, 1.0),), (Option(0, 2, 1.0),)

COUNTING = """
import os, pathlib, signal, sys, time
kept, until, code = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
time.sleep(float(sys.argv[4]))
done = max((int(path.name[5:]) for path in kept.glob("step-*")), default=0)
def save(*_):
    (kept / f"step-{done:012d}").mkdir(parents=True, exist_ok=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
with open(kept / "begun", "a") as file:
    print(done, os.environ["MSEDGE_DEVICES"], os.environ["MSEDGE_RESTARTS"], file=file)
while done < until:
    done += 1
    time.sleep(0.01)
    os.utime(os.environ["MSEDGE_HEARTBEAT"])
    if done % 10 == 0:
        (kept / f"step-{done:012d}").mkdir(exist_ok=True)
print("the end")
sys.exit(code)
"""
"""A job that counts: a folder for each checkpoint."""


class Counting:
    """Commands of such jobs. `codes`: with which exit status a job ends; `delay`: seconds until it knows signals."""

    def __init__(
        self, folder: Path, codes: Mapping[str, int] | None = None, steps: int = 60, delay: float = 0.0
    ) -> None:  # fmt: skip
        self.folder, self.codes, self.count, self.delay = folder, codes or {}, steps, delay

    def command(self, order: Order) -> Sequence[str]:
        (self.folder / order.job).mkdir(parents=True, exist_ok=True)
        code = str(self.codes.get(order.job, 0))
        return [sys.executable, "-S", "-c", COUNTING, str(self.folder / order.job), str(self.count), code,
                str(self.delay)]  # fmt: skip

    def steps(self, job: str) -> float:
        return saved_steps(self.folder / job)

    def begun(self, name: str) -> list[list[int]]:
        """By start: steps that were saved, devices, earlier starts."""
        return [
            [int(word) for word in line.split()] for line in (self.folder / name / "begun").read_text().splitlines()
        ]


def once(made: Job, ready: Callable[[], bool]) -> Callable[[], Sequence[Job]]:
    """Submits a job as soon as something is so."""
    left = [made]

    def more() -> Sequence[Job]:
        return [left.pop()] if left and ready() else []

    return more


def ran(folder: Path, jobs: Sequence[Job], launches: Any, there: Cluster = HERE, **options: Any) -> Result:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return execute(there, jobs, launches, folder / "run", environment=environment, **options)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.cluster.executor.PROGRESS", 0.05)
    monkeypatch.setattr("cloud.cluster.executor.LOOK", 0.01)


def test_jobs_are_stopped_for_a_gang_and_go_on(tmp_path: Path) -> None:
    launches = Counting(tmp_path)
    jobs = [job("a", ONE, 60.0), job("b", ONE, 60.0)]
    urgent = once(job("c", BOTH, 60.0, priority=1), lambda: min(map(launches.steps, "ab")) >= 10)
    result = ran(tmp_path, jobs, launches, more=urgent)
    assert {name: one.moves for name, one in result.jobs.items()} == {"a": 1, "b": 1, "c": 0}
    assert all(one.ended < 60.0 and not one.failed for one in result.jobs.values())
    assert launches.begun("c") == [[0, 2, 0]]
    for name in "ab":
        (first, second) = launches.begun(name)
        assert first == [0, 1, 0] and second[0] >= 10 and second[1:] == [1, 1]
    gang = next(span for span in result.spans if span.job == "c")
    others = [span for span in result.spans if span.job != "c"]
    assert all(span.end <= gang.start or span.start >= gang.end for span in others)
    # the journal says the same
    _, again = replayed(tmp_path / "run" / "journal.jsonl")
    assert again.jobs == result.jobs and again.spans == result.spans


def test_who_has_made_no_step_is_not_stopped_yet(tmp_path: Path) -> None:
    """A signal before that would end the process with nothing saved, each time anew."""
    launches = Counting(tmp_path, delay=0.4)
    jobs = [job("a", BOTH, 60.0), job("c", BOTH, 60.0, priority=1, arrives=0.2)]
    result = ran(tmp_path, jobs, launches)
    assert result.jobs["a"].moves == 1
    first, second = launches.begun("a")
    assert first == [0, 2, 0] and second[0] >= 1
    stopped = next(event for event in result.events if event.kind == "stopped")
    assert stopped.name == "a" and stopped.value >= 1


def test_failures_and_kills(tmp_path: Path) -> None:
    """A job that fails is not started again; one whose process was killed is, from its checkpoint."""
    launches = Counting(tmp_path, {"bad": 3})
    killed: list[int] = []

    def look() -> Sequence[Job]:
        begun = tmp_path / "good" / "begun"
        if not killed and begun.exists() and launches.steps("good") >= 10:
            for process in Path("/proc").iterdir():
                if process.name.isdecimal() and str(tmp_path / "good").encode() in _command(process):
                    killed.append(int(process.name))
                    os.kill(killed[0], signal.SIGKILL)
        return ()

    said: list[str] = []
    result = ran(tmp_path, [job("good", ONE, 60.0), job("bad", ONE, 60.0)], launches, more=look, say=said.append)
    assert result.jobs["bad"].failed.startswith("exit status 3: the end")
    assert result.jobs["good"].failed == "" and len(killed) == 1
    assert len(launches.begun("bad")) == 1 and launches.begun("good")[1][0] >= 10
    assert any("killed by signal 9" in line for line in said)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_run_that_was_stopped_goes_on_from_its_journal(tmp_path: Path) -> None:
    launches = Counting(tmp_path)
    jobs = [job("a", BOTH, 60.0), job("b", BOTH, 60.0, arrives=0.5)]
    first = ran(tmp_path, jobs, launches, stopping=lambda: launches.steps("a") >= 20)
    assert first.jobs["a"].ended == float("inf") and launches.steps("a") >= 20
    # as if it had been killed: the journal ends in the middle of a line, with a gang that runs
    path = tmp_path / "run" / "journal.jsonl"
    lines = [line for line in path.read_bytes().split(b"\n") if b'"stopped"' not in line]
    path.write_bytes(b"\n".join(lines) + b'{"kind":"ti')
    result = ran(tmp_path, jobs, launches)
    assert all(one.ended < 60.0 for one in result.jobs.values())
    assert launches.begun("a")[1][0] >= 20 and launches.begun("a")[1][2] == 1
    with pytest.raises(ClusterError, match="a: expected the job as the journal"):
        ran(tmp_path, [job("a", ONE, 60.0)], launches)
    with pytest.raises(ClusterError, match="expected the journal of this cluster"):
        ran(tmp_path, jobs, launches, cluster(pool("here", 2, 2), rules=FAST))


def test_replicas_run_until_their_end_and_are_replaced(tmp_path: Path) -> None:
    launches = Counting(tmp_path, steps=40)  # a replica ends by itself after 0.4 s: another is started
    served = Serving("s", ONE, ((0.0, 0.1),), 5.0, until=1.5, starting=0.1)
    result = ran(tmp_path, [served], launches)
    assert len({span.gang for span in result.spans}) >= 2
    assert result.seconds >= 1.5 and not result.running


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"kind":"ended","time":1,"name":"x"}\n', ":2: ended: expected a job that is running"),
        (b'{"kind":"tick","time":"now"}\n', ":2: expected a line as"),
        (b"\xff\n", ":2: expected a line as"),
    ],
)
def test_journals_that_are_none(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, HERE) as journal:
        journal.add(Event("tick", 0.0))
    head = path.read_bytes().split(b"\n")[0]
    path.write_bytes(head + b"\n" + line)
    with pytest.raises(ClusterError, match=words):
        replayed(path)
    path.write_bytes(head.replace(b'"machines":1', b'"machines":"1"') + b"\n")
    with pytest.raises(ClusterError, match=":1: expected a cluster"):
        replayed(path)
    with pytest.raises(ClusterError, match="cannot read"):
        replayed(tmp_path / "none")


class Training:
    """The commands of `job_worker`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, order: Order) -> Sequence[str]:
        if order.job == "c":
            return [sys.executable, "-S", "-c", ""]
        return [sys.executable, job_worker.__file__, str(self.folder / order.job), str(ord(order.job))]

    def steps(self, name: str) -> float:
        return saved_steps(self.folder / name)


@pytest.mark.slow
def test_two_jobs_that_train_are_preempted_and_end_with_the_same_bits(tmp_path: Path) -> None:
    """Their weights equal, bit for bit, those of runs that nobody disturbed."""
    launches = Training(tmp_path)
    long = structs.replace(job("a", ONE, 120.0), exact=True)
    jobs = [long, structs.replace(long, name="b")]
    urgent = once(job("c", BOTH, 1.0, priority=1), lambda: min(map(launches.steps, "ab")) >= 20)
    began = time.monotonic()
    result = ran(tmp_path, jobs, launches, more=urgent)
    assert {name: (one.moves, one.failed) for name, one in result.jobs.items()} == {
        "a": (1, ""),
        "b": (1, ""),
        "c": (0, ""),
    }
    saved = {event.name: event.value for event in result.events if event.kind == "stopped"}
    assert all(20 <= saved[name] < job_worker.STEPS for name in "ab"), (saved, time.monotonic() - began)
    for name in "ab":
        alone = job_worker.weights(job_worker.trained(tmp_path / f"{name} alone", ord(name)))
        with np.load(tmp_path / name / "weights.npz") as kept:
            assert {*kept} == {*alone}
            assert all(np.array_equal(kept[key], alone[key]) for key in alone)
            assert all(kept[key].dtype == alone[key].dtype for key in alone)
