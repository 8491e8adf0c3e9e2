"""Rounding with straight-through gradients, compared with the definition and the formula; quantisation-aware
training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import optax
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from cloud import engine
from cloud.errors import EngineError, TrainError
from cloud.train import Trainer, load_digits_split, momentum_sgd, quantize_aware, with_scales
from cloud.zoo import resnet8
from converter import convert
from converter.pass_lists import PREPARE, optimize, to_ir
from converter.quantize import Options
from converter.quantize.qat import fake_quantize, freeze, scales
from lite_runtime.graph import OPSET
from lite_runtime.reference.quantize import dequantize, integer_range, quantize
from tests.cloud.models import parsed, run_onnx, tiny_net
from tests.conftest import SHARED
from tests.converter.quantize.support import run
from tests.converter.quantize.test_apply import NETWORKS
from tests.converter.support import Builder

SHAPE = (4, 6, 5)
LAYOUTS = {"tensor": ((), {}), "axis": ((6,), {"axis": 1}), "blocks": ((4, 2, 5), {"axis": 1, "block_size": 3})}
DTYPES = ("int8", "uint8", "int16", "int4", "uint4")


def pair(scale: np.ndarray, zero: np.ndarray | None, attributes: dict[str, Any], *, output: bool = False) -> ir.Model:
    """x -> QuantizeLinear -> q -> DequantizeLinear -> y; `output` gives q as well."""
    held = [numpy_helper.from_array(scale, "scale")]
    operands = ["scale"]
    if zero is not None:
        held.append(numpy_helper.from_array(zero, "zero"))
        operands.append("zero")
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", *operands], ["q"], name="round", **attributes),
            helper.make_node("DequantizeLinear", ["q", *operands], ["y"], name="back", **attributes),
        ],
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_empty_tensor_value_info(n) for n in (["q", "y"] if output else ["y"])],
        held,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))


def operands(dtype: str, layout: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """x with values inside, beyond, at ties and infinite; scale; zero point; attributes."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    low, high = integer_range(kind)
    shape, attributes = LAYOUTS[layout]
    scale = np.exp(rng.uniform(-6, 1, shape)).astype(np.float32)
    zero = rng.integers(low, high + 1, shape).astype(kind)
    steps = spread(scale, attributes)
    x = rng.uniform(1.3 * low, 1.3 * high, SHAPE) - spread(zero.astype(np.float32), attributes)
    x[0] = np.rint(x[0]) + 0.5  # ties, exact where the scale is a power of two
    if layout == "tensor":
        steps = scale = np.array(2.0 ** rng.integers(-5, 3), np.float32)
    x = (x * steps).astype(np.float32)
    x[1, 0, :2] = np.inf, -np.inf
    return x, scale, zero, attributes


