"""`integers="litert"`: quantised operators that round otherwise than exact arithmetic give LiteRT's integers, bit for
bit; `integers="exact"` keeps the definitions of decision 0006."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import lite_runtime
from converter import ConvertError, convert
from tests.converter.frontends.tflite.builder import Builder, Quant, litert
from tests.converter.frontends.tflite.test_bit_exact import BYTES, drawn, quant
from tests.converter.streams import integer_lstm, wake_word

STEPS = 60


def stream(data: bytes, shape: tuple[int, ...], seed: int = 0, **settings: Any) -> tuple[float, set[str]]:
    """The share of outputs that differ from LiteRT's over STEPS runs on random bytes, and the bundle's operators."""
    theirs = Interpreter(model_content=data, num_threads=1)
    theirs.allocate_tensors()
    (entry,), (result,) = theirs.get_input_details(), theirs.get_output_details()
    made = convert(data, **settings)
    ours, rng, apart = lite_runtime.load(made.bundle, threads=1), np.random.default_rng(seed), []
    for _ in range(STEPS):
        x = drawn(rng, shape, entry["dtype"].__name__)
        theirs.set_tensor(entry["index"], x)
        theirs.invoke()
        (got,) = ours.run({ours.inputs()[0].name: x}).values()
        apart.append(np.mean(got != theirs.get_tensor(result["index"])))
    return float(np.mean(apart)), set(made.report.ops_after)


# recurrent cells


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_svdf(rank: int, bias: bool) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(4):
        batch, width, units, memory = (int(n) for n in rng.integers(1, 14, 4))
        features = units * rank
        x, by, over = Quant(0.03, int(rng.integers(-128, 128))), Quant(0.01), Quant(float(rng.uniform(1e-5, 1e-4)))
        line, out = Quant(float(rng.uniform(2e-4, 9e-4))), Quant(float(rng.uniform(0.01, 0.1)), -128)
        b = Builder()
        operands = [
            b.input("x", (batch, width), "int8", quant=x),
            b.const(drawn(rng, (features, width), "int8"), quant=by),
            b.const(drawn(rng, (features, memory), "int16"), quant=over),
            b.const(rng.integers(-(1 << 18), 1 << 18, units).astype(np.int32), quant=Quant(1e-8)) if bias else None,
            b.variable("line", (batch, memory * features), "int16", quant=line),
        ]
        options = {"rank": rank, "fused_activation_function": "RELU"}
        b.output(b.op("SVDF", operands, (batch, units), "int8", quant=out, version=3, **options))
        apart, ops = stream(b.build(), (batch, width))
        assert apart == 0 and "Rescale" in ops


LSTMS: list[dict[str, Any]] = [
    {},
    {"hidden_zero": 11},
    {"time_major": False},
    {"coupled": True},
    {"peephole": True},
    {"coupled": True, "peephole": True, "clip": 0.4},
    {"projected": 5},
    {"projected": 17, "bias": False},
    {"projected": 5, "clip": 0.3, "coupled": True},
    {"one_step": True, "projected": 5},
]


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("kind", range(len(LSTMS)))
def test_lstm(kind: int, time: int) -> None:
    for seed, batch in enumerate((1, 3)):
        data, shape = integer_lstm(batch=batch, time=time, cells=7 + 8 * seed, seed=seed, **LSTMS[kind])
        apart, ops = stream(data, shape, seed)
        assert apart == 0 and {"FixedPointSigmoid", "FixedPointTanh"} <= ops


def test_gates_of_different_sizes() -> None:
    with pytest.raises(ConvertError, match=r"constants of one shape for all gates, got \(12, 12\), \(12, 13\)"):
        convert(integer_lstm(uneven=True)[0])


# functions of one number, and of two


def one(op: str, dtype: str, result: str, seed: int, version: int = 1, **options: Any) -> set[str]:
    """The operator on random parameters: our integers are LiteRT's; the lite operators."""
    rng = np.random.default_rng([seed, len(op)])
    q = quant(rng, dtype) if dtype != "int16" else Quant(float(np.exp(rng.uniform(-9, -4))), 0)
    ratio = float(rng.choice([rng.uniform(0.3, 3), 300, 1 / 300, 1 / 150, 1 / 5]))
    y = quant(rng, result, float(q.scale) / ratio)
    y = y if result != "int16" else Quant(float(y.scale), 0)
    x = np.concatenate([drawn(rng, 1008, dtype), np.iinfo(dtype).min + np.arange(256)]).astype(dtype)
    model = Builder()
    entry = model.input("x", x.shape, dtype, quant=q)
    model.output(model.op(op, [entry], x.shape, result, quant=y, version=version, **options))
    data = model.build()
    made = convert(data)
    (got,) = lite_runtime.load(made.bundle, threads=1).run({"x": x}).values()
    np.testing.assert_array_equal(got, litert(data, [x], kernels="xnnpack")[0])
    return set(made.report.ops_after)


