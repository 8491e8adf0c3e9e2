"""The training examples run unchanged, except that they are made smaller."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from tests.edge.cli.test_train import msedge

EXAMPLES = Path(__file__).parents[3] / "examples" / "training"
SMALL = {
    "digits": ["data.limit=128", "train.epochs=2", "model.options.filters=[4,8]", "export.quantize='none'"],
    "text": ["data.limit=64", "train.epochs=2", "model.options.width=16", "model.options.layers=1"],
    "keywords": [
        "train.epochs=2", "model.options.filters=4", "model.options.blocks=1", "data.options.path={folder}/words.npz",
    ],
    "mnist": ["data.limit=64", "train.epochs=2", "model.options.filters=[2,4]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_example(name: str, tmp_path: Path) -> None:
    assert set(SMALL) == {path.stem for path in EXAMPLES.glob("*.toml")}
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    random = np.random.default_rng(0)
    (tmp_path / "text.txt").write_text("so it goes, and so it went. " * 400)
    audio, each = random.integers(-9999, 9999, 60 * 4000).astype(np.int16), np.arange(60)
    np.savez(tmp_path / "words.npz", audio=audio, offsets=np.arange(61) * 4000, digit=each % 10, index=each)
    pixels, labels = random.integers(0, 255, (80, 28, 28), np.uint8), np.arange(80) % 10
    np.savez(tmp_path / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels[:20], y_test=labels[:20])
    changes = [word for change in SMALL[name] for word in ("--set", change.format(folder=tmp_path))]
    out, _ = msedge("train", tmp_path / f"{name}.toml", *changes, "--runs", tmp_path / "runs.sqlite", "--json")
    made = json.loads(out)
    assert made["epochs"] == 2 and np.isfinite(made["validation"]["loss"])
    assert lite_runtime.load(made["files"]["bundle"]).outputs()[0].name == "logits"
