"""Real models from file to result: converted, run natively by one and two workers, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import converter
import lite_runtime
from lite_runtime.graph import Array, Value
from tests.conftest import SHARED

MODELS = sorted((SHARED / "models").glob("*.onnx"))
TOLERANCE = 1e-4
"""Largest difference, as a share of an output's range."""
HALF = 0.003
"""The same with fp16 weights, of networks not named below: 0.0019 was measured."""
DETECTORS = {"fastestdet_352": 0.01, "yunet_n_320_320": 0.02}
"""Detectors whose scores on noise fill only some hundredths of their scale: 0.0054 and 0.0118 were measured."""

pytestmark = pytest.mark.skipif(not MODELS, reason=f"no models in {SHARED / 'models'}")


def _inputs(values: tuple[Value, ...], seed: int) -> dict[str, Array]:
    """Pixels for images, so that detectors' scores have a range at all; standard normal elsewhere."""
    rng = np.random.default_rng(seed)

    def one(value: Value) -> Array:
        shape = tuple(d if isinstance(d, int) else 1 for d in value.shape or ())
        image = len(shape) == 4 and min(shape[2:]) > 100
        return (rng.uniform(0, 255, shape) if image else rng.standard_normal(shape)).astype(value.dtype)

    return {v.name: one(v) for v in values}


def _differences(path: Path, model: lite_runtime.Model, seed: int) -> dict[str, float]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options)
    inputs = _inputs(model.inputs(), seed)
    got = model.run(inputs)
    differences = {}
    for value, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        if isinstance(want, list):  # a sequence of maps: labels and scores, scores compared
            continue
        if want.dtype.kind != "f":
            assert (got[value.name] == want).all(), value.name
            continue
        differences[value.name] = float(np.abs(got[value.name] - want).max() / np.ptp(want))
    return differences


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
@pytest.mark.parametrize("seed", [1, 2])
def test_equals_onnxruntime(path: Path, seed: int) -> None:
    model = lite_runtime.load(converter.convert(path).bundle, backend="native")
    differences = _differences(path, model, seed)
    assert differences and all(d <= TOLERANCE for d in differences.values()), differences


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_every_node_is_native_and_two_workers_give_the_same_bits(path: Path) -> None:
    data = converter.convert(path).bundle
    one, two = (lite_runtime.load(data, backend="native", threads=n) for n in (1, 2))
    inputs = _inputs(one.inputs(), 3)
    assert one.cost(inputs).reference == ()
    want = one.run(inputs)
    for _ in range(5):  # the second worker joins in once the first runs have shown that it pays
        got = two.run(inputs)
        assert all(got[name].tobytes() == want[name].tobytes() for name in want)


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_float16_weights_stay_close(path: Path) -> None:
    """fp16 weights carry 11 bits: results differ by at most 0.3 % of their range; by 1 or 2 % for two detectors."""
    full = converter.convert(path).bundle
    half = converter.convert(path, quantize="fp16").bundle
    models = [lite_runtime.load(data, backend="native") for data in (full, half)]
    inputs = _inputs(models[0].inputs(), 4)
    want, got = (m.run(inputs) for m in models)
    assert len(half) <= len(full)
    for name, a in want.items():
        if a.dtype.kind == "f":
            assert np.abs(got[name] - a).max() <= DETECTORS.get(path.stem, HALF) * np.ptp(a), name
