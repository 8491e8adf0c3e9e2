"""The demo, whole: what a newcomer runs first must hold what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edge.cli.app import app
from edge.demo import loop


@pytest.mark.slow
def test_the_device_runs_the_clouds_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In earnest once, as JSON; what it came to, as a table, good and not good enough."""
    came: list[loop.Outcome] = []
    real = loop.run_loop

    def kept(*args: Any, **kwargs: Any) -> loop.Outcome:
        came.append(real(*args, **kwargs))
        return came[0]

    monkeypatch.setattr(loop, "run_loop", kept)
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
    _shown(came[0], monkeypatch)


def _shown(good: loop.Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit of the verdict fails the check by itself; the tables are whole without a terminal."""
    fleet = replace(good.fleet, devices=tuple(replace(row, own=row.cloud) for row in good.fleet.devices))
    less = {"accuracy_cloud": 0.96, "accuracy_device": 0.96, "difference_device": 2e-4, "accuracy_int8": 0.9}
    poor = [replace(good, **{name: value}) for name, value in less.items()] + [replace(good, fleet=fleet)]
    monkeypatch.setenv("COLUMNS", "40")
    for outcome, code in ((good, 0), *((one, 1) for one in poor)):
        monkeypatch.setattr(loop, "run_loop", lambda *_, outcome=outcome, **__: outcome)
        done = CliRunner().invoke(app, ["demo", "--epochs", "1"])
        assert done.exit_code == code, done.output
        assert ("NOT good enough" in done.stdout) == bool(code) and "ResNet-8" in done.stdout
        assert "…" not in done.stdout and "× onnxruntime's speed" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
