"""Predicting by columns; training by Ray's workers, where Ray is installed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud import zoo
from cloud.engine import lower
from cloud.errors import TrainError
from cloud.train.many.ray import Predictor, predict, ray_trainer

X = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same model as ONNX and as a bundle."""
    folder = tmp_path_factory.mktemp("models")
    model = zoo.mlp(64, 10)
    ir.save(model, folder / "m.onnx")
    converter.convert(model, output=folder / "m.mslite")
    return {kind: str(folder / f"m.{kind}") for kind in ("onnx", "mslite")}


@pytest.mark.parametrize("kind", ["onnx", "mslite"])
def test_columns_in_and_out(files: dict[str, str], kind: str) -> None:
    function = lower(zoo.mlp(64, 10))
    expected = function.apply(function.params, function.state, {"x": X}, train=False)[0]["logits"]
    found = Predictor(files[kind], keep=("row",))({"x": X, "row": np.arange(40), "other": X})
    assert sorted(found) == ["logits", "row"] and found["row"].tolist() == list(range(40))
    assert np.allclose(found["logits"], expected, atol=1e-5)
    with pytest.raises(TrainError, match=r"expected columns \['x', 'row'\], got \['x'\]: no \['row'\]"):
        Predictor(files[kind], keep=("row",))({"x": X})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_under_ray(files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers train, and one predicts."""
    pytest.importorskip("ray.train")
    import ray
    import ray.data
    from ray.train import RunConfig, ScalingConfig

    labels = (X.sum(1) > 0).astype(np.int32)
    np.savez(tmp_path / "data.npz", x=X, labels=labels)
    (tmp_path / "run.toml").write_text(
        f'[model]\nonnx = "{files["onnx"]}"\n[data]\nnpz = "data.npz"\nvalidation = 0.0\n'
        '[train]\nepochs = 2\nbatch = 8\n[parallel]\nmode = "data"\n'
        '[checkpoint]\nfolder = "kept"\n[export]\nonnx = "out.onnx"\n'
    )
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ray.init(num_cpus=3, include_dashboard=False)
    try:
        run = RunConfig(storage_path=str(tmp_path / "ray"))
        trainer = ray_trainer(tmp_path / "run.toml", scaling=ScalingConfig(num_workers=2), run=run)
        result = trainer.fit()
        assert result.error is None and result.metrics["epoch"] == 2 and np.isfinite(result.metrics["loss"])
        assert [path.name for path in sorted((tmp_path / "kept").iterdir())] == [f"step-{n:012d}" for n in (5, 10)]
        columns = ray.data.from_items([{"x": row} for row in X])
        rows = predict(columns, tmp_path / "out.onnx", batch_size=16, keep=["x"]).take_all()
        expected = Predictor(str(tmp_path / "out.onnx"))({"x": X})["logits"]
        found = {row["x"].tobytes(): row["logits"] for row in rows}
        assert len(rows) == 40 and np.allclose([found[x.tobytes()] for x in X], expected, atol=1e-5)
    finally:
        ray.shutdown()
