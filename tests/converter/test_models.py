"""Acceptance: every shared ONNX model converts and equals onnxruntime; few Transposes are left."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import converter
from lite_runtime import bundle, reference
from tests.conftest import SHARED
from tests.converter.support import assert_close, random_inputs, with_onnxruntime

FOLDER = SHARED / "models"
MODELS = sorted(FOLDER.glob("*.onnx"))
BORDER = {
    "fastestdet": 2,
    "mnist": 0,
    "super_resolution": 0,
    "ultraface": 1,
    "yunet": 1,
    "vit": 1,
    "dtln": 0,
    "lgbm": 0,
}
"""Transposes left: of inputs, outputs, and nothing else."""
SLOW = ("super_resolution", "fastestdet")

pytestmark = pytest.mark.skipif(not MODELS, reason=f"no models in {FOLDER}")


def inputs_of(graph):
    """Images get the range of pixels: around zero some outputs vanish into onnxruntime's own sigmoid error."""
    return {
        name: x * np.float32(60) + np.float32(128) if x.ndim == 4 and x.shape[-1] > 30 else x
        for name, x in random_inputs(graph, symbolic=1).items()
    }


@pytest.fixture(scope="module", params=MODELS, ids=lambda p: p.stem)
def conversion(request):
    return request.param, converter.convert(request.param)


def test_it_equals_onnxruntime(conversion):
    path, made = conversion
    graph = bundle.read(made.bundle).signatures["predict"]
    inputs = inputs_of(graph)
    assert_close(reference.run(graph, inputs), with_onnxruntime(onnx.load(path), inputs))


def test_only_border_transposes_remain(conversion):
    path, made = conversion
    limit = next(n for key, n in BORDER.items() if key in path.stem)
    assert made.report.ops_after.get("Transpose", 0) <= limit
    assert not {"BatchNormalization", "Relu", "Identity", "Constant", "Dropout"} & set(made.report.ops_after)


def test_the_bundle_is_no_larger_than_its_source(conversion):
    path, made = conversion
    assert made.report.bundle_bytes < path.stat().st_size * 1.1 + 16384


def test_half_precision_weights_halve_the_file(conversion):
    path, made = conversion
    half = converter.convert(path, quantize="fp16")
    weights = sum(made.report.weight_bytes.values())
    if weights > 100_000:
        assert sum(half.report.weight_bytes.values()) < weights * 0.55
        assert half.report.halved > 0 and half.report.kept_float32 == 0


def test_conversion_is_deterministic():
    path = MODELS[0]
    assert converter.convert(path).bundle == converter.convert(path).bundle
