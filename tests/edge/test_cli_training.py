"""`msedge convert` makes bundles that learn, says what they learn, and refuses options that would do nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from lite_runtime import bundle, load
from tests.edge.conftest import Small
from tests.edge.test_cli import as_json, msedge


def _weights(source: Path) -> list[str]:
    return [t.name for t in onnx.load(source).graph.initializer if len(t.dims) == 4]


def test_a_bundle_that_learns_with_its_page(small: Small, tmp_path: Path) -> None:
    out, page = tmp_path / "learns.mslite", tmp_path / "report.html"
    options = ("--trainable", "*", "--optimizer", "adam", "--learning-rate", "0.02", "--clip-norm", "1")
    stdout, _ = msedge("convert", small.source, "-o", out, *options, "--report", page)
    assert "trainable" in stdout and "train_step" in stdout
    text = page.read_text()
    assert "<h2>Training</h2>" in text and "working memory of train_step" in text
    model = load(out)
    assert model.state_dict()["hyper/learning_rate"] == np.float32(0.02)
    assert set(_weights(small.source)) <= set(model.state_dict())
    made = as_json("convert", small.source, "-o", out, *options)
    assert made["training"]["count"] > 0 and made["training"]["settings"]["clip_norm"] == 1.0


def test_a_bundle_of_second_order(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "learns.mslite"
    made = as_json("convert", small.source, "-o", out, "--trainable", "*", "--second-order")
    assert made["training"]["signatures"] == ["predict", "train_step", "evaluate", "gradients", "curvature"]
    _, stderr = msedge("convert", small.source, "-o", out, "--second-order", code=2)
    assert "--second-order" in stderr and "only used with --trainable" in stderr


def test_adapters(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "lora.mslite"
    _, stderr = msedge("convert", small.source, "-o", out, "--lora", "four", code=2)
    assert "RANK" in stderr and not out.exists()
    _, stderr = msedge("convert", small.source, "-o", out, "--lora", "2:nothing", "--loss", "mse", code=3)
    assert "no weight matches 'nothing'" in stderr and not out.exists()
    _, stderr = msedge("convert", small.source, "-o", out, "--lora-only-b", code=2)
    assert "only used with --lora" in stderr and not out.exists()
    msedge("convert", small.source, "-o", out, "--lora", "2", "--lora-only-b", "--loss", "mse")
    held = bundle.read(out)
    trained = {name.removeprefix("grad/") for name in (v.name for v in held.signatures["gradients"].outputs)} - {"loss"}
    assert trained and all(name.endswith("lora_b") for name in trained)
    assert {f"{name.removesuffix('b')}a" for name in trained} <= held.state.keys()


def test_what_makes_no_sense_is_refused(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "no.mslite"
    _, stderr = msedge("convert", small.source, "-o", out, "--trainable", "nothing", code=3)
    assert "there are" in stderr and _weights(small.source)[0] in stderr and not out.exists()
    _, stderr = msedge("convert", small.source, "-o", out, "--learning-rate", "0.1", code=2)
    assert "--trainable or --lora" in stderr and not out.exists()
