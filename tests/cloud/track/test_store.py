"""Runs in SQLite: everything written can be read, with many writers, even if they are killed."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cloud.errors import TrackError
from cloud.track import Artifact, Histogram, Recorder, Store, environment, git_state, runs
from cloud.track.digests import digest_of_arrays

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path, create=True) as made:
        yield made


def test_a_run_from_beginning_to_end(store: Store) -> None:
    made = store.start(name="first", config={"train": {"rate": 0.1}}, seed=3, data="d" * 64)
    run = store.run(made)
    assert (run.name, run.state, run.seed, run.config["train"]) == ("first", "running", 3, {"rate": 0.1})
    assert run.process == os.getpid() and run.ended is None and run.plan is None
    store.describe(made, plan={"mesh": [2, 4]}, plan_digest="p")
    store.end(made, "failed", "the loss is nan")
    run = store.run("first")
    assert (run.state, run.error, run.plan) == ("failed", "the loss is nan", {"mesh": [2, 4]})
    assert run.ended is not None and 0 <= run.seconds < 60
    store.reopen(made)
    assert (store.run(made).state, store.run(made).ended) == ("running", None)


def test_scalars_are_ordered_replaced_and_may_have_gaps(store: Store) -> None:
    run = store.start()
    store.add_scalars(run, [("loss", 2, 20.0, 0.5), ("loss", 1, 10.0, 1.0), ("rate", 1, 10.0, 0.1)])
    store.add_scalars(run, [("loss", 2, 30.0, 0.25), ("loss", 3, 40.0, math.nan)])
    found = store.scalars(run, "loss")
    assert found.steps == (1, 2, 3) and found.values[:2] == (1.0, 0.25) and math.isnan(found.values[2])
    assert found.times == (10.0, 30.0, 40.0)
    assert store.names(run) == ["loss", "rate"]
    assert store.last(run)["rate"] == 0.1 and math.isnan(store.last(run)["loss"])


@pytest.mark.parametrize("count", [1, 9, 10, 11, 100, 101])
def test_long_curves_are_thinned_with_both_ends(store: Store, count: int) -> None:
    run = store.start()
    store.add_scalars(run, [("loss", i, 0.0, float(i)) for i in range(count)])
    found = store.scalars(run, "loss", most=10)
    assert len(found) <= 11 and found.steps[0] == 0 and found.steps[-1] == count - 1


def test_histograms_artifacts_events(store: Store) -> None:
    run = store.start()
    spread = Histogram(4, (0.0, 1.0, 2.0), (3, 1), 0.75, 2.0)
    store.add_histogram(run, "w", spread)
    made = Artifact("onnx", "/m.onnx", "ab" * 32, 10, 5.0)
    store.add_artifact(run, made)
    store.add_event(run, "checkpoint", "step 4")
    assert store.histograms(run) == {"w": [spread]}
    assert store.artifacts(run) == [made] and store.makers("ab" * 32) == [(run, made)]
    assert [(e.kind, e.text) for e in store.events(run)] == [("checkpoint", "step 4")]


def test_runs_are_found_by_beginning_name_and_latest(store: Store) -> None:
    first, second = store.start(name="a"), store.start(name="a")
    assert store.run(first[:-1] if not second.startswith(first[:-1]) else first).id == first
    assert store.run("a").id == store.run("latest").id == second
    assert [run.id for run in store.runs()] == [second, first]
    with pytest.raises(TrackError, match="has no run 'nobody'.*" + second):
        store.run("nobody")


def test_a_beginning_that_several_runs_share_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["red-fox-100", "red-fox-100", "red-fox-101"])
    monkeypatch.setattr("cloud.track.store.fresh_name", lambda: next(names))
    assert (store.start(), store.start()) == ("red-fox-100", "red-fox-101")  # a name taken is not given again
    with pytest.raises(TrackError, match="begins several runs"):
        store.run("red")


@pytest.mark.parametrize("kind", ["missing", "text", "other", "newer"])
def test_other_files_are_not_opened_as_a_store(path: Path, kind: str) -> None:
    if kind == "text":
        path.write_text("not a database, " * 100)
    elif kind != "missing":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE mine (x)" if kind == "other" else "PRAGMA user_version = 99")
        database.close()
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(TrackError, match=r"runs\.sqlite"):
        Store(path, create=kind != "missing")
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize(
    "change, expected",
    [
        ("UPDATE runs SET config = '{'", "cannot read .* it is damaged"),
        ("UPDATE runs SET config = '[]'", "expected a table, got list"),
        ("UPDATE runs SET created = 'then'", "expected a number, got str"),
        ("UPDATE runs SET created = 1e300", "seconds since 1970"),
        ("UPDATE runs SET process = 1 << 40", "number of a process"),
        ("UPDATE runs SET name = x'ff'", "expected a text, got bytes"),
        ("UPDATE histograms SET spread = '{}'", "'edges'"),
        ("UPDATE histograms SET spread = replace(spread, '[2]', '[2, 2]')", "one more edge than counts"),
        ("UPDATE scalars SET value = 'much'", "expected a number, got str"),
        ("UPDATE artifacts SET bytes = 1.5", "expected a whole number, got 1.5"),
        ("UPDATE events SET text = x'01'", "expected a text, got bytes"),
    ],
)
def test_a_damaged_store_is_reported(store: Store, path: Path, change: str, expected: str) -> None:
    run = store.start()
    store.add_scalars(run, [("loss", 1, 0.0, 1.0)])
    store.add_histogram(run, "w", Histogram(1, (0.0, 1.0), (2,), 0.5, 1.0))
    store.add_artifact(run, Artifact("onnx", "m.onnx", "d" * 64, 3, 0.0))
    store.add_event(run, "checkpoint", "kept")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    with pytest.raises(TrackError, match=expected):
        store.run(run), store.last(run), store.scalars(run, "loss"), store.histograms(run), store.artifacts(run)
        store.events(run)


def test_facts_that_json_cannot_say_are_refused(store: Store) -> None:
    with pytest.raises(TrackError, match="JSON"):
        store.start(config={"f": print})
    with pytest.raises(TrackError, match="got colour"):
        store.describe("x", colour="red")


def test_a_failed_write_is_taken_back_whole(store: Store) -> None:
    run = store.start()
    with pytest.raises(ValueError):
        store.add_scalars(run, (("fresh", i, 0.0, float(word)) for i, word in enumerate(["1", "two"])))
    store.add_scalars(run, [("other", 1, 0.0, 1.0), ("fresh", 1, 0.0, 2.0)])
    assert store.scalars(run, "fresh").values == (2.0,) and store.scalars(run, "other").values == (1.0,)


def test_many_writers_at_once(path: Path) -> None:
    def work(number: int) -> None:
        with Store(path, create=True) as store:
            run = store.start(name=f"w{number}")
            with Recorder(path, run) as recorder:
                for step in range(50):
                    recorder.scalars(step, {"loss": step * number, "n": number})
            store.end(run, "finished")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(path) as store:
        found = store.runs()
        assert sorted(run.name for run in found) == [f"w{n}" for n in range(6)]
        for run in found:
            number = int(run.name[1:])
            assert store.scalars(run.id, "loss").values == tuple(float(step * number) for step in range(50))


def test_a_full_disk_does_not_stop_a_run_and_is_reported_at_the_end(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.start()
    recorder = Recorder(path, run)
    broken = True
    write = recorder._store.add_scalars

    def refusing(*arguments: object) -> None:
        if broken:
            raise TrackError("disk full")
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(recorder._store, "add_scalars", refusing)
    recorder.scalars(1, {"loss": 1.0})
    recorder._write()
    recorder.scalars(2, {"loss": 2.0})
    broken = False
    recorder.close()
    assert store.scalars(run, "loss").values == (1.0, 2.0)
    broken, other = True, Recorder(path, run)
    monkeypatch.setattr(other._store, "add_scalars", refusing)
    other.scalars(3, {"loss": 3.0})
    with pytest.raises(TrackError, match="disk full"):
        other.close()


def test_a_killed_run_is_marked_as_lost(path: Path) -> None:
    code = (
        "import sys, time\nfrom cloud.track import Recorder, Store\n"
        "store = Store(sys.argv[1], create=True)\nrun = store.start()\n"
        "Recorder(sys.argv[1], run).scalars(1, {'loss': 1.0})\n"
        "while not store.scalars(run, 'loss').values: time.sleep(0.05)\n"
        "print(run, flush=True)\ntime.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    run = child.stdout.readline().strip()
    with Store(path) as store:
        assert store.run(run).state == "running"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert store.run(run).state == "lost"
        assert store.scalars(run, "loss").values == (1.0,)


@pytest.mark.parametrize(
    "state, age, where, process, shown",
    [
        ("running", 0, "here", 0, "running"),
        ("running", 0, "elsewhere", 2**22 + 1, "running"),
        ("running", runs.LOST_AFTER + 5, "elsewhere", 1, "lost"),
        ("finished", 1e6, "here", 2**22 + 1, "finished"),
    ],
)
def test_which_runs_count_as_lost(state: str, age: float, where: str, process: int, shown: str) -> None:
    """Process 0 means this process."""
    assert runs.state_now(state, time.time() - age, where, process or os.getpid(), "here") == shown


def test_digests_name_contents_whatever_their_order() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.array(["a", "b"], object)
    same = digest_of_arrays({"x": x, "y": y})
    assert same == digest_of_arrays({"y": y, "x": np.asfortranarray(x)}) and len(same) == 64
    others = [{"x": x}, {"x": x.T, "y": y}, {"x": x.astype(np.float32), "y": y}, {"x": x, "y": y[::-1]}]
    assert len({same, *map(digest_of_arrays, others)}) == 5


def test_facts(tmp_path: Path) -> None:
    made = environment()
    assert made["packages"]["numpy"] == np.__version__ and made["cores"] >= 1
    assert git_state(tmp_path) == {}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a").write_text("1")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(tmp_path), "add", "a"], check=True)
    subprocess.run(["git", "-C", str(tmp_path), *who, "commit", "-qm", "a"], check=True)
    assert not git_state(tmp_path)["dirty"] and len(git_state(tmp_path)["commit"]) == 40
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path)["dirty"]
