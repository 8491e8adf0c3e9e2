"""The complete demo: a newcomer runs it first, so its claims must be true."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge.cli.app import app
from edge.demo import loop
from edge.demo.fleet_loop import DeviceRow, FleetOutcome
from edge.demo.kernels import FAMILIES
from edge.demo.serve_loop import Load, ServeOutcome
from edge.measuring.measure import Ratio
from lite_runtime.native import build
from lite_runtime.native.target import host
from tests.conftest import ROOT


@pytest.mark.slow
def test_the_device_runs_the_clouds_model(tmp_path: Path) -> None:
    """In a separate process: with the flags that make XLA compile quickly, training takes three times as long. Its
    cache has the kernels that `make demo` compiles beforehand, and it needs no other."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    cache = tmp_path / "cache"
    environment["MSEDGE_CACHE"] = str(cache)
    _copy_kernels(FAMILIES, cache / "kernels")
    command = [sys.executable, "-m", "edge.cli", "demo", "--keep", str(tmp_path), "--json"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compiling kernels" not in done.stderr and "kernel families compiled" not in done.stderr
    made = json.loads(done.stdout)
    assert min(made["accuracy_cloud"], made["accuracy_device"]) >= 0.97
    assert made["difference_device"] <= 1e-4
    assert made["bundle_bytes"] == (tmp_path / "digits.mslite").stat().st_size
    assert made["accuracy_int8"] >= made["accuracy_device"] - 0.01
    assert made["int8_bytes"] == (tmp_path / "digits.int8.mslite").stat().st_size < 0.4 * made["bundle_bytes"]
    assert "Layer by layer" in (tmp_path / "digits.int8.html").read_text()
    assert "epoch 20/20" in done.stderr
    served = made["served"]
    assert served["ok"] and served["everybody"]["accuracy"] == pytest.approx(made["accuracy_device"], abs=0.01)
    assert served["personal"]["accuracy"] > served["common"]["accuracy"]
    assert served["answered_by_own"] == served["personal"]["requests"] > 300


def _copy_kernels(families: Sequence[str], folder: Path) -> None:
    target = host()
    if target is None:
        return
    build.prepare(families)
    folder.mkdir(mode=0o700, parents=True)
    for family in families:
        shutil.copy(build._path(family, target), folder)


LOAD, RATIO = Load(3000, 0.98, 12345.6, 123.45e-6, 31.9), Ratio(13.91, 13.20, 14.35)
DEVICES = tuple(DeviceRow(f"device-{i}", i < 8, 0.31, 0.94) for i in range(10))
FLEET = FleetOutcome(DEVICES, 123_456, 300_000, 4.2, {"rounds": 3})
GOOD = loop.Outcome(
    78042, 1437, 360, 0.98, 0.98, 0.98, 1.2e-6, 3.4e-6, 319_488, 320_000, 120_000, 123.45e-6, 456.7e-6, RATIO,
    0.98, 120_000, 50_000, 88.8e-6, RATIO, FLEET, ServeOutcome(LOAD, replace(LOAD, accuracy=0.7), LOAD, 10, 3000),
)  # fmt: skip
POOR = {
    "cloud": replace(GOOD, accuracy_cloud=0.96),
    "device": replace(GOOD, accuracy_device=0.96),
    "logits": replace(GOOD, difference_device=2e-4),
    "int8": replace(GOOD, accuracy_int8=0.9),
    "fleet": replace(GOOD, fleet=replace(FLEET, devices=tuple(replace(row, own=row.cloud) for row in DEVICES))),
    "served": replace(GOOD, served=replace(GOOD.served, everybody=replace(LOAD, accuracy=0.9))),
}


@pytest.mark.parametrize("name", ["", *POOR])
def test_a_model_that_is_not_good_enough_fails_the_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit of the verdict fails it by itself; the tables are whole without a terminal, however narrow it is."""
    outcome = POOR.get(name, GOOD)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(loop, "run_loop", lambda *_, **__: outcome)
    done = CliRunner().invoke(app, ["demo", "--epochs", "1"])
    assert done.exit_code == bool(name), done.output
    assert ("NOT good enough" in done.stdout) == bool(name) and "ResNet-8" in done.stdout
    assert "…" not in done.stdout and "13.20–14.35" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last line is the verdict
