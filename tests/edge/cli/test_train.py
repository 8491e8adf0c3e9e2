"""`msedge train` and `msedge runs` as scripts and users run them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lite_runtime
from cloud.track import Store
from cloud.train.reports import EpochReport, Evaluation
from edge.cli.app import app
from edge.cli.train_live import Screen
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
CONFIG = """
[model]
zoo = "mlp"
options = { features = 4, outputs = 3, hidden = [8] }
[data]
npz = "d.npz"
validation = 0.25
[train]
epochs = 2
batch = 10
rate = 0.01
[export]
onnx = "m.onnx"
bundle = "m.mslite"
[track]
store = "runs.sqlite"
name = "mine"
"""


def msedge(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="msedge")
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that `msedge train` made."""
    made = tmp_path_factory.mktemp("train")
    random = np.random.default_rng(0)
    np.savez(made / "d.npz", x=random.standard_normal((40, 4)).astype(np.float32), labels=random.integers(0, 3, 40))
    (made / "run.toml").write_text(CONFIG)
    out, err = msedge("train", made / "run.toml")
    assert "2 epochs, 6 steps" in out and "validation loss" in out and str(made / "m.mslite") in out
    assert err.count("epoch ") == 2 and "epoch 2/2: train loss" in err
    out, _ = msedge("train", made / "run.toml", "--set", "train.rate=0.1", "--set", "track.name=other", "--json")
    summary = json.loads(out)
    assert summary["steps"] == 6 and summary["stopped"] == [] and 0 <= summary["validation"]["accuracy"] <= 1
    assert summary["run"] and set(summary["files"]) == {"onnx", "bundle"}
    return made


def runs(folder: Path, *words: str | Path, code: int = 0) -> Any:
    out, _ = msedge("runs", *words, "--runs", folder / "runs.sqlite", "--json", code=code)
    return json.loads(out)


def test_what_was_exported_is_what_was_trained(folder: Path) -> None:
    import onnxruntime

    x = np.ones((3, 4), np.float32)
    ours = lite_runtime.load(folder / "m.mslite").run({"x": x})["logits"]
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(ours, session.run(None, {"x": x})[0], atol=1e-5)
    kinds = [link["kind"] for link in runs(folder, "lineage", folder / "m.mslite")["lineage"]]
    assert kinds == ["data", "run", "onnx", "bundle"]


def test_runs_are_listed_shown_and_compared(folder: Path) -> None:
    listed = runs(folder, "list")["runs"]
    assert [run["name"] for run in listed] == ["other", "mine"] and listed[0]["state"] == "finished"
    shown = runs(folder, "show", "mine")
    assert shown["config"]["train"]["rate"] == 0.01 and shown["last"]["epoch"] == 2
    assert {file["kind"] for file in shown["files"]} == {"onnx", "bundle"}
    apart = runs(folder, "compare", "mine", "other")
    assert apart["settings"]["train.rate"] == [0.01, 0.1] and "model.zoo" not in apart["settings"]
    for words in (["list"], ["show", "mine"], ["compare", "mine", "other"], ["lineage", "mine"]):
        out, _ = msedge("runs", *words, "--runs", folder / "runs.sqlite")
        assert "mine" in out
    assert runs(folder, "show", "nobody", code=3)["error"]["kind"] == "TrackError"


def test_pages_and_tensorboard(folder: Path) -> None:
    store = ("--runs", folder / "runs.sqlite")
    msedge("runs", "page", "mine", "other", "-o", folder / "runs.html", *store)
    assert "2 runs" in (folder / "runs.html").read_text()
    out, _ = msedge("runs", "export", "mine", "--tensorboard", folder / "tb", *store)
    assert Path(out.strip()).stat().st_size > 500
    out, _ = msedge("runs", "export", "--tensorboard", folder / "all", *store)
    assert len(out.split()) == 2


def test_a_page_is_served_while_it_trains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees the run while it trains, where its steps' time goes, and how it ended."""
    seen: list[tuple[str, bytes, bytes]] = []
    readers: list[threading.Thread] = []

    def read(address: str) -> None:
        while not (seen and seen[-1][0] == "finished"):
            state = answer(address, "state.json")
            if state.startswith(b"{"):
                parts = (answer(address, f"section/{name}") for name in ("curves", "profile"))
                seen.append((json.loads(state)["state"], *parts))
            time.sleep(0.02)

    def say(text: str) -> None:
        if found := re.search(r"http://127\.0\.0\.1:\d+/", text):
            readers.append(threading.Thread(target=read, args=(found[0],)))
            readers[0].start()

    monkeypatch.setattr("edge.cli.train.say", say)
    monkeypatch.setattr("edge.pages.live.LINGER", 1.0)
    changes = ("--set", "train.epochs=40", "--set", "track.name=watched", "--set", "export.onnx=''",
               "--set", "export.bundle=''")  # fmt: skip
    msedge("train", folder / "run.toml", *changes, "--page", "0")
    readers[0].join(PATIENCE)
    assert {state for state, *_ in seen} == {"running", "finished"}
    assert b"Loss of each step" in seen[-1][1] and b"Step by operator" in seen[-1][2] and b"Gemm" in seen[-1][2]


