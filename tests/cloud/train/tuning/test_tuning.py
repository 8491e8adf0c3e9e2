"""The search for settings: what may vary, which trials go on, studies that are interrupted, their record and files."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cloud.errors import TrainError
from cloud.track import Store
from cloud.train.jobs.config import parse, read
from cloud.train.tuning.halving import is_rung, stops
from cloud.train.tuning.pool import shares
from cloud.train.tuning.space import Tune, change_of
from cloud.train.tuning.trial import Message, serve
from edge.cli.app import app
from edge.pages.runs_page import runs_page

pytest.importorskip("optuna")
from cloud.train.tuning.history import History
from cloud.train.tuning.study import Outcome, tune

RUN = """
[model]
zoo = "mlp"
options = { features = 4, outputs = 3, hidden = [8] }
[data]
npz = "d.npz"
validation = 0.25
[train]
epochs = 4
batch = 20
[export]
onnx = "m.onnx"
[track]
store = "runs.sqlite"
name = "mine"
[tune]
trials = 6
halving = 2
[tune.space]
"train.rate" = { low = 1e-4, high = 1.0, log = true }
train.batch = [10, 20]
"""


class Killed(BaseException):
    """Ends a study as a kill would: nothing is told to anyone."""


class Simulated:
    """A pool whose trials are a formula: the loss falls to |log10(rate) + 2| over four evaluations. `faults`: by how
    many messages were told, what happens then."""

    def __init__(self, size: int, faults: dict[int, str] | None = None) -> None:
        self.size, self._faults, self.told = size, faults or {}, 0
        self.orders: list[Message] = []
        self._lines: dict[int, tuple[Message, list[Message]]] = {}

    def send(self, worker: int, message: Message) -> None:
        if "words" in message:
            self.orders.append(message)
            best = abs(np.log10(message["words"]["train"]["rate"]) + 2)
            curve = [best + 1 / at for at in range(1, 5)]
            lines: list[Message] = [
                {"kind": "evaluated", "value": v, "last": at == 3, "run": ""} for at, v in enumerate(curve)
            ]
            self._lines[worker] = message, [*lines, {"kind": "value", "value": curve[-1]}]
        elif message.get("stop"):
            self._lines[worker] = self._lines[worker][0], [{"kind": "pruned", "seconds": 1.0}]
        elif message.get("keep") is not None:
            order, _ = self._lines[worker]
            done: Message = {"kind": "finished", "value": self._last, "seconds": 1.0}
            if message["keep"]:
                file = Path(order["files"]) / "m.onnx"
                file.parent.mkdir(exist_ok=True)
                file.write_text(str(order["number"]))
                done["files"] = {"onnx": str(file)}
            self._lines[worker] = order, [done]

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        worker = min(self._lines)
        order, lines = self._lines[worker]
        message = {"number": order["number"], **lines.pop(0)}
        self.told += 1
        fault = self._faults.get(self.told)
        if fault == "killed":
            raise Killed
        if fault is not None:
            message = {"kind": fault, "why": "a fault"}
        self._last = message.get("value", 0.0)
        if message["kind"] in ("finished", "pruned", "failed", "lost"):
            del self._lines[worker]
        return [(worker, message)]

    def close(self) -> None:
        self._lines.clear()


class Threads:
    """A pool of one thread in this process, which trains."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._orders: queue.Queue[Message | None] = queue.Queue()
        self._told: queue.Queue[Message] = queue.Queue()
        self._thread = threading.Thread(target=serve, args=(self._orders.get, self._told.put))
        self._thread.start()

    def send(self, worker: int, message: Message) -> None:
        self._orders.put(message)

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        try:
            return [(0, self._told.get(timeout=seconds))]
        except queue.Empty:
            return []

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    x = random.standard_normal((80, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, labels=x[:, :3].argmax(1))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def search(folder: Path, *changes: str, faults: dict[int, str] | None = None, **options: Any) -> Outcome:
    return tune(folder / "run.toml", changes, pool=lambda size: Simulated(size, faults), **options)


def told(found: Outcome) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, dict(t.values), t.value, t.curve) for t in found.trials]


def test_a_study_that_is_killed_anywhere_goes_on_to_the_same_trials(folder: Path) -> None:
    whole = search(folder, "tune.trials=8", 'tune.folder="whole"')
    assert whole.complete and whole.ended == "all of its 8 trials, tune.trials" and len(whole.trials) == 8
    assert {t.state for t in whole.trials} == {"finished", "pruned"}
    assert whole.best is not None and whole.best.value == min(t.value for t in whole.trials if t.value is not None)
    for at in (2, 9):
        name = f'tune.folder="at{at}"'
        with pytest.raises(Killed):
            search(folder, "tune.trials=8", name, faults={at: "killed"})
        assert told(search(folder, "tune.trials=8", name, resume=True)) == told(whole)
    assert (folder / "m.onnx").read_text() == str(whole.best.number)
    assert sorted(path.name for path in (folder / "at9").glob("trial-*")) == [f"trial-{whole.best.number:04}"]


