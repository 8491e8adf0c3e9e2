"""Networks for the speed table, and the quantised form that is fast in peers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import models
from benchmarks.comparison import weights_of
from benchmarks.models import MODELS, quantise_for_peers
from edge.peers.oracle import Oracle
from tests.edge.conftest import Small


def test_networks_built_here_run() -> None:
    model = MODELS["lstm2_100"]()
    onnx.checker.check_model(model)
    (scores,) = Oracle(model).run({"x": np.zeros((1, 100, 40), np.float32)}).values()
    assert scores.shape == (1, 12) and np.isfinite(scores).all()


def test_a_manifest_says_that_their_weights_are_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MODELS", {"lstm2_100": models.lstm2})
    (path,) = models.write(tmp_path)
    assert weights_of(path) == "random" == weights_of(tmp_path / "lstm2_100_int8.onnx")


def test_what_onnxruntime_quantises_is_near_and_whole(small: Small, tmp_path: Path) -> None:
    rows = {"x": np.random.default_rng(3).standard_normal((8, 3, 8, 8)).astype(np.float32)}
    path = tmp_path / "small.peers.onnx"
    quantise_for_peers(small.source, path, rows)
    stored = {t.data_type for t in onnx.load(path).graph.initializer if len(t.dims) == 4}
    assert stored == {onnx.TensorProto.INT8}
    got, expected = (Oracle(p).run(rows)["scores"] for p in (path, small.source))
    assert np.abs(got - expected).max() < 0.05 * np.ptp(expected)
