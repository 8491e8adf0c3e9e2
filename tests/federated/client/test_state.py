"""State of a device: it survives a crash, and a repeated round starts from the same state."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from federated.client.state import StateStore
from federated.errors import FederatedError


def tree(value: float) -> dict[str, dict[str, np.ndarray]]:
    return {"personal": {"w": np.full(3, value, np.float32)}}


def test_a_round_starts_from_an_earlier_one(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")
    assert store.load("a", "run", 1) is None
    for number in (1, 3, 4):
        store.save("a", "run", number, tree(number))
    for before, found in ((5, 4), (4, 3)):
        kept = store.load("a", "run", before)
        assert kept is not None and kept["personal"]["w"][0] == found
    assert store.load("a", "run", 3) is None, "the newest two are kept"
    store.save("a", "run", 4, tree(-4))
    kept = StateStore(tmp_path / "state").load("a", "run", 5)
    assert kept is not None and kept["personal"]["w"][0] == -4


def test_devices_and_runs_do_not_share() -> None:
    store = StateStore()
    store.save("a", "run", 1, tree(1))
    assert store.load("b", "run", 9) is None and store.load("a", "other", 9) is None
    store.forget("a")
    assert store.load("a", "run", 9) is None


def test_files_of_other_programs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and long enough to be read as one" * 40)
    with pytest.raises(FederatedError, match="choose another file"):
        StateStore(tmp_path / "text")
    with pytest.raises(FederatedError, match="choose another file"):
        StateStore(tmp_path / "no" / "folder")
    StateStore(tmp_path / "newer").close()
    with sqlite3.connect(tmp_path / "newer") as base:
        base.execute("pragma user_version = 2")
    base.close()
    with pytest.raises(FederatedError, match="version 2"):
        StateStore(tmp_path / "newer")


WRITER = """
import sys, numpy as np
from federated.client.state import StateStore
store = StateStore(sys.argv[1])
for number in range(1, 1_000_000):
    store.save("a", "run", number, {"w": np.full(20_000, number, np.float32)})
    if number == 1:
        print("going", flush=True)
"""


def test_killing_while_saving_leaves_a_complete_state(tmp_path: Path) -> None:
    for delay in (0.003, 0.02):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "state")], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = StateStore(tmp_path / "state")
        kept = store.load("a", "run", 1_000_000)
        store.close()
        assert kept is not None and len(set(kept["w"])) == 1
