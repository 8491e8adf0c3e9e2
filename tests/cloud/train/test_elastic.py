"""A supervisor and its workers: first with simulated workers, then with real ones that train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud.errors import TrainError
from cloud.train.many.elastic import Outcome, _lost, supervise
from cloud.train.many.preempt import PREEMPTED, stopping_on_signals
from tests.cloud.train import elastic_worker

ROOT = Path(__file__).parents[3]
WORKER = [sys.executable, elastic_worker.__file__]
LOSSES = elastic_worker.EPOCHS * elastic_worker.ROWS // elastic_worker.BATCH


def behaving(code: str, processes: int = 3, **options: object) -> Outcome:
    """Workers that know `me`, the `count` of them and the `attempt`, and run `code`."""
    known = (
        "import os, signal, sys, time\n"
        "me, count, attempt = (int(os.environ[n]) for n in ('MSEDGE_PROCESS', 'MSEDGE_PROCESSES', 'MSEDGE_RESTARTS'))\n"
        "def kill(how=signal.SIGKILL): os.kill(os.getpid(), how)\n"
    )
    said: dict[str, object] = {"say": lambda line: None, **options}
    return supervise([sys.executable, "-S", "-c", known + code], processes, **said)  # type: ignore[arg-type]


def test_all_workers_succeed() -> None:
    assert behaving("sys.exit(0)") == Outcome(0, 3, 0)


@pytest.mark.parametrize(
    ("code", "options", "status", "left", "log"),
    [
        ("if not attempt and me == 1: kill()\nif not attempt: time.sleep(60)", {}, 0, 2,
         ["lost process 1 by SIGKILL; restarting with 2 of 3 processes"]),
        ("if not attempt and me == 2: kill()\nif not attempt: time.sleep(60)", {"fits": lambda n: n != 2}, 0, 1,
         ["restarting with 1 of 3"]),
        ("if me == count - 1: kill()\ntime.sleep(60)", {"least": 2}, 1, 2,
         ["with 2 of 3", "lost process 1 by SIGKILL; fewer than 2 are left"]),
        ("if me == 0: kill(signal.SIGSEGV)\ntime.sleep(60)", {"restarts": 1}, 1, 2,
         ["with 2 of 3", "lost process 0 by SIGSEGV; gave up after 1 restarts"]),
        ("if me == 1: print('out of cheese'); sys.exit(3)\ntime.sleep(60)", {}, 3, 3,
         ["process 1 failed with exit status 3:\nout of cheese"]),
        (f"sys.exit(0 if attempt else {PREEMPTED})", {}, 0, 3,
         ["preempted, every process saved; restarting with 3 of 3"]),
        ("if not attempt: os.utime(os.environ['MSEDGE_HEARTBEAT'], (1, 1)); time.sleep(600)", {}, 0, 3,
         ["no process made progress for 600 s; restarting"]),
    ],
)  # fmt: skip
def test_exit_codes_and_restarts(code: str, options: dict[str, object], status: int, left: int, log: list[str]) -> None:
    told: list[str] = []
    found = behaving(code, say=told.append, **options)
    assert (found.status, found.processes) == (status, left)
    assert found.log == tuple(told) and len(told) == len(log)
    assert all(words in line for words, line in zip(log, told, strict=True))


@pytest.mark.parametrize(("code", "status"), [(f"sys.exit({PREEMPTED})", PREEMPTED), ("sys.exit(1)", 1)])
def test_a_signal_is_forwarded_to_workers(tmp_path: Path, code: str, status: int) -> None:
    """Workers that save, and such that cannot."""
    worker = f"signal.signal(signal.SIGTERM, lambda *_: {code})\nopen(f'{tmp_path}/{{me}}', 'w')\ntime.sleep(60)"

    def ask() -> None:
        while len(list(tmp_path.iterdir())) < 3:
            if done.wait(0.02):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    done = threading.Event()
    asking = threading.Thread(target=ask)
    asking.start()
    found = behaving(worker)
    done.set()
    asking.join()
    assert (found.status, found.restarts) == (status, 0)
    assert found.log == ("stopped" if status == PREEMPTED else "stopped, but not every process saved",)


def test_which_worker_was_lost() -> None:
    """Not those that gave up because another one was."""
    assert _lost({0: None, 1: 0, 2: 3}) == {}
    assert _lost({0: -signal.SIGABRT, 1: -signal.SIGKILL, 2: 1}) == {1: "SIGKILL"}
    assert _lost({0: -signal.SIGABRT, 1: None}) == {0: "SIGABRT"}


def test_impossible_numbers_of_processes() -> None:
    for options in ({"processes": 0}, {"least": 4}, {"fits": lambda count: False}):
        with pytest.raises(TrainError, match=r"expected at least 1 process|divides the batch"):
            behaving("", **options)  # type: ignore[arg-type]


def test_stopping_on_signals() -> None:
    asked: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stopping_on_signals(asked.append) as came:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == came == ["SIGTERM"]
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before and asked == ["SIGTERM"]


def training(folder: Path, parallel: str, act: str = "") -> tuple[Outcome, dict[int, float], dict[int, set[int]]]:
    """A real run of two processes with four devices each: how it ended, the losses of steps and the rows they saw."""
    told: list[str] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*WORKER, str(folder), parallel, *([act] if act else [])]
    outcome = supervise(command, 2, devices=4, say=told.append, environment=environment)
    losses: dict[int, float] = {}
    rows: dict[int, set[int]] = {}
    for attempt in range(outcome.restarts + 1):
        for line in (folder / f"losses.{attempt}").read_text().splitlines():
            step, loss = line.split()
            losses[int(step)] = float(loss)
        again: dict[int, set[int]] = {}
        for path in folder.glob(f"rows.{attempt}.*"):
            for line in path.read_text().splitlines():
                step, *seen = map(int, line.split())
                again.setdefault(step + 1, set()).update(seen)
        rows |= again
    return outcome, losses, rows


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], dict[int, set[int]], float]:
    """One device, never interrupted: losses, rows, final loss."""
    folder = tmp_path_factory.mktemp("alone")
    trainer = elastic_worker.run(folder, "none")
    losses = {int(n): float(loss) for n, loss in map(str.split, (folder / "losses.0").read_text().splitlines())}
    lines = (list(map(int, line.split())) for line in (folder / "rows.0.0").read_text().splitlines())
    x, labels = elastic_worker.COLUMNS["x"], elastic_worker.COLUMNS["labels"]
    return losses, {step + 1: set(seen) for step, *seen in lines}, trainer.evaluate((x, labels)).loss


Alone = tuple[dict[int, float], dict[int, set[int]], float]


def compare(folder: Path, losses: dict[int, float], rows: dict[int, set[int]], alone: Alone) -> None:
    steps = np.arange(1, LOSSES + 1)
    assert sorted(losses) == sorted(alone[0]) == steps.tolist()
    assert max(abs(losses[n] - alone[0][n]) for n in steps) < 1e-5
    assert rows == alone[1]
    assert abs(json.loads((folder / "end").read_text())["loss"] - alone[2]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "act", "left", "why"),
    [
        ("data", "kill=8", 1, "lost process 1 by SIGKILL; restarting with 1 of 2 processes"),  # 4th step of an epoch
        ("auto", "kill=7", 1, "lost process 1 by SIGKILL; restarting with 1 of 2 processes"),  # planned anew
        ("data", "stop=7", 2, "preempted, every process saved; restarting with 2 of 2 processes"),
    ],
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    tmp_path: Path, alone: Alone, parallel: str, act: str, left: int, why: str
) -> None:
    """Nor as if there were several devices: losses are those of one. The last run is of two processes throughout."""
    outcome, losses, rows = training(tmp_path, parallel, act)
    assert outcome == Outcome(0, left, 1, (why,))
    assert json.loads((tmp_path / "end").read_text())["devices"] == 4 * left
    compare(tmp_path, losses, rows, alone)


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(tmp_path: Path) -> None:
    """Though the other one waits for it in a collective."""
    told: list[str] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*WORKER, str(tmp_path), "data", "fail=4"]
    found = supervise(command, 2, devices=1, say=told.append, environment=environment)
    assert found.status == 1 and found.restarts == 0
    assert "process 1 failed with exit status 1:" in told[0] and told[0].endswith("ValueError: as asked")


def test_fewer_processes_start_where_the_batch_asks_for_it() -> None:
    told: list[str] = []
    found = supervise([sys.executable, "-c", ""], 3, fits=lambda count: 4 % count == 0, say=told.append)
    assert (found.status, found.processes) == (0, 2)
    assert told == ["the batch does not divide among 3 processes: starting 2"]
    with pytest.raises(TrainError, match="no number of processes from 2 to 3 divides the batch"):
        supervise([sys.executable, "-c", ""], 3, least=2, fits=lambda count: 5 % count == 0, say=told.append)


@pytest.mark.slow
def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    """Even when that is killed and cannot say good-bye."""
    worker = (
        "import os, pathlib, time; from cloud.train.many.processes import join; os.environ.pop('MSEDGE_COORDINATOR'); "
        "os.environ.pop('MSEDGE_PROCESS'); os.environ.pop('MSEDGE_PROCESSES'); join(); "
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    supervising = "import sys; from cloud.train.many.elastic import supervise"
    boss = f"{supervising}; supervise([sys.executable, '-c', {worker!r}], 1)"
    process = subprocess.Popen([sys.executable, "-c", boss], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    finally:
        process.kill()
        process.wait()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


def until(true: Callable[[], bool]) -> None:
    """Wait for it, a minute at most."""
    waiting = threading.Event()
    for _ in range(600):
        if true():
            return
        waiting.wait(0.1)
    raise AssertionError("waited in vain")
