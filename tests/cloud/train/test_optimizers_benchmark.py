"""The comparison of optimisers, on a hundredth of its data: all of them train, and the table has a row for each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.optimizers.__main__ import main
from benchmarks.optimizers.contest import Curve, steps_to


def test_a_contest_that_goes_on_from_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = np.random.default_rng(0).integers(97, 123, 4000).astype(np.uint8)
    (tmp_path / "tinyshakespeare.txt").write_bytes(np.repeat(words, 2).tobytes())
    journal = tmp_path / "tiny.journal"
    said = f"x --data {tmp_path} --task tiny --trials 1 --steps 4 --seeds 1 --every 2 --journal {journal}"
    monkeypatch.setattr(sys, "argv", [*said.split(), "--minutes", "-1"])
    assert main() == 3 and len(journal.read_text().splitlines()) == 1
    monkeypatch.setattr(sys, "argv", [*said.split(), "--only", "thor", "muon"])
    capsys.readouterr()
    assert main() == 0
    table = capsys.readouterr().out
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows[2:]] == ["adamw", "thor", "muon"]
    held = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    times = {line["key"].split("\t")[1]: line["figures"] for line in held if line["key"].startswith("times")}
    curves = [line["figures"] for line in held if not line["key"].startswith("times")]
    assert len(curves) == 6 and all(1 < loss < 10 for found in curves for loss in found["losses"])
    assert [*times] == ["adamw", "thor", "muon"] and [*times["muon"]] == ["adamw", "muon"]
    assert all(len(found) == 3 and min(found) > 0 for pair in times.values() for found in pair.values())
    monkeypatch.setattr(sys, "argv", [*said.split(), "--only", "thor", "muon", "--minutes", "-1"])
    assert main() == 0 and capsys.readouterr().out == table  # everything was measured


def test_steps_to_a_target_lie_between_measurements() -> None:
    curves = [Curve(10, losses) for losses in ((3.0, 2.0, 1.0), (5.0, 2.0, 1.0))]
    assert steps_to(3.0, curves) == 15.0 and steps_to(4.5, curves) == 10.0 and steps_to(0.5, curves) is None
