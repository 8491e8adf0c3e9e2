"""The zoo: valid ONNX, seeded, of the published sizes, the same in onnxruntime and in the engine."""

from __future__ import annotations

import jax
import numpy as np
import onnx_ir as ir
import pytest

from cloud import engine, zoo
from cloud.errors import EngineError
from tests.cloud.models import run_onnx

# name: (model, batch to feed, trained parameters)
MODELS = {
    "resnet8": (zoo.resnet8, (3, 1, 28, 28), 77_658),
    "resnet8 colour": (lambda **more: zoo.resnet8((3, 32, 32), **more), (2, 3, 32, 32), 77_946),
    "resnet8 small": (lambda **more: zoo.resnet8((1, 8, 8), classes=4, **more), (2, 1, 8, 8), 77_268),
    "ds_cnn": (zoo.ds_cnn, (2, 1, 49, 10), 23_180),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    build, shape, parameters = MODELS[name]
    model = build(seed=5)
    function = engine.lower(model, training=True)
    assert sum(p.size for p in function.params.values()) == parameters
    assert str(model.graph.inputs[0].shape[0]) == "batch"
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    ours, _ = jax.jit(function.apply)(function.params, function.state, {"x": x})
    np.testing.assert_allclose(ours["logits"], run_onnx(model, x=x)[0], atol=1e-4)
    same, other = (ir.to_proto(build(seed=seed)).SerializeToString() for seed in (5, 6))
    assert same == ir.to_proto(model).SerializeToString() != other


@pytest.mark.parametrize("tied, parameters", [(True, 26_976), (False, 26_976 + 31 * 32)])
def test_transformer(tied: bool, parameters: int) -> None:
    def build(seed: int) -> ir.Model:
        return zoo.transformer(16, 31, seed, width=32, layers=2, heads=4, tied=tied)

    model = build(5)
    function = engine.lower(model, training=True)
    assert sum(p.size for p in function.params.values()) == parameters
    x = np.random.default_rng(0).integers(0, 31, (3, 16)).astype(np.int32)
    run = jax.jit(function.apply)
    logits = run(function.params, function.state, {"x": x})[0]["logits"]
    np.testing.assert_allclose(logits, run_onnx(model, x=x)[0], atol=1e-5)
    later = x.copy()
    later[:, 9:] = 0
    seen = run(function.params, function.state, {"x": later})[0]["logits"]
    np.testing.assert_allclose(seen[:, :9], logits[:, :9], atol=1e-6)
    assert np.abs(seen[:, 9:] - logits[:, 9:]).max() > 1e-3
    assert ir.to_proto(build(5)) == ir.to_proto(model) != ir.to_proto(build(6))


def test_heads_divide_the_width() -> None:
    with pytest.raises(EngineError, match="width divisible by 3 heads"):
        zoo.transformer(width=32, heads=3)


def test_softmax_is_optional() -> None:
    model = zoo.resnet8((1, 8, 8), softmax=True)
    (probabilities,) = run_onnx(model, x=np.zeros((2, 1, 8, 8), np.float32))
    assert model.graph.outputs[0].name == "probabilities"
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_the_builder_refuses_what_is_not_onnx() -> None:
    b = zoo.Builder("bad")
    x = b.input("x", ("batch", 3))
    with pytest.raises(EngineError, match="not valid ONNX"):
        b.model(y=b.op("NoSuchOperator", x))
    with pytest.raises(EngineError, match="only the batch may be symbolic"):
        b.dense(b.input("s", ("batch", "length")), 3, name="head")
