"""The zoo: valid ONNX, seeded, of the published sizes, the same in onnxruntime and in the engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest

import lite_runtime
from cloud import engine, zoo
from cloud.errors import EngineError
from cloud.zoo.build import parameter_count
from converter import convert
from tests.cloud.models import run_onnx
from tests.cloud.zoo_models import SMALL, fed

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


@cache
def small(name: str) -> tuple[ir.Model, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A small variant, inputs, and what onnxruntime makes of them."""
    model = SMALL[name]()
    given = fed(model)
    names = [str(value.name) for value in model.graph.outputs]
    return model, given, dict(zip(names, run_onnx(model, **given), strict=True))


def test_every_builder_has_a_small_variant() -> None:
    built = {name.split()[0] for name in (*SMALL, *MODELS)} | {"mlp", "transformer", "window_cnn"}
    assert built == {name for name in zoo.__all__ if name.islower()}


@pytest.mark.parametrize("name", SMALL)
def test_the_bundle_computes_the_model(name: str) -> None:
    model, given, expected = small(name)
    got = lite_runtime.load(convert(ir.to_proto(model)).bundle).run(given)
    assert got.keys() == expected.keys()
    for output, value in expected.items():
        assert value.shape[0] == 3 and got[output].shape == value.shape
        np.testing.assert_allclose(got[output], value, atol=2e-5, rtol=1e-4, err_msg=output)
    assert {v.name: tuple(v.shape)[1:] for v in model.graph.outputs} == {n: v.shape[1:] for n, v in expected.items()}


DIFFERENTIATED = [
    "lenet5", "mobilenet_v3_small", "unet", "yolo", "yolos spread", "bert", "t5 aligned", "tcn", "tcn norm", "lstm",
    "autoencoder", "gcn pooled", "two_tower",
]  # fmt: skip
"""Small variants that have all parts of the others; the recipes train every model."""


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_the_engine_computes_and_differentiates_it(name: str) -> None:
    model, given, expected = small(name)
    function = engine.lower(model, training=True)
    assert sum(p.size for p in function.params.values()) == parameter_count(model)

    def loss(params: Any) -> Any:
        trained, _ = function.apply(params, function.state, given, train=True, rng=jax.random.key(0))
        shown, _ = function.apply(params, function.state, given)
        return sum(jnp.sum(jnp.sin(v)) for v in trained.values() if v.dtype.kind == "f"), shown

    (_, shown), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(function.params)
    for output, value in expected.items():
        np.testing.assert_allclose(shown[output], value, atol=2e-5, rtol=1e-4, err_msg=output)
    assert all(np.isfinite(value).all() for value in gradient.values())
    still = {name for name, value in gradient.items() if not np.any(value)}
    assert still == set()


