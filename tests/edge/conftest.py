"""One small network, as ONNX and as a bundle, and a bundle of the same network with one weight changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from converter import convert
from lite_runtime import bundle

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
small (float[n, 3, 8, 8] x) => (float[n, 5] scores) {
  c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
  r1 = Relu (c1)
  c2 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (r1, w2, b2)
  r2 = Relu (c2)
  p = GlobalAveragePool (r2)
  f = Flatten (p)
  scores = Gemm (f, w3, b3)
}
"""
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3), "b2": (16,), "w3": (16, 5), "b3": (5,)}


@dataclass(frozen=True)
class Small:
    """Paths of the model, of its bundle, and of a bundle whose second convolution is not the model's."""

    source: Path
    bundle: Path
    wrong: Path


def source() -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in SHAPES.items():
        array = (rng.standard_normal(shape) / 3).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("small")
    paths = Small(folder / "small.onnx", folder / "small.mslite", folder / "wrong.mslite")
    onnx.save(source(), paths.source)
    convert(paths.source, output=paths.bundle)
    graph = bundle.read(paths.bundle).signatures["predict"]
    name, weight = next((n, a) for n, a in graph.constants.items() if a.shape[:2] == (16, 8))
    bundle.write(paths.wrong, {"predict": graph.replace(constants={**graph.constants, name: weight * 1.5})})
    return paths