def test_a_killed_draw_is_completed(folder: Path) -> None:
    """A kill may come between two values of a trial."""
    said = read(folder / "run.toml").tune
    assert said is not None
    options: Any = {"lower": True, "method": "bayes", "seed": 3}
    whole, cut = (History(folder / f"{name}.sqlite", said.dimensions, **options) for name in ("whole", "cut"))
    expected = whole.ask()
    cut._study.sampler = cut._sampler(0, 0)
    drawing = cut._study.ask()
    cut._study.sampler = cut._sampler(0, 1)
    drawing.suggest_categorical("train.batch", ["10", "20"])
    cut.close()
    cut = History(folder / "cut.sqlite", said.dimensions, **options)
    assert cut.again() == [expected]
    whole.close()
    cut.close()


def test_limits_and_what_may_change(folder: Path) -> None:
    found = search(folder, "tune.evaluations=9")
    assert 9 <= found.evaluations < 13 and found.ended.endswith("tune.evaluations")
    with pytest.raises(TrainError, match="has a study already; --resume continues it"):
        search(folder)
    with pytest.raises(TrainError, match=r"is a study of another file: train.epochs was 4, is 5; set it back"):
        search(folder, "train.epochs=5", resume=True)
    more = search(folder, "tune.trials=8", "tune.processes=2", resume=True)
    assert len(more.trials) == 8 and told(more)[: len(found.trials)] == told(found)
    with Store(folder / "runs.sqlite") as store:
        assert [run.id for run in store.runs()] == [found.run] == [more.run]
        assert len(store.document(more.run, "study")["trials"]) == 8 and store.run(more.run).state == "finished"
        assert {made.path for made in store.artifacts(more.run)} == {str(folder / "m.onnx")}


