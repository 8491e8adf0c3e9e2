"""SavedModel folders and Keras models against TensorFlow. Slow: a conversion loads TensorFlow in a process of its own.

tensorflow and tf2onnx are not among the packages that tests install: pip install tensorflow-cpu tf2onnx.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import ConvertError, convert

tensorflow = pytest.importorskip("tensorflow")
pytest.importorskip("tf2onnx")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def images() -> tuple[Any, tuple[int, ...]]:
    layers = tensorflow.keras.layers
    net = tensorflow.keras.Sequential([
        layers.Input((16, 16, 3)), layers.Conv2D(8, 3, strides=2, padding="same"), layers.BatchNormalization(),
        layers.ReLU(), layers.DepthwiseConv2D(3, padding="same"), layers.GlobalAveragePooling2D(),
        layers.Dense(5, activation="softmax"),
    ])  # fmt: skip
    return net, (16, 16, 3)


def series() -> tuple[Any, tuple[int, ...]]:
    layers = tensorflow.keras.layers
    net = tensorflow.keras.Sequential(
        [layers.Input((12, 4)), layers.LSTM(8, return_sequences=True), layers.GRU(6), layers.Dense(3)]
    )
    return net, (12, 4)


@pytest.mark.parametrize("made", (images, series))
def test_results_are_tensorflows(made: Any, tmp_path: Path) -> None:
    net, shape = made()
    net.export(str(tmp_path / "saved"), verbose=False)
    for source in (tmp_path / "saved", net):
        conversion = convert(source)
        assert conversion.report.source_format == "TensorFlow"
        model = lite_runtime.load(conversion.bundle)
        (name,) = (value.name for value in model.bundle.at_first("predict").inputs)
        for rows in (1, 3):
            x = np.random.default_rng(rows).normal(size=(rows, *shape)).astype(np.float32)
            (found,) = model.run({name: x}).values()
            np.testing.assert_allclose(found, net(x).numpy(), atol=1e-5)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"nothing")
    with pytest.raises(ConvertError, match=r"tf2onnx cannot convert .*: "):
        convert(tmp_path)
