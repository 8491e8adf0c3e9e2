"""Quantised operators of one-operator models: the runtime's results are bit-identical to LiteRT's.

LiteRT as it comes: with XNNPACK, which the definitions of the integer operators follow. Of softmax one element in some
millions differs by a step (LiteRT adds float32 exponentials in memory order): none of those drawn here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import convert
from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor, litert

BYTES = ("int8", "uint8")


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def quant(rng: np.random.Generator, dtype: str, scale: float = 0.0) -> Quant:
    step = float(np.float32(scale or np.exp(rng.uniform(-4, -2))))
    return Quant(step, int(drawn(rng, (), dtype)))


def equal(model: Builder, inputs: Sequence[np.ndarray], ops: Sequence[str] = ()) -> None:
    """Convert and run natively; every output equals LiteRT's. ops: what must be among the lite graph's operators."""
    data = model.build()
    made = convert(data)
    assert set(ops) <= set(made.report.ops_after), made.report.ops_after
    runner = lite_runtime.load(made.bundle, threads=1)
    names = [value.name for value in runner.inputs("predict")]
    got = runner.run(dict(zip(names, inputs, strict=True)))
    for mine, theirs in zip(got.values(), litert(data, inputs, kernels="xnnpack"), strict=True):
        np.testing.assert_array_equal(mine, theirs)


SHAPES = [((3, 40, 50), (3, 40, 50)), ((3, 40, 50), (50,)), ((2, 9, 9, 33), (2, 1, 1, 33)), ((2, 1, 70), (1, 60, 1))]


@pytest.mark.parametrize(("activation", "constant"), [("NONE", False), ("RELU", True), ("RELU6", False)])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL"])
def test_two_tensors(op: str, dtype: str, activation: str, constant: bool) -> None:
    rng = np.random.default_rng(len(activation))
    for a, b in SHAPES:
        left, right = quant(rng, dtype), quant(rng, dtype)
        step = np.multiply(left.scale, right.scale) * rng.uniform(40, 200) if op == "MUL" else rng.uniform(0.02, 0.2)
        model, other = Builder(), drawn(rng, b, dtype)
        x = model.input("x", a, dtype, quant=left)
        w = model.const(other, quant=right) if constant else model.input("w", b, dtype, quant=right)
        shape, result = np.broadcast_shapes(a, b), quant(rng, dtype, float(step))
        model.output(model.op(op, [x, w], shape, quant=result, version=2, fused_activation_function=activation))
        equal(model, [drawn(rng, a, dtype)] + [other] * (not constant), [f"QLinear{op.capitalize()}"])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (4, 4), (7, 7), (12, 12)])
@pytest.mark.parametrize("dtype", BYTES)
def test_average_pool(dtype: str, kernel: tuple[int, int], padding: str) -> None:
    rng = np.random.default_rng(kernel[0])
    q, model = quant(rng, dtype), Builder()
    x = model.input("x", (2, 12, 12, 19), dtype, quant=q)
    high, wide = kernel if padding == "VALID" else (1, 1)
    options: dict[str, Any] = {
        "filter_height": kernel[0],
        "filter_width": kernel[1],
        "stride_h": 1,
        "stride_w": 1,
        "padding": padding,
    }
    model.output(model.op("AVERAGE_POOL_2D", [x], (2, 13 - high, 13 - wide, 19), quant=q, version=2, **options))
    equal(model, [drawn(rng, (2, 12, 12, 19), dtype)])


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("axes", [(1, 2), (3,), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", BYTES)
def test_mean(dtype: str, axes: tuple[int, ...], alike: bool) -> None:
    rng = np.random.default_rng(sum(axes))
    shape = (3, 4, 6, 10)
    for _ in range(3):
        q = quant(rng, dtype)
        result = q if alike else quant(rng, dtype, float(np.multiply(q.scale, rng.uniform(0.3, 1.5))))
        model = Builder()
        x = model.input("x", shape, dtype, quant=q)
        out = [1 if i in axes else n for i, n in enumerate(shape)]
        where = model.const(np.array(axes, np.int32))
        model.output(model.op("MEAN", [x, where], out, quant=result, version=2, keep_dims=True))
        equal(model, [drawn(rng, shape, dtype)])


@pytest.mark.parametrize("scale", [0.004, 0.05, 0.6])
@pytest.mark.parametrize("width", [2, 3, 10, 33, 1001])
@pytest.mark.parametrize("dtype", BYTES)
def test_softmax(dtype: str, width: int, scale: float) -> None:
    rng = np.random.default_rng(width)
    model = Builder()
    x = model.input("x", (100, width), dtype, quant=quant(rng, dtype, scale))
    result = Quant(1 / 256, int(np.iinfo(dtype).min))
    model.output(model.op("SOFTMAX", [x], (100, width), quant=result, version=2, beta=1.0))
    equal(model, [drawn(rng, (100, width), dtype)], ["QLinearSoftmax"])


def dense(model: Builder, x: Tensor, weights: np.ndarray, q: Quant, bias: Tensor, shape: Any, **options: Any) -> Tensor:
    version = 4 if x.dtype in BYTES else 9
    return model.op("FULLY_CONNECTED", [x, model.const(weights, quant=q), bias], shape, version=version, **options)


@pytest.mark.parametrize("activation", ["NONE", "RELU"])
def test_fully_connected(activation: str) -> None:
    rng = np.random.default_rng(4)
    model, q = Builder(), quant(rng, "int8")
    weights = Quant(rng.uniform(0.001, 0.02, 17), np.zeros(17, int))
    x = model.input("x", (5, 70), "int8", quant=q)
    steps = Quant(np.asarray(weights.scale) * q.scale, np.zeros(17, int))
    bias = model.const(rng.integers(-9999, 9999, 17).astype(np.int32), quant=steps)
    stored = rng.integers(-127, 128, (17, 70)).astype(np.int8)
    result = quant(rng, "int8", 0.3)
    made = dense(model, x, stored, weights, bias, (5, 17), quant=result, fused_activation_function=activation)
    model.output(made)
    equal(model, [drawn(rng, (5, 70), "int8")], ["QLinearMatMul"])


@pytest.mark.parametrize("activation", ["NONE", "RELU6"])
@pytest.mark.parametrize("shift", [-4.0, 0.0, 0.3, 5.0])
def test_rows_quantised_at_run_time(shift: float, activation: str) -> None:
    """The integers, and the float results, whose product and sum are rounded as one."""
    rng = np.random.default_rng(8)
    model = Builder()
    stored = rng.integers(-127, 128, (17, 70)).astype(np.int8)
    x = model.input("x", (40, 70))
    bias = model.const(rng.normal(size=17).astype(np.float32))
    weights = Quant(rng.uniform(0.001, 0.02, 17), np.zeros(17, int))
    options: dict[str, Any] = {"fused_activation_function": activation, "asymmetric_quantize_inputs": True}
    model.output(dense(model, x, stored, weights, bias, (40, 17), **options))
    equal(model, [(rng.normal(size=(40, 70)) + shift).astype(np.float32)], ["DynamicQuantizeLinear", "QLinearMatMul"])


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (3, 2)])
def test_images_quantised_at_run_time(kernel: tuple[int, int]) -> None:
    rng = np.random.default_rng(9)
    model = Builder()
    stored = rng.integers(-127, 128, (9, *kernel, 8)).astype(np.int8)
    x = model.input("x", (3, 7, 6, 8))
    weights = model.const(stored, quant=Quant(rng.uniform(0.001, 0.02, 9), np.zeros(9, int)))
    bias = model.const(rng.normal(size=9).astype(np.float32))
    options: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1, "fused_activation_function": "RELU"}
    model.output(model.op("CONV_2D", [x, weights, bias], (3, 7, 6, 9), version=5, **options))
    equal(model, [(rng.normal(size=(3, 7, 6, 8)) + 0.4).astype(np.float32)], ["DynamicQuantizeLinear"])