def test_two_at_once(folder: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (folder / "study").mkdir()
    with open(folder / "study" / "study.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TrainError, match="another process works on the study"):
            search(folder)
    assert search(folder, "tune.trials=1").complete


def test_a_stopped_study(folder: Path) -> None:
    seen: list[int] = []
    found = search(folder, progress=lambda t: seen.append(t.number), stop=lambda: "SIGTERM" if len(seen) > 3 else "")
    assert not found.complete and found.ended == "SIGTERM" and found.trials[-1].state == "running"
    with Store(folder / "runs.sqlite") as store:
        assert (store.run(found.run).state, store.run(found.run).error) == ("stopped", "SIGTERM")


def test_trials_whose_process_is_lost_are_run_again(folder: Path) -> None:
    expected = told(search(folder, 'tune.folder="whole"'))
    assert told(search(folder, faults={2: "lost"})) == expected
    found = search(folder, 'tune.folder="thrice"', faults={1: "lost", 2: "lost", 3: "lost"})
    assert found.trials[0].state == "failed" and found.trials[1].state != "failed"
    with pytest.raises(TrainError, match="the first 3 trials failed; the last one: a fault"):
        search(folder, 'tune.folder="bad"', faults=dict.fromkeys((1, 2, 3), "failed"))


def test_bayes_finds_more_than_random(folder: Path) -> None:
    """With equal numbers of trials, over seeds; the optimum is at (0.01, 0.3)."""
    said = Tune(space={"a.x": {"low": 1e-4, "high": 1.0, "log": True}, "a.y": {"low": 0.0, "high": 1.0}})

    def found(method: str, seed: int) -> float:
        history = History(
            folder / f"{method}{seed}.sqlite", said.dimensions, lower=True, method=method, seed=seed
        )  # fmt: skip
        for _ in range(20):
            trial = history.ask()
            x, y = trial.values.values()
            history.end(trial.number, "finished", abs(np.log10(x) + 2) + abs(y - 0.3))
        best = history.best()
        history.close()
        assert best is not None and best.value is not None
        return best.value

    means = {method: np.mean([found(method, seed) for seed in range(2)]) for method in ("bayes", "random")}
    assert means["bayes"] < 0.8 * means["random"], means


REFUSED = {
    '"train.rte" = [1, 2]': r"tune.space.train.rte: train.rte=1 \(a choice\) is refused: train.rte: no such key; did",
    '"train.rate" = { low = 0.0, high = 1.0 }': r"train.rate=0.0 \(an end of the range\) is refused: train.rate: expec",
    '"train.rate" = { low = 1.0, high = 1.0 }': "tune.space.train.rate: high: expected a number above low, 1, got 1.0",
    '"train.rate" = { low = 0.0, high = 1.0, log = true }': "low: expected a number above 0 with log = true, got 0.0",
    '"train.batch" = { low = 0.5, high = 2, integer = true }': "low and high: expected whole numbers with integer = tr",
    '"train.rate" = { low = 0.1 }': "tune.space.train.rate.high: expected a number",
    '"train.batch" = [8]': "choices: expected at least two values",
    '"train.batch" = [8, 8]': "choices: expected different values",
    '"train.batch" = 8': "tune.space.train.batch: expected { low = …, high = … } or a list of values, got 8",
    '"track.name" = ["a", "b"]': "tune.space.track.name: expected a key such as train.rate, of no section among check",
    "": "tune.space: expected at least one key",
}


@pytest.mark.parametrize("space", REFUSED)
def test_spaces_that_are_refused(folder: Path, space: str) -> None:
    before, _, _ = RUN.partition("[tune.space]")
    (folder / "run.toml").write_text(f"{before}[tune.space]\n{space}")
    with pytest.raises(TrainError, match=REFUSED[space]):
        search(folder)
    assert not (folder / "study").exists()


def test_what_a_study_needs(folder: Path) -> None:
    for change, words in {
        "tune.metric=auc": "tune.metric: expected one of loss, accuracy, got 'auc'",
        "data.validation=0.0": "tune.metric: expected validation data together with it",
        "tune.halving=1": "tune.halving: expected 0 or at least 2, got 1",
    }.items():
        with pytest.raises(TrainError, match=words.replace("(", r"\(")):
            search(folder, change)
    (folder / "run.toml").write_text(RUN.partition("[tune]")[0])
    with pytest.raises(TrainError, match=r"\[tune\]: expected this section with space"):
        search(folder)


def test_values_are_changes() -> None:
    for value in (1, 0.1, True, "a 'b' \"c\"", [1, [2.5]], {"a b": [True]}):
        assert parse_value(change_of("model.options.v", value)) == value


def parse_value(change: str) -> Any:
    from cloud.train.jobs.sections import overridden

    return overridden({}, [change])["model"]["options"]["v"]


def test_rungs() -> None:
    assert [at for at in range(1, 30) if is_rung(at, 1, 3)] == [1, 3, 9, 27]
    assert [at for at in range(1, 30) if is_rung(at, 2, 2)] == [2, 4, 8, 16]

    def ends(curve: Sequence[float], others: Sequence[Sequence[float]], factor: int = 3) -> bool:
        return stops(curve, others, lower=True, least=1, factor=factor)

    assert not ends([1.0], []) and not ends([1.0], [[2.0], [3.0]]) and ends([2.0], [[1.0]])
    others: Sequence[Sequence[float]] = [[float(v)] for v in (1, 2, 3, 4, 5)]
    assert not ends([1.5], others) and ends([2.5], others) and not ends([9.0], others, 0)
    assert not ends([9.0, 9.0], [[1.0, 1.0]]) and ends([float("nan")], []) and not ends([1.0], [[float("nan")]])


def test_shares_of_the_cores() -> None:
    assert shares(range(8), 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares([4, 5], 3) == [[4], [5], [4]] and shares((), 2) == [[], []]


def test_the_section_is_for_tune_alone(folder: Path) -> None:
    assert parse(read(folder / "run.toml").source, folder).tune is not None


def search_for_real(folder: Path, *changes: str, **options: Any) -> Outcome:
    return tune(folder / "run.toml", changes, pool=Threads, **options)


def test_killed_in_earnest(folder: Path) -> None:
    """Real processes: one is killed in the middle of a trial, with its worker; the other study is not."""
    (folder / "run.toml").write_text(RUN.replace("trials = 6", "trials = 3").replace("epochs = 4", "epochs = 2"))
    command = [sys.executable, "-m", "edge.cli", "tune", str(folder / "run.toml"), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("trial 1: t"):
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stderr.close()
    told = search_for_real(folder, resume=True)
    whole = search_for_real(folder, 'tune.folder="whole"', store=folder / "other.sqlite")
    assert [(t.number, t.state, t.values, t.curve, t.value) for t in told.trials] == [
        (t.number, t.state, t.values, t.curve, t.value) for t in whole.trials
    ]
    done = CliRunner().invoke(app, ["tune", str(folder / "run.toml"), "--resume", "--json"])
    assert done.exit_code == 0, done.stderr
    cut = json.loads(done.stdout)
    assert cut["complete"] and cut["run"] == told.run and len(cut["trials"]) == 3
    assert cut["files"] == {"onnx": str(folder / "m.onnx")} and (folder / "m.onnx").stat().st_size > 100
    with Store(folder / "runs.sqlite") as store:
        study = store.run(cut["run"])
        runs = [run for run in store.runs() if run.parent == study.id]
        assert study.state == "finished" and {run.name for run in runs} == {"mine 0", "mine 1", "mine 2"}
        assert {run.config["train"]["rate"] for run in runs} == {t.values["train.rate"] for t in whole.trials}
        assert all("tune" not in run.config for run in runs)
        page = runs_page(store, [study])
    assert "<h2>Trials</h2>" in page and "loss by train.rate" in page and "the best" in page
    out = CliRunner().invoke(app, ["tune", str(folder / "run.toml"), "--resume"])
    assert out.exit_code == 0 and "best: trial " in out.stdout and "--set 'train.rate=" in out.stdout
    again = CliRunner().invoke(app, ["tune", str(folder / "run.toml"), "--json"])
    assert again.exit_code == 3 and "has a study already" in json.loads(again.stdout)["error"]["message"]
