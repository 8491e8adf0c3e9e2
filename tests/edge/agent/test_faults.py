"""Real processes that are killed, full disks and power failures: `benchmarks.updates_faults` with small counts."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.updates_faults import tracing
from benchmarks.updates_faults.blocks import Write, after, recording
from benchmarks.updates_faults.filling import filled
from benchmarks.updates_faults.images import made, mounted, possible
from benchmarks.updates_faults.killing import killed
from benchmarks.updates_faults.tearing import torn
from benchmarks.updates_faults.world import World
from tests.sources import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are traced by Linux's ptrace")


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a process of its own, if this one has JAX's threads from other tests: it forks."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        if "jax" not in sys.modules:
            return test(**fixtures)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
        command += [f"{__file__}::{test.__name__}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        if "1 skipped" in done.stdout:
            pytest.skip(done.stdout[-500:])
        assert "1 passed" in done.stdout, done.stdout
        return None

    return run


def need_tracing() -> None:
    try:
        tracing.run(lambda: None)
    except OSError as error:
        pytest.skip(f"this system allows no tracing: {error}")


def need_images(tmp_path: Path) -> None:
    need_tracing()
    if why := possible(tmp_path):
        pytest.skip(f"no images can be mounted here: {why}")


@apart
def test_a_process_is_killed_at_a_system_call() -> None:
    need_tracing()

    def work() -> None:
        for _ in range(50):
            os.stat("/")

    whole = tracing.run(work, name=True)
    assert whole.code == 0 and whole.points >= 100 and len(whole.calls) == whole.points
    cut = tracing.run(work, 60)
    assert cut.killed and cut.points == 60


@pytest.mark.slow
@apart
def test_updates_that_are_killed(tmp_path: Path) -> None:
    need_tracing()
    found = killed(World(tmp_path / "hub"), tmp_path / "device", 6, seed=random.randrange(1 << 30))
    assert found["kills"] == 6 and found["neither_ran"] == found["left_over"] == 0


@pytest.mark.slow
@apart
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    need_images(tmp_path)
    with mounted(made(tmp_path / "full.img", 12), tmp_path / "full") as at:
        found = filled(World(tmp_path / "hub"), at / "device", 3, seed=random.randrange(1 << 30))
    assert found["old_ran"] + found["new_ran"] == 3


@apart
def test_a_file_system_that_is_read_only(tmp_path: Path) -> None:
    need_images(tmp_path)
    world, image, at = World(tmp_path / "hub"), made(tmp_path / "small.img", 12), tmp_path / "at"
    world.offer("1")
    with mounted(image, at):
        assert world.update(at / "device") == ""
        world.offer("2")
        subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True)
        assert "read-only" in world.update(at / "device").lower()
        assert world.found(at / "device") == ("1", "")
        subprocess.run(["mount", "-o", "remount,rw", str(at)], check=True)
        assert world.update(at / "device") == ""
        assert world.found(at / "device") == ("2", "")


@pytest.mark.slow
@apart
def test_a_power_failure(tmp_path: Path) -> None:
    need_images(tmp_path)
    try:
        with recording(made(tmp_path / "probe.img", 8), tmp_path / "probe", tmp_path / "log"):
            pass
    except OSError as error:
        pytest.skip(f"FUSE cannot be used here: {error}")
    found = torn(World(tmp_path / "hub"), tmp_path, 4, seed=random.randrange(1 << 30))
    assert found["old_ran"] + found["new_ran"] == 4 and found["new_ran"] >= 1 and found["flushes"] > 10


def test_what_a_disk_has_after_a_power_failure() -> None:
    base = bytes(4096)
    writes = [Write(0, b"a" * 1024), Write(-1, None), Write(1024, b"b" * 1024), Write(2048, b"c" * 1024)]
    seen = {bytes(after(base, writes, random.Random(seed))) for seed in range(200)}
    assert all(one[:1024] == b"a" * 1024 for one in seen)  # it was flushed
    assert any(one[1024:1536] != one[1536:2048] for one in seen)  # torn
    assert any(one[1024:2048] == bytes(1024) and one[2048:3072] == b"c" * 1024 for one in seen)  # reordered
    assert {bytes(after(base, [*writes, Write(-1, None)], random.Random(seed))) for seed in range(20)} == {
        b"a" * 1024 + b"b" * 1024 + b"c" * 1024 + bytes(1024)
    }