def test_runs_are_watched_until_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edge.cli.runs.time.sleep", sleep)
    out, _ = msedge("runs", "watch", "mine", "--runs", folder / "runs.sqlite")
    assert re.search(r"serving http://127\.0\.0\.1:\d+/ until", out)
    _, err = msedge("runs", "watch", "nobody", "--runs", folder / "runs.sqlite", code=3)
    assert "has no run 'nobody'" in err


def test_a_page_needs_a_record_of_one_process(folder: Path) -> None:
    _, err = msedge("train", folder / "run.toml", "--page", "0", "--set", "track.keep=false", code=2)
    assert "track.keep" in err
    _, err = msedge("train", folder / "run.toml", "--page", "0", "--processes", "2", code=2)
    assert "runs watch" in " ".join(err.replace("│", " ").split())


def answer(address: str, path: str) -> bytes:
    """What is served, also while there is nothing yet."""
    try:
        with urllib.request.urlopen(address + path, timeout=30) as found:
            return bytes(found.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.read()


def test_without_tensorboards_writer_the_export_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.record_writer", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    _, err = msedge("runs", "export", "--tensorboard", folder / "none", "--runs", folder / "runs.sqlite", code=3)
    assert "pip install 'tensorboardX" in err and not (folder / "none").exists()


def test_the_store_is_found_by_its_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_RUNS", str(folder / "runs.sqlite"))
    assert len(json.loads(msedge("runs", "list", "--json")[0])["runs"]) >= 2
    monkeypatch.setenv("MSEDGE_RUNS", str(folder / "none.sqlite"))
    _, err = msedge("runs", "list", code=3)
    assert "there is no store of runs" in err
    assert not (folder / "none.sqlite").exists()


@pytest.mark.parametrize(
    "words, code, expected",
    [
        ([], 2, "--template prints one"),
        (["none.toml"], 3, "cannot read"),
        (["{run}", "--set", "train.epoch=3"], 3, "did you mean 'epochs'"),
        (["{run}", "--set", "epochs"], 3, "SECTION.KEY=VALUE"),
        (["{run}", "--set", "export.onnx=none/m.onnx"], 3, "export.onnx: there is no folder"),
        (["{run}", "--set", "model.options.features=7"], 3, "takes examples of 7"),
        (["no_such_module_here:f"], 3, "no module"),
        (["json:loads", "--set", "a.b=1"], 2, "not a function"),
    ],
)
def test_mistakes_end_with_their_code(folder: Path, words: list[str], code: int, expected: str) -> None:
    _, err = msedge("train", *(word.format(run=folder / "run.toml") for word in words), code=code)
    assert expected in " ".join(err.replace("│", " ").split())


def test_a_failed_run_says_why(folder: Path) -> None:
    changes = ("--set", "train.rate=1e20", "--set", "train.optimizer=sgd", "--set", "track.name=hot")
    _, err = msedge("train", folder / "run.toml", *changes, code=3)
    assert "the loss is" in err
    shown = runs(folder, "show", "hot")
    assert shown["state"] == "failed" and "the loss is" in shown["error"]


def test_no_record_if_recording_is_off(folder: Path) -> None:
    before = len(runs(folder, "list")["runs"])
    out, _ = msedge("train", folder / "run.toml", "--set", "track.keep=false", "--json")
    assert json.loads(out)["run"] is None and len(runs(folder, "list")["runs"]) == before


def test_a_function_that_builds_the_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "my_run.py").write_text(
        "from cloud.train.jobs.config import read\nfrom cloud.train.jobs.job import job_of\n"
        "def job(): return job_of(read('run.toml', ['train.epochs=1']))\ndef other(): return 3\n"
    )
    out, _ = msedge("train", "my_run:job", "--runs", folder / "runs.sqlite", "--json")
    assert json.loads(out)["epochs"] == 1
    assert runs(folder, "list")["runs"][0]["name"] == "my_run:job"
    _, err = msedge("train", "my_run:other", code=3)
    assert "got int" in err


