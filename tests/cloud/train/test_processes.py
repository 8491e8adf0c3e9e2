"""How a process finds the others; agreement between several processes."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import pytest

from cloud.errors import TrainError
from cloud.train.keeping import agreement
from cloud.train.keeping.agreement import Agreement
from cloud.train.many.processes import VARIABLES, Heartbeat, free_port, join, together


def said(*values: str) -> dict[str, str]:
    return {name: value for name, value in zip(VARIABLES, values, strict=True) if value}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (said("127.0.0.1:1", "2", ""), "MSEDGE_PROCESS is missing"),
        (said("", "2", "1"), "MSEDGE_COORDINATOR is missing"),
        (said("localhost", "2", "0"), "expected host:port, got 'localhost'"),
        (said("localhost:port", "2", "0"), "expected host:port"),
        (said("localhost:1", "two", "0"), "MSEDGE_PROCESSES: expected a whole number of at least 1, got 'two'"),
        (said("localhost:1", "2", "2"), "expected 0 to 1 of 2 processes, got 2"),
        ({"MSEDGE_DEVICES": "0"}, "MSEDGE_DEVICES: expected a whole number of at least 1, got '0'"),
    ],
)
def test_settings_that_make_no_sense(environment: dict[str, str], words: str) -> None:
    with pytest.raises(TrainError, match=words):
        join(environment)


def test_a_single_process() -> None:
    assert join({}) == join(said("127.0.0.1:1", "1", "0")) == join({"SLURM_JOB_ID": "7"}) == (0, 1)
    with pytest.raises(ValueError, match="as ever"), together({}) as where:
        assert where == (0, 1)
        raise ValueError("as ever")


def test_environment_variables_of_launchers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX finds the others by what SLURM and Open MPI say."""
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given: asked.append(given))
    join({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2"})
    join({"OMPI_MCA_orte_hnp_uri": "x", "OMPI_COMM_WORLD_SIZE": "2"})
    join(said("127.0.0.1:9", "3", "2"))
    assert asked == [(None, None, None), (None, None, None), ("127.0.0.1:9", 3, 2)]


def test_no_other_process_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise RuntimeError("deadline exceeded")

    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    with pytest.raises(TrainError, match=r"could not connect to the other processes at 127\.0\.0\.1:9: deadline"):
        join(said("127.0.0.1:9", "2", "0"))


def test_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "heart"
    path.touch()
    os.utime(path, (1, 1))
    heart = Heartbeat({"MSEDGE_HEARTBEAT": str(path)})
    heart.beat()
    assert path.stat().st_mtime > 1
    os.utime(path, (1, 1))
    heart.beat()
    assert path.stat().st_mtime == 1, "once a second is enough"
    Heartbeat({}).beat()


def test_a_free_port() -> None:
    assert 1024 <= free_port() < 1 << 16


def test_one_process_agrees_with_itself() -> None:
    assert Agreement().ask(True, False) == (True, False)


def test_several_processes_agree_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers for both, at the same steps, whatever their clocks say."""
    heard: list[list[int]] = []

    def both(numbers: list[int]) -> list[int]:
        heard.append(numbers)
        return [0, 1, 5]  # the other one wishes to stop, and has made five steps in its second

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(agreement, "most_of_all", both)
    asked = Agreement()
    assert asked.ask(False, False) == (False, True)
    assert [asked.ask(True, False) for _ in range(5)] == [(False, False)] * 4 + [(False, True)]
    assert asked.ask(False, False, now=True) == (False, True)
    assert [numbers[:2] for numbers in heard] == [[0, 0], [1, 0], [0, 0]] and all(n[2] >= 1 for n in heard)