@pytest.mark.parametrize(
    ("dtype", "result"), [(a, b) for a in (*BYTES, "int16") for b in (*BYTES, "int16") if (a, b) != ("int16", "uint8")]
)
def test_quantize(dtype: str, result: str) -> None:
    for seed in range(16):
        ops = one("QUANTIZE", dtype, result, seed, 2)
        assert ops <= {"LookupTable", "Rescale"}


@pytest.mark.parametrize("alpha", [0.0, 0.004, 0.1, 1.5])
@pytest.mark.parametrize("dtype", [*BYTES, "int16"])
def test_leaky_relu(dtype: str, alpha: float) -> None:
    for seed in range(6):
        one("LEAKY_RELU", dtype, dtype, seed, 2, alpha=alpha)


@pytest.mark.parametrize("dtype", BYTES)
def test_hard_swish(dtype: str) -> None:
    """With input scales on both sides of 3 / 256, and results finer than the operand."""
    rng = np.random.default_rng(len(dtype))
    every = np.arange(256).astype(np.uint8).view(dtype)
    for scale in (0.001, 0.01, 0.0117, 0.0235, 0.04, 0.3):
        for _ in range(4):
            x, y = quant(rng, dtype, scale), quant(rng, dtype, scale * float(rng.uniform(0.3, 2)))
            model = Builder()
            model.output(model.op("HARD_SWISH", [model.input("x", (256,), dtype, quant=x)], (256,), dtype, quant=y))
            (got,) = lite_runtime.load(convert(model.build()).bundle).run({"x": every}).values()
            np.testing.assert_array_equal(got, litert(model.build(), [every], kernels="xnnpack")[0])


def test_tables_do_not_stop_transposes() -> None:
    """Between convolutions, whose channels come first in ONNX, a table keeps channels last."""
    rng, model = np.random.default_rng(0), Builder()
    value = model.input("x", (1, 8, 8, 4), "int8", quant=Quant(0.05, 3))
    for _ in range(2):
        weights = model.const(drawn(rng, (4, 3, 3, 4), "int8"), quant=Quant(np.full(4, 0.01), np.zeros(4, int)))
        options: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
        bias = model.const(np.zeros(4, np.int32), quant=Quant(np.full(4, 0.0005), np.zeros(4, int)))
        value = model.op("CONV_2D", [value, weights, bias], (1, 8, 8, 4), quant=Quant(0.05, -9), version=3, **options)
        value = model.op("HARD_SWISH", [value], (1, 8, 8, 4), "int8", quant=Quant(0.05, 3))
    model.output(value)
    x = drawn(rng, (1, 8, 8, 4), "int8")
    made = convert(model.build())
    assert set(made.report.ops_after) == {"QLinearConv", "LookupTable"}
    (got,) = lite_runtime.load(made.bundle).run({"x": x}).values()
    np.testing.assert_array_equal(got, litert(model.build(), [x], kernels="xnnpack")[0])


@pytest.mark.parametrize("activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1"])
@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL"])
def test_pairs_of_sixteen_bits(op: str, activation: str) -> None:
    rng = np.random.default_rng(len(activation))
    for a, b in [((3, 40), (3, 40)), ((2, 5, 7), (7,)), ((2, 1, 9), (1, 6, 1))]:
        left, right = (Quant(float(np.exp(rng.uniform(-9, -5))), 0) for _ in range(2))
        step = float(left.scale) * float(right.scale) * 2e4 if op == "MUL" else max(left.scale, right.scale)
        model = Builder()
        entries = [model.input(n, s, "int16", quant=q) for n, s, q in (("x", a, left), ("w", b, right))]
        shape = np.broadcast_shapes(a, b)
        y = Quant(float(step) * float(rng.uniform(0.7, 2)), 0)
        model.output(model.op(op, entries, shape, "int16", quant=y, version=2, fused_activation_function=activation))
        inputs = [drawn(rng, s, "int16") for s in (a, b)]
        made = convert(model.build())
        got = lite_runtime.load(made.bundle, threads=1).run(dict(zip("xw", inputs, strict=True)))
        np.testing.assert_array_equal(*got.values(), litert(model.build(), inputs, kernels="xnnpack")[0])
        assert not made.report.reference_ops


# convolutions


