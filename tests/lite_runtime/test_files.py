"""Temporary files of killed processes are deleted, those of running ones and other files are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lite_runtime import _files
from lite_runtime._files import locked, sweep, write_atomically

STUCK = """
import os, sys, time
from lite_runtime._files import write_atomically
os.fsync = lambda handle: (print("writing", flush=True), time.sleep(600))
write_atomically(sys.argv[1], b"x" * 1000)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written a temporary file and does not come to the renaming."""
    with subprocess.Popen([sys.executable, "-c", STUCK, tmp_path / "run"], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None and made.stdout.readline() == "writing\n"
        yield made
        made.kill()


def left(folder: Path) -> list[Path]:
    return sorted(folder.glob(".msedge-*"))


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_killed_writers_file_is_deleted_by_the_next_one(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    (file,) = left(tmp_path)
    assert file.stat().st_size == 1000
    aged(file, 2 * _files.YOUNG)
    write_atomically(tmp_path / "run", b"new")
    assert left(tmp_path) == [] and (tmp_path / "run").read_bytes() == b"new"


def test_a_running_writers_file_stays_however_old(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    (file,) = left(tmp_path)
    aged(file, 10 * _files.OLD)
    assert sweep(tmp_path) == 0 and file.exists()
    writer.kill()
    writer.wait()
    assert sweep(tmp_path) == 1 and not file.exists()


def test_young_files_and_files_of_others_stay(tmp_path: Path) -> None:
    young, old = tmp_path / f".msedge-{0:016x}.tmp", tmp_path / f".msedge-{1:016x}.tmp"
    others = [tmp_path / name for name in (".msedge-1.tmp", "run.tmp", ".msedge-records-0123456789abcdef.tmp")]
    for path in (young, old, *others):
        path.write_bytes(b"x")
        aged(path, 0 if path is young else 10 * _files.OLD)
    folder, link = tmp_path / f".msedge-{2:016x}.tmp", tmp_path / f".msedge-{3:016x}.tmp"
    folder.mkdir()
    link.symlink_to(others[1])
    assert sweep(tmp_path) == 1
    assert {*tmp_path.iterdir()} == {young, *others, folder, link}
    assert sweep(tmp_path / "none") == 0


@pytest.mark.parametrize(("age", "deleted"), [(2 * _files.YOUNG, 0), (2 * _files.OLD, 1)])
def test_without_locks_only_old_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, deleted: int
                                         ) -> None:  # fmt: skip
    monkeypatch.setattr(_files, "LOCKS", False)
    path = tmp_path / f".msedge-{0:016x}.tmp"
    path.write_bytes(b"x")
    aged(path, age)
    assert sweep(tmp_path) == deleted
    write_atomically(tmp_path / "run", b"new")
    assert (tmp_path / "run").read_bytes() == b"new"


def test_a_lock_is_of_one_holder(tmp_path: Path) -> None:
    held = locked(tmp_path / "lock")
    assert held is not None and locked(tmp_path / "lock") is None
    os.close(held)
    again = locked(tmp_path / "lock")
    assert again is not None
    os.close(again)
    with pytest.raises(FileNotFoundError):
        locked(tmp_path / "nothing" / "lock")