def test_a_run_goes_on_from_its_checkpoint(folder: Path) -> None:
    kept = ("--set", "checkpoint.folder=kept", "--json")
    first = json.loads(msedge("train", folder / "run.toml", *kept, "--set", "train.epochs=1")[0])
    out, err = msedge("train", folder / "run.toml", *kept, "--resume")
    assert "continuing from" in err and json.loads(out)["steps"] == 6
    assert "epoch 2/2: train loss" in err and "epoch 1" not in err
    assert runs(folder, "show", json.loads(out)["run"])["parent"] == first["run"]
    _, err = msedge("train", folder / "run.toml", *kept, "--resume", code=3)
    assert "nothing is left to do" in err
    _, err = msedge("train", folder / "run.toml", "--resume", code=3)
    assert "checkpoint" in err


def test_a_run_that_was_stopped_after_its_last_step_is_exported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor starts it again: nothing is left to train."""
    kept = ("--set", f"checkpoint.folder={tmp_path / 'kept'}", "--set", f"export.onnx={tmp_path / 'm.onnx'}", "--json")
    msedge("train", folder / "run.toml", *kept)
    whole = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").unlink()
    monkeypatch.setenv("MSEDGE_RESTARTS", "1")
    monkeypatch.setattr("edge.cli.train_many._only_python_prints", lambda: None)
    out, err = msedge("train", folder / "run.toml", *kept)
    assert "continuing from" in err and json.loads(out)["steps"] == 6
    assert (tmp_path / "m.onnx").read_bytes() == whole


def test_so_many_steps_and_no_more(folder: Path) -> None:
    shown = ("--set", "checkpoint.folder=steps", "--set", "train.epochs=0", "--json")
    out, err = msedge("train", folder / "run.toml", *shown, "--set", "train.steps=4")
    assert json.loads(out)["steps"] == 4 and "epoch 2: train loss" in err and "epoch 3" not in err
    out, err = msedge("train", folder / "run.toml", *shown, "--set", "train.steps=7", "--resume")
    assert (json.loads(out)["steps"], json.loads(out)["epochs"]) == (7, 2) and "epoch 2: train" in err


def test_the_template_is_printed() -> None:
    assert msedge("train", "--template")[0].startswith("# A training run")


@pytest.mark.slow
def test_sigterm_ends_after_the_step_and_is_recorded(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "d.npz", tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG.replace("epochs = 2", "epochs = 100000"))
    command = [sys.executable, "-m", "edge.cli", "train", str(tmp_path / "run.toml"), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            _until_steps(tmp_path / "runs.sqlite", child)
            os.kill(child.pid, signal.SIGTERM)
            out, err = child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
    assert child.returncode == 3, err
    summary = json.loads(out)
    assert summary["stopped"] == ["SIGTERM"] and summary["files"] == {} and "stopped by SIGTERM after step" in err
    with Store(tmp_path / "runs.sqlite") as store:
        run = store.run("latest")
        assert (run.state, run.error) == ("stopped", "SIGTERM")
        assert store.scalars(run.id, "step/loss").steps[-1] == summary["steps"]


def _until_steps(path: Path, child: subprocess.Popen[str]) -> None:
    def begun() -> bool:
        assert child.poll() is None, "the run has not begun"
        if not path.exists():
            return False
        with closing(sqlite3.connect(path)) as database:
            found = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'scalars'").fetchone()[0]
            return bool(found and database.execute("SELECT count(*) FROM scalars").fetchone()[0])

    until(begun, every=0.1)


def test_the_screen_shows_where_a_run_is() -> None:
    from rich.console import Console

    def shown() -> str:
        console = Console(width=100, file=io.StringIO(), record=True)
        console.print(screen.show())
        return console.export_text()

    screen = Screen(epochs=2, steps=8)
    assert "epoch 1/2" in shown()
    screen.step = screen._first = 0
    screen.placed({"strategy": "data parallel", "mesh": [8], "step_seconds": 0.002, "peak_bytes": 2**20})
    for step in range(1, 5):
        screen.stepped(step, {"loss": 1.0 / step, "examples": 8.0, "gradient_norm": 0.25})
    means = Evaluation(0.5, {"accuracy": 0.75}, 32)
    times = {"data": 0.4, "step": 2.0, "other": 0.004}
    screen.epoch_done(EpochReport(1, 2, means, means, 3.0, 4, times))
    screen.saved(Path("/kept"))
    text = shown()
    told = ("data 100.00 ms", "/kept", "gradient norm 0.25", "plan: data parallel, mesh 8; expected 2.00 ms per step")
    for words in ("epoch 2/2", "step 4", "examples/s", "remaining", "0.2500", "0.7500", *told):
        assert words in text, words
    assert "━" * 16 + "╌" * 16 in text
