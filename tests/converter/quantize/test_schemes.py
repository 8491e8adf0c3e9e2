"""The plan: what becomes integer, what stays float and why, what shares parameters."""

from __future__ import annotations

import pytest

from converter.quantize.options import Options
from converter.quantize.schemes import SCHEMES, fixed_params, plan
from tests.converter.quantize.support import prepared
from tests.converter.support import Builder


def conv(b, x, c=4, m=4):
    return b("Conv", x, b.weight(m, c, 3, 3), b.weight(m), pads=[1, 1, 1, 1])


def planned(b, *outputs, **options):
    model = prepared(b.model(*outputs))
    found = plan(model, Options(**options))
    integer = sorted(node.op_type for node in found.integer)
    tensors = [v.producer().op_type if v.producer() is not None else "input" for v in found.tensors]
    return model, found, integer, tensors


def image(b, channels=4):
    return b.input("x", [1, channels, 8, 8])


def test_a_chain_of_convolutions():
    b = Builder()
    y = conv(b, b("Relu", conv(b, image(b))))
    _, _, integer, tensors = planned(b, y)
    assert integer == ["Conv", "Conv", "Relu"]
    assert tensors == ["input", "Relu"]  # the last result is float, the first is quantised after its activation


def test_the_head_and_the_preprocessing_stay_float():
    b = Builder()
    x = b("Mul", b("Sub", image(b), b.const([127.0], "float32")), b.const([0.01], "float32"))
    y = b("Softmax", b("Flatten", b("GlobalAveragePool", b("Relu", conv(b, conv(b, b("Tanh", x)))))))
    _, found, integer, tensors = planned(b, y)
    assert integer == ["Conv", "Conv"] and tensors == ["Tanh", "Conv"]
    reasons = {node.op_type: why for node, why in found.reasons.items()}
    assert "before it" in reasons["Tanh"] and "straight from the accumulator" in reasons["Softmax"]


@pytest.mark.parametrize("op", ["HardSwish", "Sigmoid", "Gelu", "LeakyRelu", "Tanh"])
def test_tables_get_their_own_operand(op):
    b = Builder()
    _, found, _integer, tensors = planned(b, conv(b, b(op, conv(b, image(b)))))
    assert tensors == ["input", "Conv", op]
    fixed = fixed_params(list(found.tensors)[2].producer(), "int8")
    assert (fixed is not None) == (op in ("Sigmoid", "Tanh"))


@pytest.mark.parametrize("op", ["Atan", "Asinh", "Shrink"])
def test_functions_of_a_tame_range_are_tables(op):
    b = Builder()
    _, _, _, tensors = planned(b, conv(b, b(op, conv(b, image(b)))))
    assert tensors == ["input", "Conv", op]


def test_gated_units_are_one_pass_over_integers():
    b = Builder(28)
    x = conv(b, image(b))
    _, _, integer, tensors = planned(b, conv(b, b("SwiGLU", conv(b, x), conv(b, x))))
    assert integer.count("SwiGLU") == 1 and tensors[-1] == "SwiGLU"


def test_residuals_are_one_pass():
    b = Builder()
    x = b("Relu", conv(b, image(b)))
    y = conv(b, b("Relu", b("Add", conv(b, x), x)))
    _, _, _, tensors = planned(b, y)
    assert tensors == ["input", "Relu", "Conv", "Relu"]  # nothing between Add and its Relu


def test_residual_streams_before_a_normalisation_stay_float():
    b = Builder()
    x = b.input("x", [1, 5, 8])
    for _ in range(2):
        n = b("LayerNormalization", x, b.weight(8), b.weight(8))
        hidden = b("Gelu", b("Add", b("MatMul", n, b.weight(8, 16)), b.weight(16)))
        x = b("Add", x, b("Add", b("MatMul", hidden, b.weight(16, 8)), b.weight(8)))
    y = b("LayerNormalization", x, b.weight(8), b.weight(8))
    _, found, _, tensors = planned(b, y)
    assert tensors == ["LayerNormalization", "Add", "Gelu"] * 2
    assert all("8-bit" in why for node, why in found.reasons.items() if node.op_type == "LayerNormalization")


