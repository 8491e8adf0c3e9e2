"""Kernels are compiled while the demo trains: it continues, waits for them when needed, and reports failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from edge.demo.kernels import preparing
from lite_runtime.errors import MissingExtraError
from lite_runtime.native import build
from lite_runtime.native.target import host
from tests.waiting import PATIENCE


def test_the_demo_goes_on_while_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile, told = threading.Event(), []

    def prepare(wanted: Iterable[str], progress: Callable[[int, int], None]) -> list[str]:
        assert meanwhile.wait(PATIENCE)
        progress(2, 2)
        return []

    monkeypatch.setattr(build, "prepare", prepare)
    with preparing(lambda *done: told.append(done)) as wait:
        assert not told
        meanwhile.set()
        wait()
        assert told == [(2, 2)]


@pytest.mark.parametrize(
    ("error", "raised"), [(build.BuildError("no luck"), True), (MissingExtraError("numba", "jit", "why"), False)]
)
def test_a_failure_is_raised_when_kernels_are_needed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: bool
) -> None:
    """Without a compiler nothing is compiled ahead, and code that needs a kernel raises an error."""

    def prepare(wanted: Iterable[str], progress: Any) -> list[str]:
        raise error

    monkeypatch.setattr(build, "prepare", prepare)
    with preparing(lambda *done: None) as wait:
        if raised:
            with pytest.raises(build.BuildError, match="no luck"):
                wait()
        else:
            wait()


@pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
def test_compiling_reports_its_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capfd: Any) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path))
    build._path.cache_clear()
    told: list[tuple[int, int]] = []
    try:
        assert build.prepare(["peak", "lookup"], progress=lambda *done: told.append(done)) == ["peak", "lookup"]
        assert told[-1] == (2, 2) and told == sorted(told) and {count for _, count in told} == {2}
        assert capfd.readouterr().err == ""
        assert build.prepare(["peak", "lookup"], progress=lambda *done: told.append(done)) == []
    finally:
        build._path.cache_clear()
