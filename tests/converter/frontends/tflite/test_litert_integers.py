"""`integers="litert"`: quantised operators that round otherwise than exact arithmetic give LiteRT's integers, bit for
bit; `integers="exact"` keeps the definitions of decision 0006."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import lite_runtime
from converter import ConvertError, convert
from tests.converter.frontends.tflite.builder import Builder, Quant
from tests.converter.frontends.tflite.test_bit_exact import drawn
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
]


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("kind", range(len(LSTMS)))
def test_lstm(kind: int, time: int) -> None:
    for seed, batch in enumerate((1, 3)):
        data, shape = integer_lstm(batch=batch, time=time, cells=7 + 8 * seed, seed=seed, **LSTMS[kind])
        apart, ops = stream(data, shape, seed)
        assert apart == 0 and {"FixedPointSigmoid", "FixedPointTanh"} <= ops


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
