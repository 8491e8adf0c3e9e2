"""Train, export, convert, run on a device: the accuracy that training saw is the device's, and the record says where
the bundle came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import lite_runtime
from cloud.track.digests import digest_of_file
from cloud.train import load_digits_split
from lite_runtime import bundle
from tests.conftest import SHARED
from tests.edge.cli.test_train import msedge

DIGITS = """
[model]
zoo = "resnet8"
options = { input_shape = [1, 8, 8], filters = [8, 8, 16] }
[data]
builtin = "digits"
validation = 0.2
[train]
epochs = 5
batch = 32
optimizer = "momentum"
rate = 0.1
schedule = "cosine"
[export]
onnx = "digits.onnx"
bundle = "digits.mslite"
"""
MNIST = """
[model]
zoo = "resnet8"
options = { filters = [4, 8, 16] }
[data]
npz = "mnist.npz"
inputs = { x = "x_train" }
labels = "y_train"
validation_inputs = { x = "x_test" }
validation_labels = "y_test"
scale = 0.00392156862745098
limit = 4000
[train]
epochs = 3
batch = 32
optimizer = "momentum"
rate = 0.1
schedule = "cosine"
[export]
onnx = "mnist.onnx"
bundle = "mnist.mslite"
"""


def test_digits_from_examples_to_the_device(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(DIGITS)
    split = load_digits_split(0, 8, 0.2)
    made = trained(tmp_path / "run.toml", split.held_out_x, split.held_out_y)
    assert made["accuracy"] >= 0.93
    assert_chain(tmp_path, made)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "data" / "mnist.npz").exists(), reason="no MNIST in ../shared/data")
def test_mnist_from_a_file_to_the_device(tmp_path: Path) -> None:
    source = tmp_path / "mnist.npz"
    with np.load(SHARED / "data" / "mnist.npz") as file:  # a part of it, of all digits: the files are sorted by them
        np.savez(source, **{name: file[name][:: 10 if "train" in name else 5] for name in file})
    (tmp_path / "run.toml").write_text(MNIST.replace('"mnist.npz"', json.dumps(str(source))))
    with np.load(source) as file:
        x, y = file["x_test"].astype(np.float32)[:, None] * np.float32(1 / 255), file["y_test"]
    made = trained(tmp_path / "run.toml", x, y)
    assert made["accuracy"] >= 0.9
    chain = assert_chain(tmp_path, made)
    assert chain[0]["digest"] == digest_of_file(source)


def trained(path: Path, x: Any, y: Any) -> dict[str, Any]:
    """What `msedge train` said; its validation accuracy must be that of its ONNX and of its bundle on (x, y)."""
    out, _ = msedge("train", path, "--runs", path.parent / "runs.sqlite", "--json")
    made: dict[str, Any] = json.loads(out)
    session = onnxruntime.InferenceSession(made["files"]["onnx"], providers=["CPUExecutionProvider"])
    model = lite_runtime.load(made["files"]["bundle"])
    by_onnx = np.concatenate([session.run(None, {"x": part})[0] for part in parts(x)])
    by_device = np.concatenate([model.run({"x": part})["logits"] for part in parts(x)])
    np.testing.assert_allclose(by_device, by_onnx, atol=1e-4)
    for logits in (by_onnx, by_device):
        assert (logits.argmax(1) == y).mean() == pytest.approx(made["validation"]["accuracy"], abs=1e-4)
    return {**made, **made["validation"]}


def parts(x: Any) -> list[Any]:
    return [x[at : at + 500] for at in range(0, len(x), 500)]


def assert_chain(folder: Path, made: dict[str, Any]) -> list[dict[str, Any]]:
    """Data -> run -> ONNX -> bundle, each by its digest, in the command's words and on its page."""
    store = ("--runs", folder / "runs.sqlite")
    out, _ = msedge("runs", "lineage", made["files"]["bundle"], *store, "--json")
    chain: list[dict[str, Any]] = json.loads(out)["lineage"]
    assert [link["kind"] for link in chain] == ["data", "run", "onnx", "bundle"]
    assert [link["sources"] for link in chain] == [[], [0], [1], [2]]
    held = bundle.read(made["files"]["bundle"])
    assert [link["digest"] for link in chain[1:]] == [made["run"], digest_of_file(made["files"]["onnx"]), held.digest]
    assert held.provenance["source_digest"] == chain[2]["digest"]
    msedge("runs", "page", "-o", folder / "runs.html", *store)
    page = (folder / "runs.html").read_text()
    assert "Lineage" in page and all(link["digest"][:16] in page for link in chain)
    return chain
