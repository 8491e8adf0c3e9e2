"""`msedge cluster`: plan, simulate, run, submit and status from files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloud.cluster.state import Order
from edge.cli.cluster_submit import Gangs
from tests.edge.test_cli import as_json, msedge

CLUSTER = """
[rules]
round = 10
quantum = 10
patience = 20
[[pools]]
name = "here"
device = "cpu"
machines = 1
devices = 2
"""
JOB = """
[[training]]
name = "{name}"
config = "run.toml"
steps = {steps}
starting = 1
saving = 1
[training.speeds.here]
{speeds}
"""
SERVING = """
[[serving]]
name = "s"
latency = 0.5
starting = 1
seconds = { here = 0.1 }
requests = [[0, 2]]
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    there, jobs = tmp_path / "cluster.toml", tmp_path / "jobs.toml"
    there.write_text(CLUSTER)
    jobs.write_text(
        JOB.format(name="a", steps=100, speeds="1 = 2.0\n2 = 3.0") + JOB.format(name="b", steps=50, speeds="1 = 2.0")
    )
    return there, jobs


def test_templates(tmp_path: Path) -> None:
    for which in ("cluster", "jobs"):
        text, _ = msedge("cluster", "template", which)
        (tmp_path / f"{which}.toml").write_text(text)
    assert 'name = "answers"' in text


def test_plan(files: tuple[Path, Path]) -> None:
    there, jobs = files
    made = as_json("cluster", "plan", there, jobs)
    assert made["devices"] == 2 and made["jobs"][0]["speeds"] == {"here": {"1": 2.0, "2": 3.0}}
    assert made["least_seconds"] == pytest.approx(125 / 3)
    assert [one["gang"] for one in made["begin"]] == ["a", "b"]
    text, _ = msedge("cluster", "plan", there, jobs)
    assert "1: 2, 2: 3" in text and "takes less than 41.67 s" in text


def test_simulate(files: tuple[Path, Path], tmp_path: Path) -> None:
    there, jobs = files
    jobs.write_text(jobs.read_text().replace("steps = 50", "steps = 50\ndeadline = 20"))
    page = tmp_path / "page.html"
    text, stderr = msedge("cluster", "simulate", there, jobs, "--page", page, code=1)
    assert "b: missed its deadline" in text and f"page: {page}" in stderr and "<svg" in page.read_text()
    made = as_json("cluster", "simulate", there, jobs, "--policy", "static", "--devices", "1", code=1)
    assert made["missed_deadlines"] == ["b"] and made["stopped"] == 0
    jobs.write_text(jobs.read_text().replace("\ndeadline = 20", "") + SERVING)
    made = as_json("cluster", "simulate", there, jobs, "--outage", "here/0@5-9", "--error", "0.2")
    assert made["makespan"] > 37.5 and 0 < made["late_requests"] < 1


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        (["--outage", "here/1@5-9"], "expected POOL/MACHINE@START-END of this cluster", 2),
        (["--outage", "here/0@9-5"], "expected POOL/MACHINE@START-END", 2),
        (["--outage", "here/0@5-9", "--policy", "fifo"], "know no lost machines", 2),
        (["--seconds", "nan"], "expected a number of seconds", 2),
        (["--speeds", "jobs.toml"], "expected speeds as --speeds writes them", 3),
        (["--page", "none/page.html"], "create the folder first", 3),
    ],
)  # fmt: skip
def test_wrong_words(
    files: tuple[Path, Path], more: list[str], words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[0].parent)
    _, stderr = msedge("cluster", "simulate", *files, *more, code=code)
    assert words in stderr


SCRIPT = """
import pathlib, sys, time
kept = pathlib.Path(sys.argv[1])
for step in range(1, 4):
    time.sleep(0.02)
    (kept / f"step-{step:012d}").mkdir(parents=True)
"""


def test_run_submit_and_status(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small programs in the place of `msedge train`."""
    there, jobs = files
    there.write_text(CLUSTER.replace("10", "0.1"))
    folder = tmp_path / "run"
    whole: list[Sequence[str]] = []
    command = Gangs.command

    def small(self: Gangs, order: Order) -> Sequence[str]:
        whole.append(command(self, order))
        return [sys.executable, "-S", "-c", SCRIPT, str(folder / "checkpoints" / order.job)]

    monkeypatch.setattr(Gangs, "command", small)
    monkeypatch.setattr("cloud.cluster.executor.PROGRESS", 0.05)
    made = as_json("cluster", "run", there, jobs, "--folder", folder)
    assert {one["job"]: one["state"] for one in made["jobs"]} == {"a": "ended", "b": "ended"}
    kept = str(folder / "checkpoints" / "a")
    assert whole[0][1:] == ["-m", "edge.cli", "train", str(tmp_path / "run.toml"), "--set", "train.steps=100", "--set",
                            f"checkpoint.folder={kept}"]  # fmt: skip
    (tmp_path / "more.toml").write_text(JOB.format(name="c", steps=7, speeds="1 = 2.0"))
    assert as_json("cluster", "submit", folder, tmp_path / "more.toml")["jobs"] == ["c"]
    made = as_json("cluster", "run", there, jobs, "--folder", folder)
    assert [one["state"] for one in made["jobs"]] == ["ended"] * 3
    _, stderr = msedge("cluster", "submit", folder, tmp_path / "more.toml", code=3)
    assert "c: expected a name that no job" in stderr
    text, _ = msedge("cluster", "status", folder, "--page", tmp_path / "page.html")
    assert "2 devices, 3 training jobs: all done" in text
    assert as_json("cluster", "status", folder)["jobs"] == made["jobs"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda there, jobs: there.write_text(CLUSTER.replace("cpu", "h100")), 'here: expected device = "cpu"'),
        (lambda there, jobs: jobs.write_text(jobs.read_text() + SERVING), "s: expected bundle = a file to serve"),
        (
            lambda there, jobs: jobs.write_text(jobs.read_text().replace('config = "run.toml"', "", 1)),
            "a: expected config",
        ),
    ],
)
def test_what_cannot_run_here(files: tuple[Path, Path], tmp_path: Path, change: object, words: str) -> None:
    change(*files)  # type: ignore[operator]
    _, stderr = msedge("cluster", "run", *files, "--folder", tmp_path / "run", code=3)
    assert words in stderr and not (tmp_path / "run" / "journal.jsonl").exists()
