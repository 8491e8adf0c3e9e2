"""What tests of native code share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lite_runtime.native import build, wheel
from lite_runtime.native.target import host


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime that brings the walker of this machine's target; its cache is empty."""
    target = host()
    assert target is not None
    build.prepare(["walker"])
    monkeypatch.setattr(build, "families", lambda: ("walker",))
    wheel.pack(str(tmp_path / "native"), [target.name])
    monkeypatch.setattr(build, "NATIVE", str(tmp_path / "native"))
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_images", {})
    build._native.cache_clear()
    yield tmp_path
    build._native.cache_clear()
