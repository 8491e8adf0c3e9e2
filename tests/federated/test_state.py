"""A device's own state survives whatever happens to the device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from federated.errors import FederatedError
from federated.packed import pack
from federated.state import DeviceStore, Kept

KEPT = Kept({"head": {"w": np.arange(6, dtype=np.float32)}}, {"top": np.ones(3, np.float32)}, 4, "fedrep/abc")


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path / "deep" / "er", "digits", "node-1")
    assert store.load("fedrep/abc") == Kept(schema="fedrep/abc")
    store.save(KEPT)
    back = DeviceStore(tmp_path / "deep" / "er", "digits", "node-1").load("fedrep/abc")
    assert back.round == 4
    np.testing.assert_array_equal(back.personal["head"]["w"], KEPT.personal["head"]["w"])
    np.testing.assert_array_equal(back.residual["top"], KEPT.residual["top"])
    assert os.stat(store.folder).st_mode & 0o077 == 0


def test_devices_and_federations_do_not_share(tmp_path: Path) -> None:
    DeviceStore(tmp_path, "digits", "a").save(KEPT)
    assert DeviceStore(tmp_path, "digits", "b").load("fedrep/abc").round == 0
    assert DeviceStore(tmp_path, "words", "a").load("fedrep/abc").round == 0


def test_another_algorithm_starts_anew(tmp_path: Path) -> None:
    DeviceStore(tmp_path, "digits", "a").save(KEPT)
    assert DeviceStore(tmp_path, "digits", "a").load("ditto/abc") == Kept(schema="ditto/abc")


def test_forget(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path, "digits", "a")
    assert not store.forget()
    store.save(KEPT)
    assert store.forget()
    assert store.load("fedrep/abc").round == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [({"version": 2}, "newer|install"), ({"node": "b"}, "another device"), ({"round": -1}, "expected a round")],
)
def test_files_of_others_are_refused(tmp_path: Path, change: dict, says: str) -> None:
    store = DeviceStore(tmp_path, "digits", "a")
    facts = {"version": 1, "federation": "digits", "node": "a", "round": 1, "schema": "s"} | change
    store.path.write_bytes(pack(facts, {}))
    with pytest.raises(FederatedError, match=says):
        store.load("s")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path, "digits", "a")
    store.save(KEPT)
    store.path.write_bytes(store.path.read_bytes()[:-9])
    with pytest.raises(FederatedError, match="digest"):
        store.load("fedrep/abc")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FederatedError, match="choose a folder"):
        DeviceStore(tmp_path / "file", "digits", "a").save(KEPT)


WRITER = """
import sys, numpy as np
from federated.state import DeviceStore, Kept
store = DeviceStore(sys.argv[1], "f", "n")
for i in range(1, 1_000_000):
    store.save(Kept({"w": np.full(20_000, i, np.float32)}, {}, i, "s"))
    if i == 1:
        print("going", flush=True)
"""


def test_kill_while_saving_leaves_a_whole_state(tmp_path: Path) -> None:
    for delay in (0.003, 0.011, 0.02):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        kept = DeviceStore(tmp_path, "f", "n").load("s")
        assert kept.round >= 1
        assert set(np.unique(kept.personal["w"])) == {kept.round}
