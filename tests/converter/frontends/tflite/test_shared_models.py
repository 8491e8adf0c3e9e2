"""Real models from other people's converters, against LiteRT with its default (XNNPACK) kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from converter import frontends, pass_lists
from converter.lowering import lower
from lite_runtime import reference
from tests.converter.frontends.tflite.builder import litert

FLOAT_LIMIT = 1e-4
"""Of the output's range."""
STEPS, SHARE = 1, 0.999
"""Quantised outputs: steps they may be off, and the share of them that may not be further. LiteRT sums the exponentials
of a softmax in float32, one after the other; ours is the exact sum."""

MODELS = {
    "coral_mobilenet_v2_10_224_uint8": (1,),
    "dtln_model_1_fp32": (1,),
    "flutter_text_classification_fp32": (1,),
    "mlperftiny_ad_autoencoder_dynrange": (1, 3),
    "mlperftiny_ad_autoencoder_fp32": (1, 3),
    "mlperftiny_ad_autoencoder_int8": (1, 16),
    "mlperftiny_ic_resnet8_fp32": (1, 3),
    "mlperftiny_ic_resnet8_int8": (1, 16),
    "mlperftiny_kws_dscnn_dynrange": (1, 3),
    "mlperftiny_kws_dscnn_int8": (1, 16),
    "tflm_hello_world_sine_int8": (1, 64),
    "ultraface_RFB_320_nopost": (1,),
}


def inputs(model: ir.Model, batch: int, seed: int) -> list[np.ndarray]:
    """Random rows of each input: token numbers for text, noise otherwise."""
    rng, found = np.random.default_rng(seed), []
    for value in model.graph.inputs:
        assert value.shape is not None and value.dtype is not None
        shape = [d if isinstance(d, int) else batch for d in value.shape]
        dtype = value.dtype.numpy()
        if "embedding" in str(value.name):
            found.append(rng.integers(0, 1000, shape).astype(dtype))
        elif dtype.kind == "f":
            found.append(rng.standard_normal(shape).astype(dtype))
        else:
            limits = np.iinfo(dtype)
            found.append(rng.integers(limits.min, limits.max + 1, shape).astype(dtype))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_results_are_litert_s(name: str, shared_models: Path) -> None:
    data = (shared_models / f"{name}.tflite").read_bytes()
    model = pass_lists.to_ir(data)
    batches = [inputs(model, batch, seed) for seed, batch in enumerate(MODELS[name])]
    pass_lists.optimize(model)
    graph = lower(model)
    names = [value.name for value in graph.inputs]
    for given in batches:
        got = reference.run(graph, dict(zip(names, given, strict=True)))
        for value, wanted in zip(graph.outputs, litert(data, given, kernels="xnnpack"), strict=True):
            mine = got[value.name]
            assert mine.dtype == wanted.dtype and mine.shape == wanted.shape
            error = np.abs(mine.astype(np.float64) - wanted)
            if mine.dtype.kind == "f":
                assert error.max() <= FLOAT_LIMIT * np.ptp(wanted), error.max() / np.ptp(wanted)
            else:
                assert np.mean(error <= STEPS) >= SHARE, (np.mean(error <= STEPS), error.max())


def test_metadata_of_a_file(shared_models: Path) -> None:
    found = frontends.load(shared_models / "coral_mobilenet_v2_10_224_uint8.tflite").metadata
    assert found["inputs"][0]["mean"] == [127.5] and found["min_runtime_version"] == "1.5.0"
    (labels,) = found["outputs"][0]["files"]
    assert labels["kind"] == "labels" and len(labels["lines"]) == 1001 and labels["lines"][1] == "tench, Tinca tinca"
