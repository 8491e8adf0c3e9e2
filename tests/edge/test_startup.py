"""`benchmarks.startup`: every contender starts, and its figures are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import startup
from lite_runtime.native import build

MODEL = Path(__file__).parents[3] / "shared" / "models" / "mlperftiny_ic_resnet8_fp32.tflite"


@pytest.mark.slow
@pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/models")
@pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")
def test_every_contender_starts() -> None:
    rows = {row.name: row for row in startup.starts(MODEL, 1)}
    assert {startup.NUMPY, startup.OURS, startup.FIRST} <= set(rows) <= {*startup.SCRIPTS, startup.FIRST}
    base = rows.pop(startup.NUMPY)
    assert base.installed_bytes == 0
    for row in rows.values():
        assert row.peak_bytes > base.peak_bytes > 1e6 and row.installed_bytes > 1e6
        assert row.seconds >= row.least_seconds > 0
