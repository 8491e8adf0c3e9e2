"""Cold starts, each in a separate process."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edge.measuring.contest import Absent, contest
from edge.measuring.footprint import BASE, footprints
from edge.peers import apart
from lite_runtime.errors import MsedgeError
from tests.edge.conftest import Small


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_every_contender_starts_from_nothing(small: Small, peer: str) -> None:
    result = contest(small.source, against=[peer], rounds=3, seconds=0.1, backend="reference")
    base, ours, other = footprints(result, small.source, backend="reference", rounds=1)
    assert (base.name, ours.name, other.name) == (BASE, "msedge", peer)
    assert min(base.seconds, ours.seconds, other.seconds) > 0
    assert 0 < base.peak_bytes < min(ours.peak_bytes, other.peak_bytes)


def test_the_last_output_of_a_runtime_that_dies_is_reported(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = tmp_path / "first.py"
    dying.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(apart, "_SCRIPT", dying)
    model = tmp_path / "m.onnx"
    shutil.copy(small.source, model)
    result = contest(model, against=["onnxruntime"], rounds=3, seconds=0.1, backend="reference")
    assert result.absent == (Absent("onnxruntime", "onnxruntime crashed on m.onnx: SIGSEGV"),)


def test_what_a_process_says_when_it_fails_is_kept(small: Small, tmp_path: Path) -> None:
    inputs = apart.write_inputs(tmp_path / "inputs.npz", {"nothing": np.zeros(1)})
    with pytest.raises(MsedgeError, match=r"(?s)onnxruntime failed on small\.onnx .*nothing"):
        apart.cold("onnxruntime", small.source, 1, inputs)
