"""The machine's limits: kernels that compute what they state, figures that are stored and read again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.measuring import roofline as module
from edge.measuring.roofline import LINES, SIZES, Roofline, roofline
from lite_runtime.native import build
from lite_runtime.native.target import host

native = pytest.mark.skipif(not build.available(), reason="no kernels run on this machine")
SOME = Roofline("a machine", "some", 1, "2026-01-01", 100e9, 400e9, (200e9, 100e9, 90e9, 60e9, 40e9))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measurements that are done at once, and a cache folder of our own."""
    for name, value in (("SECONDS", 1e-5), ("PATIENCE", 0.0), ("SIZES", (1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16))):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.build, "cache_folder", lambda: str(tmp_path))
    return tmp_path


@native
def test_reading_reads_every_byte_as_often_as_asked() -> None:
    target = host()
    assert target is not None
    read = build.function("peak", "read", *[ctypes.c_int64] * 4)
    words = np.arange(3 * LINES * target.lanes, dtype=np.int32)
    sums = np.zeros(LINES * target.lanes, np.int32)
    read(words.ctypes.data, 3, 2, sums.ctypes.data)
    np.testing.assert_array_equal(sums, 2 * words.reshape(3, -1).sum(0))


@native
@pytest.mark.parametrize("name", ["f32", "int8", "int16"])
def test_chains_go_on_from_their_sums(name: str) -> None:
    target = host()
    assert target is not None
    dtype: Callable[..., np.generic] = np.float32 if name == "f32" else np.int32
    sums = np.full(module.CHAINS * target.lanes, dtype(5))
    sums[: 2 * target.lanes] = dtype(1)  # both factors
    # A round adds the factors' product. One factor of int16 is the sum itself, which doubles.
    wanted = 8 * sums if name == "int16" else sums + dtype(3)
    call = build.function("peak", name, ctypes.c_int64, ctypes.c_int64)
    call(3, sums.ctypes.data)
    np.testing.assert_array_equal(sums, wanted)


@native
@pytest.mark.parametrize("threads", [1, 2])
def test_a_measurement_is_kept(quick: Path, threads: int) -> None:
    first = roofline(threads)
    assert first is not None and first.f32 > 0 and first.int8 > 0 and len(first.bytes) == len(SIZES)
    assert f"{threads} thread" in first.text
    assert roofline(threads) == first
    (kept,) = quick.glob("roofline-*.json")
    kept.write_text(kept.read_text().replace(first.machine, "another machine"))
    assert roofline(threads) is not None and "another machine" not in kept.read_text()
    kept.write_text("{}")
    assert roofline(threads) is not None


@native
def test_a_measurement_that_others_could_have_written_does_not_count(quick: Path) -> None:
    assert roofline() is not None
    (kept,) = quick.glob("roofline-*.json")
    kept.write_text(kept.read_text().replace("20", "19", 1))
    kept.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="measured again"):
        assert roofline() is not None
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_text()
    quick.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="chmod go-w"):
        assert roofline() is not None
    quick.chmod(0o700)
    assert kept.read_text() == before


@native
def test_a_new_measurement_replaces_the_stored_one(quick: Path) -> None:
    held = roofline()
    assert held is not None
    (kept,) = quick.glob("roofline-*.json")
    kept.write_text(kept.read_text().replace(held.date, "2001-01-01"))
    again, afresh = roofline(), roofline(afresh=True)
    assert again is not None and again.date == "2001-01-01"
    assert afresh is not None and afresh.date == held.date and "2001" not in kept.read_text()


def test_without_kernels_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "host", lambda: None)
    assert roofline() is None


def test_the_roof_is_the_slower_of_arithmetic_and_memory() -> None:
    assert SOME.seconds("gemm.f32_gemm_2", 10**9, 1000) == pytest.approx(0.01)
    assert SOME.seconds("qgemm.x8_gemm_2", 10**9, 1000) == pytest.approx(0.0025)
    assert SOME.seconds("quantize.f32_quantize", 10**9, 1000) == pytest.approx(0.01)
    assert SOME.seconds("gemm.f32_gemm_2", 0, SIZES[0]) == pytest.approx(SIZES[0] / 200e9)
    assert SOME.seconds("gemm.f32_gemm_2", 0, 1 << 40) == pytest.approx((1 << 40) / 40e9)
    between = SOME.seconds("gemm.f32_gemm_2", 0, 1 << 20)
    assert (1 << 20) / 200e9 < between < (1 << 20) / 100e9
    assert SOME.seconds("reference", 0, 0) == 0


def test_a_faster_machine_has_a_lower_roof() -> None:
    assert replace(SOME, f32=200e9).seconds("gemm", 10**9, 0) < SOME.seconds("gemm", 10**9, 0)
