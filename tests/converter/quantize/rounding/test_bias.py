"""Where biases are, and adding to them in every form they take."""

from __future__ import annotations

import numpy as np
import pytest

from converter.quantize import Options, quantize
from converter.quantize.rounding import bias
from tests.converter.quantize.support import Builder, prepared, run, samples

SHIFT = np.linspace(-2, 3, 6).astype(np.float32)


def contraction(op: str, biased: bool) -> Builder:
    b = Builder(seed=1)
    given = [b.weight(6)] if biased else []
    if op == "Conv":
        b("Conv", b.input("x", ["n", 4, 5, 5]), b.weight(6, 4, 3, 3), *given)
    elif op == "Gemm":
        b("Gemm", b.input("x", ["n", 4]), b.weight(4, 6), *given)
    else:
        x = b("MatMul", b.input("x", ["n", 4]), b.weight(4, 6))
        if biased:
            b("Add", given[0], x)
        else:
            b("Relu", x)
    return b


@pytest.mark.parametrize("biased", (True, False))
@pytest.mark.parametrize("op", ("Conv", "Gemm", "MatMul"))
def test_an_added_correction_reaches_the_output(op, biased):
    b = contraction(op, biased)
    model = prepared(b.model(b.nodes[-1].output[0]))
    shape = (3, 4, 5, 5) if op == "Conv" else (3, 4)
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    before = run(model, {"x": x})[0]
    node = next(n for n in model.graph if n.op_type in bias.AXES)
    found = bias.place(node)
    assert (found is None) == (op == "MatMul" and not biased)
    bias.compensate(node, None)
    bias.compensate(node, SHIFT)
    wanted = SHIFT.reshape(-1, 1, 1) if op == "Conv" else SHIFT
    np.testing.assert_allclose(run(model, {"x": x})[0], before if found is None else before + wanted, atol=1e-5)


def test_integer_biases_move_by_whole_steps():
    b = Builder(seed=3)
    x = b("Relu", b("Conv", b.input("x", ["n", 4, 6, 6]), b.weight(6, 4, 3, 3), b.weight(6)))
    b("Conv", x, b.weight(5, 6, 3, 3))
    model = prepared(b.model(b.nodes[-1].output[0]))
    data = np.random.default_rng(4).standard_normal((8, 4, 6, 6)).astype(np.float32)
    quantize(model, Options(equalize=False, bias_correction=False, gptq=False), samples(model, data))
    node = next(n for n in model.graph if n.op_type == "Conv")
    before = bias.integers(node.inputs[2])
    assert before is not None and before[0].dtype == np.int32
    found = bias.place(node)
    assert found is not None
    assert found.add(SHIFT) and not found.add(np.zeros(6, np.float32)) and not found.add(before[1] / 4)
    after = bias.integers(node.inputs[2])
    assert after is not None and np.abs((after[0] - before[0]) * before[1] - SHIFT).max() <= before[1].max()
