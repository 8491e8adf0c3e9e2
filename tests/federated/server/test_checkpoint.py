"""A server that was killed resumes, and ends with the same result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.config import Config, parse
from federated.errors import FederatedError
from federated.messages.packed import unpack
from federated.run import simulate
from federated.server import checkpoint
from federated.server.federation import Federation
from tests.federated.fleets import config, fleet

ROOT = Path(__file__).parents[3]


def leaves(path: Path) -> Any:
    body = unpack(path.read_bytes())[1]
    return {name: tree for name, tree in body.items() if name != "rows"}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in unpack(path.read_bytes())[1]["rows"].tobytes().splitlines()]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and np.array_equal(a, b)


# Dies by SIGKILL in round `at`: just before the checkpoint is written, or when so many devices have answered.
RUN = """
import os, signal, sys
from pathlib import Path
from federated.client import device
from federated.server import checkpoint, conduct
from federated.run import simulate
from tests.federated.fleets import fleet
from tests.federated.server.test_checkpoint import words
folder, name, at, where = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
save, train, seen = checkpoint.save, device.Device.train, []
def saving(path, federation):
    if where == "save" and federation.round == at:
        die()
    save(path, federation)
def training(self, message):
    answer = train(self, message)
    seen.append(self.name)
    if where == "train" and len(seen) == at:
        die()
    return answer
conduct.checkpoint.save = saving
device._KINDS = {**device._KINDS, "train": training}
simulate(words(folder, name), fleet(8))
"""


def words(folder: Path, name: str) -> Config:
    return config(
        algorithm={"name": name},
        rounds={"count": 5, "fraction": 0.7},
        codec={"up": ["feedback", "topk:0.5", "int8"]},
        state={"checkpoint": str(folder / "run"), "devices": str(folder / "devices")},
        evaluation={"every": 2, "held_out": 0.2},
    )


@pytest.mark.parametrize(("name", "at", "where"), [("scaffold", 3, "save"), ("fedadam", 8, "train")])
def test_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path, name: str, at: int, where: str) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    simulate(words(whole, name), fleet(8))
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(killed), name, str(at), where]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(rows_of(killed / "run")) == 2
    simulate(words(killed, name), fleet(8), resume=True)
    assert same(leaves(killed / "run"), leaves(whole / "run"))
    rows, expected = rows_of(killed / "run"), rows_of(whole / "run")
    for row in [*rows, *expected]:
        del row["seconds"]
    assert rows == expected


def kept(folder: Path, **sections: Any) -> Federation:
    return simulate(config(state={"checkpoint": str(folder / "run")}, **sections), fleet(3))


def test_everything_comes_back(tmp_path: Path) -> None:
    ended = kept(tmp_path, privacy={"clip": 0.5, "noise": "central", "multiplier": 1.0})
    back = checkpoint.load(tmp_path / "run", ended.config, ended.start)
    for name in ("run", "round", "attempt", "members", "rows", "turned_away", "account", "bound"):
        assert getattr(back, name) == getattr(ended, name), name
    assert back.epsilon() == ended.epsilon() is not None


def test_a_long_run_comes_back(tmp_path: Path) -> None:
    """Rows of thousands of rounds are more than a message may say."""
    ended = kept(tmp_path)
    ended.rows += [{"round": at, "details": ["x" * 300] * 20} for at in range(1000)]
    checkpoint.save(tmp_path / "run", ended)
    assert checkpoint.load(tmp_path / "run", ended.config, ended.start).rows == ended.rows


def test_a_resumed_run_may_be_longer(tmp_path: Path) -> None:
    kept(tmp_path, rounds={"count": 2})
    words = config(state={"checkpoint": str(tmp_path / "run")}, rounds={"count": 5})
    assert same(simulate(words, fleet(3), resume=True).state, simulate(config(rounds={"count": 5}), fleet(3)).state)


def test_other_runs_are_refused(tmp_path: Path) -> None:
    ended = kept(tmp_path)
    other = config(state={"checkpoint": str(tmp_path / "run")}, local={"steps": 9})
    with pytest.raises(FederatedError, match="its config is not this run's"):
        simulate(other, fleet(3), resume=True)
    start = type(ended.start)(ended.start.params, (), "another")
    with pytest.raises(FederatedError, match="its bundle is not this run's"):
        checkpoint.load(tmp_path / "run", ended.config, start)
    with pytest.raises(FederatedError, match=r"state\.checkpoint"):
        simulate(config(), fleet(3), resume=True)
    with pytest.raises(FederatedError, match="start a new run"):
        checkpoint.load(tmp_path / "none", ended.config, ended.start)


def test_damage_is_found(tmp_path: Path) -> None:
    ended = kept(tmp_path)
    data = (tmp_path / "run").read_bytes()
    for damaged in (data[:-3], data[:100], b"", data[:200] + b"x" + data[201:]):
        (tmp_path / "run").write_bytes(damaged)
        with pytest.raises(FederatedError, match="checkpoint"):
            checkpoint.load(tmp_path / "run", ended.config, ended.start)


def test_what_may_change_is_no_part_of_the_fingerprint() -> None:
    words = {"model": {"bundle": "m"}, "rounds": {"count": 3, "seed": 1}}
    same_run = {"model": {"bundle": "m"}, "rounds": {"count": 9, "seed": 1, "deadline": 3.0}, "report": {"json": "r"}}
    other = {"model": {"bundle": "m"}, "rounds": {"count": 3, "seed": 2}}
    one, two, three = (checkpoint.fingerprint(parse(each)) for each in (words, same_run, other))
    assert one == two != three
    bare = {"model": {"bundle": "m"}}
    assert checkpoint.fingerprint(parse(bare)) == checkpoint.fingerprint(parse({**bare, "rounds": {"count": 20}}))
