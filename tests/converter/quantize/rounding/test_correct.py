"""Bias correction: means agree afterwards, outputs are closer, the order of samples changes nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from converter.quantize import Options, quantize
from converter.quantize.rounding import correct
from tests.converter.quantize.support import Builder, prepared, run, samples


def network(seed: int, *, biased: bool) -> Builder:
    """Convolutions whose weights' rounding shifts means: inputs are positive, weights of a channel differ widely."""
    b = Builder(seed=seed)
    rng = b.rng

    def weight(*shape: int) -> str:
        return b.const((rng.standard_t(2, shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    bias = (lambda n: (b.weight(n),)) if biased else (lambda n: ())
    x = b("Relu", b("Conv", b.input("x", ["n", 3, 8, 8]), weight(16, 3, 3, 3), *bias(16), pads=[1] * 4))
    x = b("Relu", b("Conv", x, weight(24, 16, 3, 3), *bias(24)))
    x = b("Relu", b("ConvTranspose", x, weight(24, 8, 2, 2), *bias(8), strides=[2, 2]))
    x = b("Flatten", b("GlobalAveragePool", x))
    x = b("Relu", b("Add", b("MatMul", x, weight(8, 32)), b.weight(32)))
    b("Gemm", x, weight(32, 10), *bias(10))
    return b


def pair(seed: int, *, biased: bool = True, mode: str = "int8") -> tuple[ir.Model, ir.Model, np.ndarray]:
    b = network(seed, biased=biased)
    reference = prepared(b.model(b.nodes[-1].output[0]))
    x = np.random.default_rng(seed).random((40, 3, 8, 8)).astype(np.float32)
    model = reference.clone()
    quantize(model, Options(mode=mode, equalize=False, bias_correction=False, gptq=False), samples(reference, x))
    return model, reference, x


@pytest.mark.parametrize("biased", (True, False))
def test_means_of_the_result_agree_afterwards(biased):
    model, reference, x = pair(0, biased=biased)
    wanted, before = run(reference, {"x": x})[0], run(model, {"x": x})[0]
    changed = correct.run(model, reference, samples(reference, x))
    after = run(model, {"x": x})[0]
    assert changed >= 4
    shift_before, shift_after = (np.abs((r - wanted).mean(axis=0)).max() for r in (before, after))
    assert shift_after < 0.4 * shift_before
    assert np.square(after - wanted).sum() < np.square(before - wanted).sum()


def test_int32_biases_stay_integers_in_their_own_unit():
    model, reference, x = pair(1)
    stored = {
        n.name: n.inputs[2].producer().inputs[1] for n in model.graph if n.op_type == "Conv" and n.inputs[2].producer()
    }
    correct.run(model, reference, samples(reference, x))
    for node in model.graph:
        if node.name in stored:
            bias = node.inputs[2].producer()
            assert bias.op_type == "DequantizeLinear" and bias.inputs[0].dtype == ir.DataType.INT32
            assert bias.inputs[1] is stored[node.name]


def test_order_of_samples_changes_nothing():
    results = []
    for turn in (1, -1):
        model, reference, x = pair(2)
        correct.run(model, reference, samples(reference, x[::turn]))
        results.append(ir.to_proto(model).SerializeToString(deterministic=True))
    assert results[0] == results[1]


def test_float_models_and_perfect_ones_are_left_alone():
    _, reference, x = pair(3)
    rows = samples(reference, x)
    assert correct.run(reference.clone(), reference, rows) == 0
    b = Builder(seed=4)
    identity = prepared(b.model(b("MatMul", b.input("x", ["n", 8]), b.const(np.eye(8, dtype=np.float32) * 127))))
    model = identity.clone()
    quantize(model, Options(mode="w8", gptq=False))
    assert correct.run(model, identity, samples(identity, np.eye(8, dtype=np.float32))) == 0


def test_means_of_sixteen_bits():
    model, reference, x = pair(5, mode="int16x8")
    wanted, before = run(reference, {"x": x})[0], run(model, {"x": x})[0]
    correct.run(model, reference, samples(reference, x))
    after = run(model, {"x": x})[0]
    assert np.square(after - wanted).sum() <= np.square(before - wanted).sum()