def test_movement_shares_parameters():
    b = Builder()
    y = b("MaxPool", b("Relu", conv(b, image(b))), kernel_shape=[2, 2], strides=[2, 2])
    y = b("Transpose", y, perm=[0, 2, 3, 1])
    y = b("MatMul", b("Reshape", y, b.const([1, 16, 4], "int64")), b.weight(4, 3))
    _, found, _, tensors = planned(b, y)
    assert tensors[:3] == ["input", "Relu", "MaxPool"]
    assert len({found.tensors[v] for v in list(found.tensors)[1:]}) == 1


def test_concat_shares_a_scale_with_operands_that_only_it_reads():
    b = Builder()
    x = b("Relu", conv(b, image(b)))
    left, right = b("Relu", conv(b, x)), b("Relu", conv(b, x))
    y = conv(b, b("Concat", left, right, x, axis=1), 12)
    _, found, _, _ = planned(b, y)
    roots = {v.producer().inputs[0].producer().name if v.producer() else "x": r for v, r in found.tensors.items()}
    assert len(set(roots.values())) == 3  # input; x, which the convolutions read too; left, right and the Concat


def test_attention_products_are_integer_on_both_sides():
    b = Builder()
    x = b.input("x", [1, 6, 8])
    q, k = (b("MatMul", x, b.weight(8, 8)) for _ in range(2))
    score = b("MatMul", q, b("Transpose", k, perm=[0, 2, 1]))
    y = b("MatMul", b("Relu", score), b.weight(6, 3))
    _, _, integer, tensors = planned(b, y)
    assert integer.count("MatMul") == 4
    assert tensors == ["input", "MatMul", "MatMul", "Transpose", "Relu"]


def test_schemes_follow_the_options():
    b = Builder()
    y = conv(b, b("Relu", conv(b, b("Relu", conv(b, image(b))))))
    model = prepared(b.model(y))
    names = [node.name for node in model.graph if node.op_type == "Conv"]
    kept = plan(model, Options(keep_float=(names[1],)))
    assert sum(n.op_type == "Conv" for n in kept.integer) == 2 and not kept.weights
    assert "by options" in next(why for node, why in kept.reasons.items() if node.name == names[1])
    assert not plan(model, Options(keep_float=("Conv",))).tensors
    b = Builder()
    y = b("MatMul", b("Relu", b("MatMul", b.input("x", [2, 32]), b.weight(32, 32))), b.weight(32, 8))
    model = prepared(b.model(y))
    wide = plan(model, Options(weight_only=("MatMul",)))
    assert not wide.integer and not wide.tensors and len(wide.weights) == 1  # the second is too small to be worth it


def test_operators_without_an_integer_form_are_reported():
    b = Builder()
    x = conv(b, image(b))
    w = b("Relu", b.input("w", [4, 4, 3, 3]))
    y = b("Conv", b("Exp", x), w)
    y = b("Gemm", b("Flatten", y), b.weight(144, 3), b.weight(3), alpha=0.5)
    _, found, integer, _ = planned(b, y)
    reasons = {node.op_type: why for node, why in found.reasons.items()}
    assert integer == ["Conv"] and "computed, not constant" in reasons["Conv"]
    assert "magnitudes" in reasons["Exp"] and "alpha" in reasons["Gemm"]


def test_with_integer_outputs_the_head_is_quantised_too():
    b = Builder()
    y = b("Softmax", b("Gemm", b("Flatten", b("Relu", conv(b, image(b)))), b.weight(256, 5), b.weight(5)))
    _, _, integer, tensors = planned(b, y, io="int8")
    assert integer == ["Conv", "Flatten", "Gemm", "Relu", "Softmax"] or "Reshape" in integer
    assert tensors[-1] == "Softmax" and "Gemm" in tensors


def test_the_table_names_real_operators():
    import onnx

    known = {s.name for s in onnx.defs.get_all_schemas()} | {"QuickGelu", "Silu"}
    assert set(SCHEMES) <= known
