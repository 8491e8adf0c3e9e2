"""Models whose kernels are not compiled: answered by reference at once, natively when the kernels are there."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.client import Client
from edge.gateway.models.kernels import Kernels
from edge.gateway.protocol import numbers
from lite_runtime.native import build
from tests.edge.gateway.live import live, scaled
from tests.waiting import until

pytestmark = pytest.mark.skipif(not build._compiler(), reason="needs numba")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache without kernels; what this process has loaded counts as not loaded."""
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_images", {"walker": build.image("walker")})
    monkeypatch.setattr(numbers, "_KEPT", [])
    build._path.cache_clear()
    yield tmp_path / "cache"
    build._path.cache_clear()


class Compiler:
    """In place of the compiler: takes the families, and finishes when `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path, home: str) -> None:
        self.go, self.asked, self.fails = threading.Event(), [], ""
        self._cache, self._home = cache, home
        monkeypatch.setattr(build, "prepare", self.prepare)

    asked: list[str]

    def prepare(self, wanted: list[str], *, progress: Callable[[int, int], None], **_: Any) -> None:
        self.asked += wanted
        while not self.go.wait(0.02):
            progress(0, len(wanted))
        if self.fails:
            raise build.BuildError(self.fails)
        for family in wanted:
            there = Path(build._path(family, build.host()))  # type: ignore[arg-type]
            there.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            there.write_bytes((Path(self._home) / "kernels" / there.name).read_bytes())


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Compiler:
    home = build.cache_folder()
    build.prepare(["elementwise", "jsontext"])  # there in the suite's cache
    request.getfixturevalue("empty")
    return Compiler(monkeypatch, tmp_path / "cache", home)


def test_answers_at_once_and_natively_later(tmp_path: Path, compiler: Compiler) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there, Client(there.address) as client:
        x = np.ones((3, 4), np.float32)
        np.testing.assert_array_equal(client.infer("m", {"x": x})["y"], 2 * x)
        (served,) = there.gateway.repository.served()
        assert served.awaits and served.model.cost({"x": x}).native == 0
        until(lambda: there.gateway.repository.kernels.state.of > 0)
        status = there.gateway.status()
        assert status["kernels"]["of"] > 0 and status["models"][0]["compiling"]
        text = there.gateway.metrics("")[0].decode()
        assert 'msedge_model_compiling{model="m",version="1"} 1' in text
        assert "msedge_kernels_missing 0" not in text
        compiler.go.set()
        until(lambda: not served.awaits)
        assert served.model.cost({"x": x}).native == 1
        np.testing.assert_array_equal(client.infer("m", {"x": x})["y"], 2 * x)
        until(lambda: there.gateway.repository.kernels.state.of == 0)
        assert not there.gateway.status()["models"][0]["compiling"]
        assert len(compiler.asked) == len(set(compiler.asked)) and "jsontext" in compiler.asked
        until(lambda: "version runs natively" in there.log.getvalue())


def test_requests_go_on_during_the_exchange(tmp_path: Path, compiler: Compiler) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there, Client(there.address) as client:
        wrong, ended = [], threading.Event()

        def ask() -> None:
            x = np.arange(4, dtype=np.float32)[None]
            while not ended.is_set():
                if not np.array_equal(client.infer("m", {"x": x})["y"], 2 * x):
                    wrong.append(x)

        thread = threading.Thread(target=ask)
        thread.start()
        (served,) = there.gateway.repository.served()
        compiler.go.set()
        until(lambda: not served.awaits)
        time.sleep(0.05)
        ended.set()
        thread.join()
        assert not wrong


def test_kernels_that_cannot_be_compiled(tmp_path: Path, compiler: Compiler) -> None:
    compiler.fails = "no disk"
    compiler.go.set()
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there, Client(there.address) as client:
        (served,) = there.gateway.repository.served()
        until(lambda: "kernels cannot be compiled" in there.log.getvalue() and not served.awaits)
        x = np.ones((1, 4), np.float32)
        np.testing.assert_array_equal(client.infer("m", {"x": x})["y"], 2 * x)
        assert "no disk" in there.gateway.status()["kernels"]["problem"]


def test_the_end_does_not_wait_for_a_compilation(tmp_path: Path, compiler: Compiler) -> None:
    begun = time.monotonic()
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there:
        until(lambda: there.gateway.repository.kernels.state.of > 0)
    assert time.monotonic() - begun < 60 and not compiler.go.is_set()


def test_compilers_end_with_the_process(empty: Path) -> None:
    """The real compiler, ended by its caller."""
    kernels = Kernels(lambda event, facts: None)

    async def run() -> bool:
        asyncio.get_running_loop().call_later(1.0, kernels.close)
        return await kernels.compile(["conv", "gemm", "depthwise"])

    begun = {name for name in os.listdir("/proc") if name.isdigit()}
    assert not asyncio.run(run())
    left = [name for name in os.listdir("/proc") if name.isdigit() and name not in begun and _compiles(name)]
    assert not left


def _compiles(pid: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return b"lite_runtime.native.compile" in command and parent == str(os.getpid())