def spread(by: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    if "block_size" in attributes:
        return np.repeat(by, attributes["block_size"], 1)[:, : SHAPE[1]]
    return by.reshape(-1, 1) if attributes else by


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inference_is_the_definition_to_the_bit(dtype: str, layout: str) -> None:
    for seed in range(3):
        x, scale, zero, attributes = operands(dtype, layout, seed)
        q = quantize(x, scale, zero, attributes.get("axis", 1), attributes.get("block_size", 0))
        y = dequantize(q, scale, zero, attributes.get("axis", 1), attributes.get("block_size", 0))
        both = engine.lower(pair(scale, zero, attributes, output=True))
        got, _ = jax.jit(both.apply)({}, {}, {"x": x})
        assert got["q"].dtype == q.dtype
        assert np.array_equal(np.asarray(got["q"]).astype(np.int32), q.astype(np.int32))
        assert np.array_equal(got["y"], y)
        learned = engine.lower(pair(scale, zero, attributes), training=True, trainable=["scale"])
        for apply in (learned.apply, jax.jit(learned.apply)):
            assert np.array_equal(apply(learned.params, {}, {"x": x})[0]["y"], y)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_the_formula(dtype: str, layout: str) -> None:
    x, scale, zero, attributes = operands(dtype, layout, seed=5)
    x = np.where(np.isfinite(x), x, 0).astype(np.float32)
    function = engine.lower(pair(scale, zero, attributes), training=True, trainable=["scale"])
    upstream = np.random.default_rng(6).normal(size=SHAPE).astype(np.float32)

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(function.apply(params, {}, {"x": x}, train=True)[0]["y"] * upstream)

    by_scale, by_x = jax.jit(jax.grad(loss, (0, 1)))(function.params, x)
    low, high = integer_range(zero.dtype)
    step, shift = spread(scale, attributes).astype(np.float64), spread(zero.astype(np.float64), attributes)
    quotient = x / spread(scale, attributes)
    whole = np.rint(quotient) + shift
    inside = (whole >= low) & (whole <= high)
    assert 0.1 < inside.mean() < 0.95
    np.testing.assert_allclose(by_x, np.where(inside, upstream, 0), rtol=1e-5)
    each = np.where(inside, np.rint(quotient) - x / step, np.clip(whole, low, high) - shift) * upstream
    if layout == "tensor":
        wanted = each.sum()
    elif layout == "axis":
        wanted = each.sum((0, 2))
    else:
        wanted = each.reshape(4, 2, 3, 5).sum(2)
    np.testing.assert_allclose(by_scale["scale"], wanted, rtol=1e-3, atol=1e-3 * np.abs(each).max())


def test_scales_are_constants_unless_named() -> None:
    model = parsed("""net (float[n, 3] x) => (float[n, 2] y)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] s = {0.5, 0.25}, int8[2] z = {0, 0}>
        { q = QuantizeLinear<axis = 1>(w, s, z)  d = DequantizeLinear<axis = 1>(q, s)  y = MatMul(x, d) }""")
    assert set(engine.lower(model, training=True).params) == {"w"}
    assert set(engine.lower(model, training=True, trainable=["w", "s"]).params) == {"w", "s"}


def test_dynamic_quantisation_passes_gradients_through() -> None:
    model = parsed("""net (float[n, 5] x) => (float[n, 5] y, float s)
        { q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z) }""")
    function = engine.lower(model)
    x = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    got, _ = jax.jit(function.apply)({}, {}, {"x": x})
    y, s = run_onnx(model, x=x)
    np.testing.assert_allclose(got["y"], y, rtol=1e-6)
    assert got["s"] == s
    gradient = jax.grad(lambda x: jnp.sum(function.apply({}, {}, {"x": x})[0]["y"] * 3.0))(x)
    np.testing.assert_allclose(gradient, np.full_like(x, 3), rtol=1e-6)


def test_nan_is_not_hidden_from_training() -> None:
    function = engine.lower(pair(np.array(0.5, np.float32), np.zeros((), np.int8), {}))
    x = np.full(SHAPE, np.nan, np.float32)
    assert np.isnan(function.apply({}, {}, {"x": x})[0]["y"]).all()


def test_what_quantisation_does_not_fit() -> None:
    eight_bits = pair(np.array(0.5, np.float32), np.zeros((), ml_dtypes.float8_e4m3fn), {})
    x = np.zeros(SHAPE, np.float32)
    with pytest.raises(EngineError, match=r"'back': expected quantisation to integers.*, got float8_e4m3fn"):
        engine.lower(eight_bits).apply({}, {}, {"x": x})
    short = pair(np.ones(5, np.float32), np.zeros(5, np.int8), {"axis": 1})
    with pytest.raises(EngineError, match=r"expected scales of shape \[6\], got \[5\]"):
        engine.lower(short).apply({}, {}, {"x": x})


def test_scales_move_in_proportion_and_stay_positive() -> None:
    params = {"w": jnp.array([1.0, -1.0]), "tiny": jnp.array([1e-6]), "large": jnp.array([100.0])}
    optimizer = with_scales(optax.sgd(1.0), optax.adam(0.1), {"tiny", "large"})
    slots = optimizer.init(params)
    for _ in range(3):
        updates, slots = optimizer.update({"w": jnp.ones(2), "tiny": jnp.ones(1), "large": jnp.ones(1)}, slots, params)
        params = optax.apply_updates(params, updates)
    assert params["w"].tolist() == [-2.0, -4.0]
    np.testing.assert_allclose(params["large"] / 100, [0.729], rtol=2e-2)
    assert 0 < float(params["tiny"][0]) < 1e-6


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks_compute_as_onnx_and_all_weights_get_gradients(name: str) -> None:
    b = Builder(seed=3)
    model = to_ir(b.model(NETWORKS[name](b)))  # type: ignore[no-untyped-call]
    optimize(model, PREPARE)
    x = np.random.default_rng(4).normal(size=(16, 4, 8, 8)).astype(np.float32)
    fake_quantize(model, Options(equalize=False), {"x": x})
    function = engine.lower(model, training=True, trainable=["*"])
    ((output, wanted),) = zip(function.outputs, run(model, {"x": x[:1]}), strict=True)
    got = jax.jit(function.apply)(function.params, {}, {"x": x[:1]})[0][output.name]
    assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()
    aim = jax.grad(lambda p: jnp.sum(jnp.sin(function.apply(p, {}, {"x": x[:1]}, train=True)[0][output.name])))
    gradients = jax.jit(aim)(function.params)
    named = {*scales(model).weights, *scales(model).activations, *engine.lower(model).params}
    assert all(np.isfinite(g).all() for g in gradients.values())
    assert [n for n in sorted(named) if not np.asarray(gradients[n]).any()] == []


# training

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
DIGITS = load_digits_split(seed=0, size=8)
X, Y, HELD_X, HELD_Y = DIGITS


def mnist() -> Data:
    """8,000 images to train on and 2,000 others, at 14 by 14, in random order: the file is sorted by class."""
    path = SHARED / "data" / "mnist.npz"
    if not path.exists():
        pytest.skip("no MNIST here")
    found, rng, parts = np.load(path), np.random.default_rng(0), []
    for part, count in (("train", 8_000), ("test", 2_000)):
        rows = rng.permutation(len(found[f"y_{part}"]))[:count]
        images = (found[f"x_{part}"][rows] / 127.5 - 1).astype(np.float32)
        parts += [images.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5)), found[f"y_{part}"][rows].astype(np.int32)]
    x, y, held_x, held_y = parts
    return x, y, held_x, held_y