@pytest.mark.parametrize("activation", ["NONE", "RELU6"])
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_convolutions_of_sixteen_bits(op: str, activation: str) -> None:
    rng = np.random.default_rng(len(op))
    for channels, filters in ((16, 24), (5, 7), (3, 1)):
        filters = filters if op == "CONV_2D" else channels
        shape = (filters, 3, 3, channels) if op == "CONV_2D" else (1, 3, 3, channels)
        x, scale = Quant(float(np.exp(rng.uniform(-9, -5))), 0), rng.uniform(0.001, 0.02, filters).astype(np.float32)
        steps = Quant(scale * np.float32(x.scale), np.zeros(filters, int))
        y = Quant(float(x.scale) * float(rng.uniform(0.3, 2)), 0)
        model = Builder()
        operands = [
            model.input("x", (2, 9, 8, channels), "int16", quant=x),
            model.const(rng.integers(-127, 128, shape).astype(np.int8), quant=Quant(scale, 0, 0 if filters == shape[0]
                        and op == "CONV_2D" else 3)),
            model.const(rng.integers(-(1 << 20), 1 << 20, filters), quant=steps),
        ]  # fmt: skip
        options: dict[str, Any] = {"padding": "SAME", "stride_h": 2, "stride_w": 1}
        options |= {"fused_activation_function": activation}
        options |= {} if op == "CONV_2D" else {"depth_multiplier": 1}
        model.output(model.op(op, operands, (2, 5, 8, filters), "int16", quant=y, version=4, **options))
        entry, made = drawn(rng, (2, 9, 8, channels), "int16"), convert(model.build())
        assert set(made.report.ops_after) == {"QLinearConv"}
        (got,) = lite_runtime.load(made.bundle, threads=1).run({"x": entry}).values()
        np.testing.assert_array_equal(got, litert(model.build(), [entry], kernels="xnnpack")[0])


@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
def test_biases_near_the_limit(op: str) -> None:
    """Saturated biases, with which sums wrap around: the same 32 bits."""
    rng, n = np.random.default_rng(3), 8
    x, scale = Quant(0.02, 3), np.full(n, 1e-9, np.float32)
    dense = op == "FULLY_CONNECTED"
    shape = (n, n) if dense else (n, 3, 3, n) if op == "CONV_2D" else (1, 3, 3, n)
    limits = np.where(np.arange(n) % 2, np.int32(2**31 - 1), np.int32(-(2**31)))
    limits[:3] = (2**31 - 40_000, 17, -(2**31) + 90_000)
    steps = Quant(scale * np.float32(0.02), np.zeros(n, int))
    y, size = Quant(2e-4, 5), (2, n) if dense else (2, 9, 8, n)
    model = Builder()
    operands = [
        model.input("x", size, "int8", quant=x),
        model.const(rng.integers(-127, 128, shape).astype(np.int8), quant=Quant(scale, 0, 3 if "DEPTH" in op else 0)),
        model.const(limits.astype(np.int32), quant=steps),
    ]
    options: dict[str, Any] = {} if dense else {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    options |= {"depth_multiplier": 1} if "DEPTH" in op else {}
    model.output(model.op(op, operands, size, "int8", quant=y, version=5 if dense else 3, **options))
    entry, made = drawn(rng, size, "int8"), convert(model.build())
    assert made.report.ops_after.keys() & {"QLinearConv", "QLinearMatMul"}
    expected = litert(model.build(), [entry], kernels="xnnpack")[0]
    for backend in ("native", "reference"):
        (got,) = lite_runtime.load(made.bundle, threads=1, backend=backend).run({"x": entry}).values()
        np.testing.assert_array_equal(got, expected)


# the switch


def test_exact_arithmetic_on_request() -> None:
    data = wake_word(quantised=True)
    apart, ops = stream(data, (1, 16), integers="exact")
    assert 0 < apart < 0.1 and "Rescale" not in ops
    made = convert(data, integers="exact")
    assert made.report.integers == "exact" and convert(data).report.integers == "litert"
    kept = [lite_runtime.load(c.bundle).bundle.provenance["integers"] for c in (made, convert(data))]
    assert kept == ["exact", "litert"]


def test_exact_where_the_model_is_changed_further() -> None:
    data = wake_word(quantised=True)
    assert convert(data, to="onnx").report.integers == "exact"
    with pytest.raises(ConvertError, match=r"integers: expected exact with to='onnx', got litert"):
        convert(data, to="onnx", integers="litert")
    with pytest.raises(ConvertError, match="integers: expected exact or litert, got 'half'"):
        convert(data, integers="half")  # type: ignore[arg-type]


def test_only_for_tensorflow_lite() -> None:
    import onnx

    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:]))
    with pytest.raises(ConvertError, match=r"integers: .* got ONNX; omit it"):
        convert(model, integers="exact")
