"""The demo, whole: what a newcomer runs first must hold what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge.cli.app import app


@pytest.mark.slow
def test_the_device_runs_the_clouds_model(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
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


def test_a_model_that_is_not_good_enough_fails_the_check() -> None:
    done = CliRunner().invoke(app, ["demo", "--epochs", "1"])
    assert done.exit_code == 1, done.output
    assert "NOT good enough" in done.stdout and "ResNet-8" in done.stdout