def accuracy(model: ir.Model, x: np.ndarray, y: np.ndarray) -> float:
    """Of the integer bundle."""
    bundle = lite_runtime.load(convert(model.clone()).bundle)
    chosen = [np.argmax(bundle.run({"x": part})["logits"], axis=1) for part in np.array_split(x, 10)]
    return float((np.concatenate(chosen) == y).mean())


def digits() -> Data:
    return DIGITS


QUICK = Options(method="mse", equalize=False)
"""Without trials of how activations are best rounded, which take seconds; the weights lose the same."""


@pytest.mark.parametrize(
    "data, rate, epochs, options", [(digits, 0.3, 8, Options()), (mnist, 0.3, 3, QUICK)], ids=("digits", "mnist")
)
def test_training_recovers_what_rounding_to_four_bits_lost(
    data: Callable[[], Data], rate: float, epochs: int, options: Options
) -> None:
    x, y, held_x, held_y = data()
    trainer = Trainer(resnet8((1, *x.shape[2:]), filters=(4, 4, 4)), optimizer=momentum_sgd(rate))
    trainer.fit((x, y), epochs, batch_size=64)
    trained = trainer.export()
    before = accuracy(trained, held_x, held_y)
    rounded = to_ir(trained.clone())
    optimize(rounded, PREPARE)
    fake_quantize(rounded, options, {"x": x[:: len(x) // 128]}, weight_bits=4)
    freeze(rounded)
    lost = before - accuracy(rounded, held_x, held_y)
    assert lost > 0.02
    reports: list[Any] = []
    more: dict[str, Any] = {"options": QUICK, "epochs": 2, "rate": 3e-3, "progress": reports.append}
    done = quantize_aware(trained, (x, y), weight_bits=4, **more)
    assert tuple(reports) == done.reports and len(reports) == 2
    after = accuracy(done.model, held_x, held_y)
    assert before - after < lost / 2
    seen = done.trainer.evaluate((held_x, held_y)).accuracy
    assert seen is not None and abs(after - seen) <= 0.005


@pytest.mark.parametrize("learn_scales", [False, True])
def test_one_call_from_a_float_model_to_an_integer_bundle(learn_scales: bool) -> None:
    model = tiny_net(dropout=0.2)
    before = ir.to_proto(model).SerializeToString()
    data = X[:300], Y[:300]
    more: dict[str, Any] = {"epochs": 1, "rate": 0.01, "learn_scales": learn_scales}
    run = quantize_aware(model, data, **more)
    assert ir.to_proto(model).SerializeToString() == before
    trained = run.trainer.export()
    found = scales(trained)
    moved = [n for group in found for n in group if n in run.trainer.params]
    assert moved == ([*found.weights, *found.activations] if learn_scales else [])
    done = convert(run.model.clone())
    assert not done.report.left_float and "QLinearConv" in done.report.ops_after
    assert not any(v.const_value is not None and len(v.shape or ()) > 1 and v.dtype == ir.DataType.FLOAT
                   for v in run.model.graph.initializers.values())  # fmt: skip
    exported = convert(run.model.clone(), to="onnx").bundle
    theirs = run_onnx(ir.from_proto(onnx.load_from_string(exported)), x=HELD_X)[0]
    ours = lite_runtime.load(done.bundle).run({"x": HELD_X})["logits"]
    assert np.abs(ours - theirs).max() <= one_step(run.model) * 1.001
    again = quantize_aware(tiny_net(dropout=0.2), data, **more)
    assert convert(again.model).bundle == done.bundle


def one_step(model: ir.Model) -> float:
    """What the logits may change where one input of the last layer changes by one step."""
    (gemm,) = (n for n in model.graph if n.op_type == "Gemm")
    x, w = (v.producer() for v in gemm.inputs[:2] if v is not None)
    assert x is not None and w is not None
    scale, steps, integers = (v.const_value.numpy() for v in (x.inputs[1], w.inputs[1], w.inputs[0]))  # type: ignore
    return float(scale * (steps.reshape(-1, 1) * np.abs(integers)).max())


def test_bad_arguments() -> None:
    with pytest.raises(TrainError, match="at least 1 epoch"):
        quantize_aware(tiny_net(), (X, Y), epochs=0)
    with pytest.raises(TrainError, match="expected data as"):
        quantize_aware(tiny_net(), X)  # type: ignore[arg-type]
    with pytest.raises(TrainError, match="same number of examples"):
        quantize_aware(tiny_net(), (X, Y[:5]))