# Published numbers of trained parameters, of the models as the papers have them.
PUBLISHED = {
    "lenet5": 61_706, "resnet18": 11_689_512, "resnet50": 25_557_032, "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856, "mobilenet_v3_large": 5_483_032, "efficientnet_lite": 4_652_008, "vit": 5_717_416,
    "bert": 4_385_920 + 2 * 129, "autoencoder": 267_928, "gcn": 23_063, "tc_resnet": 65_148, "tcn": 66_510,
    "yolos": 6_498_336,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_parameters_are_the_published_ones(name: str) -> None:
    assert parameter_count(getattr(zoo, name)()) == PUBLISHED[name]


def test_alexnet_has_the_published_number() -> None:
    """Of fewer hidden units, with what the others add."""
    few, all_of_them = 64, inspect.signature(zoo.alexnet).parameters["hidden"].default
    more = (9216 + 2 + 1000) * (all_of_them - few) + all_of_them**2 - few**2
    assert parameter_count(zoo.alexnet(hidden=few)) + more == 61_100_840


@pytest.mark.parametrize("build, words, width, layers, published", [
    (zoo.gpt, 50257, 768, 12, 124_439_808), (zoo.t5, 32128, 512, 6, 60_506_624),
])  # fmt: skip
def test_language_models_have_the_published_numbers(
    build: Callable[..., ir.Model], words: int, width: int, layers: int, published: int
) -> None:
    """Of fewer words and layers; all layers, and all words, are alike."""
    one, two = (parameter_count(build(vocabulary=100, layers=count)) for count in (1, 2))
    assert one + (layers - 1) * (two - one) + (words - 100) * width == published
    told = inspect.signature(build).parameters
    assert {key: told[key].default for key in ("vocabulary", "width", "layers")} == {
        "vocabulary": words, "width": width, "layers": layers
    }  # fmt: skip


def test_the_unet_of_half_the_width_has_the_published_number() -> None:
    assert parameter_count(zoo.unet((3, 256, 256), width=32)) == 7_763_041


def test_padding_changes_nothing() -> None:
    for name, key in (("bert", "x"), ("t5", "x"), ("two_tower", "query")):
        model, given, _ = small(name)
        table = {"bert": "tokens.weight", "t5": "tokens.weight", "two_tower": "query.weight"}[name]
        tensor = model.graph.initializers[table].const_value
        assert tensor is not None
        changed = np.array(tensor.numpy())
        changed[0] += 1
        copy = ir.from_proto(ir.to_proto(model))
        copy.graph.initializers[table].const_value = ir.tensor(changed, name=table)
        given = given | ({"target": np.maximum(given["target"], 1)} if name == "t5" else {})
        before, after = run_onnx(model, **given)[0], run_onnx(copy, **given)[0]
        tokens = after[..., 1:] if name == "t5" else after  # T5's logit of id 0 is a product with its embedding
        np.testing.assert_allclose(tokens, before[..., 1:] if name == "t5" else before, atol=1e-5)
        assert (given[key] == 0).any()


def spread(model: ir.Model, name: str) -> float:
    """The standard deviation of an initial weight."""
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return float(tensor.numpy().std())


def test_initial_weights_of_attention() -> None:
    """T5 has no scale of the scores: the queries' weights are smaller instead, else softmax begins saturated."""
    model = zoo.t5(12, 10, vocabulary=50, width=64, layers=1, heads=4, head_width=16)
    for side in ("encoder.block0.attention", "decoder.block0.attention", "decoder.block0.cross"):
        names = [name for name in model.graph.initializers if name.startswith(f"{side}.") and name.endswith(".weight")]
        found = {name.removeprefix(f"{side}.").split(".")[0]: spread(model, name) for name in names}
        assert found["query"] == pytest.approx((64 * 16) ** -0.5, rel=0.05), side
        assert [found["key"], found["value"]] == pytest.approx([64**-0.5] * 2, rel=0.05), side


def test_an_aligned_t5_sees_where_a_token_of_the_source_is() -> None:
    given = fed(zoo.t5(12, 10, vocabulary=50, width=32, layers=1, heads=2, head_width=8, hidden=32))
    given = {"x": given["x"][:1, :8], "target": np.full((1, 6), 1, np.int32)}
    for aligned in (False, True):
        model = zoo.t5(8, 6, vocabulary=50, width=32, layers=1, heads=2, head_width=8, hidden=32, aligned=aligned)
        for name in ("encoder.bias.weight", "decoder.bias.weight"):  # the only other positions
            tensor = model.graph.initializers[name]
            tensor.const_value = ir.Tensor(np.zeros((32, 2), np.float32), name=name)
        one = run_onnx(model, **given)[0]
        other = run_onnx(model, **given | {"x": given["x"][:, ::-1].copy()})[0]
        assert (np.abs(one - other).max() > 1e-3) == aligned
        assert (np.abs(one[:, 0] - one[:, 5]).max() > 1e-3) == aligned


def test_sequences_see_no_later_step() -> None:
    model, given, expected = small("t5")
    later = given | {"target": np.where(np.arange(10) < 6, given["target"], 7).astype(np.int32)}
    logits = run_onnx(model, **later)[0]
    np.testing.assert_allclose(logits[:, :6], expected["logits"][:, :6], atol=1e-5)
    assert np.abs(logits[:, 6:] - expected["logits"][:, 6:]).max() > 1e-3


def test_detections_are_pixels_and_classes() -> None:
    _, _, found = small("yolo")
    cells = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2) * 8 + 4
    assert (found["boxes"][..., :2] < cells).all() and (found["boxes"][..., 2:] > cells).all()
    kept = found["scores"] > 0
    assert kept.any(1).all() and kept.mean() < 0.4
    best = 1 / (1 + np.exp(-found["logits"].max(-1)))
    np.testing.assert_allclose(found["scores"][kept], best[kept], rtol=1e-4)
    _, _, found = small("yolos")
    assert found["classes"].max() < 3 and (found["scores"] < 1).all() and np.abs(found["boxes"]).max() < 64


@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_a_vits_blocks_begin_with_the_deviation(deviation: float) -> None:
    model = zoo.vit((1, 28, 28), 10, patch=7, width=64, layers=1, heads=2, deviation=deviation)
    weights = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}  # type: ignore[union-attr]
    drawn = {name: array for name, array in weights.items() if name.startswith("block0") and array.ndim == 2}
    assert len(drawn) == 6
    for name, array in drawn.items():
        assert array.std() == pytest.approx(deviation, rel=0.05), name


def test_a_pooled_tcn_reads_all_steps_and_another_one_the_last() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 3, 1, 48)).astype(np.float32)
    changed = x.copy()
    changed[..., 0] += 1  # ahead of what the last step sees: 2 (kernel - 1) (2^levels - 1) = 12 steps
    for pooled in (False, True):
        model = zoo.tcn((3, 1, 48), 5, filters=8, levels=2, kernel=3, pooled=pooled)
        before, after = (run_onnx(model, x=given)[0] for given in (x, changed))
        assert np.array_equal(before, after) is not pooled


def test_places_of_a_detectors_tokens_begin_as_a_grid() -> None:
    model = zoo.yolos((1, 32, 64), 3, patch=8, width=32, layers=1, heads=2, objects=6, stem=4, spread=True)
    last = model.graph.initializers["box_head.2.weight"]
    last.const_value = ir.Tensor(np.zeros((32, 4), np.float32), name=last.name)  # the head adds nothing
    boxes = run_onnx(model, x=np.ones((1, 1, 32, 64), np.float32))[0][0]
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    wanted = [[64 * (x + 0.5) / 3, 32 * (y + 0.5) / 2] for y in range(2) for x in range(3)]
    np.testing.assert_allclose(middles, wanted, atol=1e-4)
    np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], np.full((6, 2), [0.4 * 64, 0.4 * 32]), rtol=1e-5)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: zoo.vit(width=32, heads=3), "width divisible by 3 heads"),
        (lambda: zoo.vit((3, 30, 32)), "whole patches of 16 pixels, got 30 x 32"),
        (lambda: zoo.bert(600), "at most 512 tokens"),
        (lambda: zoo.yolos(heads=5), "width divisible by 5 heads"),
        (lambda: zoo.yolos((3, 24, 24), patch=12, stem=8), "a power of two pixels with a stem, got 12"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(build: Callable[[], ir.Model], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        build()
