"""Stored weights become floats of the same values, and quantising them again finds the same integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from converter.errors import QuantizeError
from converter.ir import build
from converter.quantize import Options, quantize
from converter.quantize.rounding import unpack
from tests.converter.quantize.support import prepared, run
from tests.converter.support import Builder


def network(b, *, axis=1, transposed=False):
    weights = b.rng.integers(-127, 128, (24, 32)).astype(np.int8)
    weights[:, 0], weights[0] = 127, 127
    scales = b.const(b.rng.uniform(0.01, 0.02, 24 if transposed else weights.shape[axis]).astype(np.float32))
    w = b("DequantizeLinear", b.const(weights), scales, axis=0 if transposed else axis)
    w = b("Transpose", w, perm=[1, 0]) if transposed else w
    return weights, b.model(b("MatMul", b.input("x", [1, 32 if transposed else 24]), w))


@pytest.mark.parametrize("transposed", [False, True])
def test_integers_come_back(transposed):
    weights, proto = network(Builder(), transposed=transposed)
    model = prepared(proto)
    data = np.random.default_rng(0).standard_normal((8, 32 if transposed else 24)).astype(np.float32)
    wanted = run(model, {"x": data[:1]})[0]
    assert unpack.run(model) == 1 and not any(n.op_type == "DequantizeLinear" for n in model.graph)
    np.testing.assert_allclose(run(model, {"x": data[:1]})[0], wanted, rtol=1e-5, atol=1e-5)
    model = prepared(proto)
    record = quantize(model, Options(equalize=False, bias_correction=False, gptq=False), data)
    assert [n.status for n in record.nodes if n.op == "MatMul"] == ["integer"]
    stored = next(
        a
        for v in model.graph.initializers.values()
        if (a := build.array(v)).shape == weights.shape[:: -1 if transposed else 1]
    )
    assert (stored == (weights.T if transposed else weights)).mean() > 0.99


def test_blocks_and_zero_points():
    b = Builder()
    packed = b.rng.integers(-8, 8, (8, 6)).astype(ml_dtypes.int4)
    scales = b.rng.uniform(0.1, 0.2, (2, 6)).astype(np.float32)
    stored = b.const(packed)
    w = b("DequantizeLinear", stored, b.const(scales), axis=0, block_size=4)
    other = b("DequantizeLinear", b.const([[3, 250]], np.uint8), b.const(0.5, np.float32), b.const(128, np.uint8))
    model = prepared(b.model(b("MatMul", b.input("x", [1, 8]), w), b("Add", b.input("z", [1, 2]), other)))
    assert unpack.run(model) == 2
    arrays = {v.shape.numpy(): build.array(v) for v in model.graph.initializers.values() if v.uses()}
    np.testing.assert_array_equal(arrays[8, 6], packed.astype(np.float32) * np.repeat(scales, 4, axis=0))
    np.testing.assert_array_equal(arrays[1, 2], [[-62.5, 61]])


def test_a_quantised_model_is_refused():
    b = Builder()
    x, scale, zero = b.input("x", [1, 4]), b.const(0.1, np.float32), b.const(0, np.int8)
    y = b("DequantizeLinear", b("QuantizeLinear", x, scale, zero), scale, zero)
    model = prepared(b.model(b("MatMul", y, b.weight(4, 4))))
    with pytest.raises(QuantizeError, match="already"):
        quantize(model, Options(), np.ones((2, 4)))
