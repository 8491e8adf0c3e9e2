"""The comparison of optimisers, on a hundredth of its data: all of them train, and the table has a row for each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.optimizers.__main__ import main
from benchmarks.optimizers.contest import Curve, steps_to


def test_a_short_contest(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(0).integers(97, 123, 4000).astype(np.uint8)
    (tmp_path / "tinyshakespeare.txt").write_bytes(np.repeat(words, 2).tobytes())
    said = f"x --data {tmp_path} --task tiny --trials 1 --steps 4 --seeds 1 --every 2 --json {tmp_path}/curves.json"
    monkeypatch.setattr(sys, "argv", [*said.split(), "--only", "adamw", "thor", "muon"])
    main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows[2:]] == ["adamw", "thor", "muon"]
    curves = json.loads((tmp_path / "curves.json").read_text())["curves"]
    for (found,) in curves.values():
        assert len(found["losses"]) == 2 and all(1 < loss < 10 for loss in found["losses"])
        assert 0 < found["seconds"] <= found["peak"] * 4


def test_steps_to_a_target_lie_between_measurements() -> None:
    curves = [Curve(10, losses, 0.0, 0.0) for losses in ((3.0, 2.0, 1.0), (5.0, 2.0, 1.0))]
    assert steps_to(3.0, curves) == 15.0 and steps_to(4.5, curves) == 10.0 and steps_to(0.5, curves) is None
