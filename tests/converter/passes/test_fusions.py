"""Each fusion is applied where it is valid, not elsewhere, and changes no result."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.converter.support import Builder, check, converted, ops


def conv(b: Builder, x: str, c: int = 3, m: int = 4, **attrs) -> str:
    return b("Conv", x, b.weight(m, c, 3, 3), b.weight(m), pads=[1, 1, 1, 1], **attrs)


def image(b: Builder, c: int = 3) -> str:
    return b.input("x", [1, c, 6, 5])


def body(graph) -> list[str]:
    return [op for op in ops(graph) if op not in ("Transpose", "Reshape")]


ACTIVATIONS = {
    "Relu": lambda b, x: b("Relu", x),
    "Sigmoid": lambda b, x: b("Sigmoid", x),
    "Tanh": lambda b, x: b("Tanh", x),
    "LeakyRelu": lambda b, x: b("LeakyRelu", x, alpha=0.3),
    "Elu": lambda b, x: b("Elu", x, alpha=0.7),
    "HardSigmoid": lambda b, x: b("HardSigmoid", x, alpha=0.3, beta=0.4),
    "HardSwish": lambda b, x: b("HardSwish", x),
    "Clip": lambda b, x: b("Clip", x, b.const(0.0, np.float32), b.const(6.0, np.float32)),
    "Silu": lambda b, x: b("Mul", x, b("Sigmoid", x)),
    "Gelu": lambda b, x: gelu(b, x),
    "GeluTanh": lambda b, x: gelu_tanh(b, x),
}


def f32(b: Builder, value: float) -> str:
    return b.const(value, np.float32)


def gelu(b: Builder, x: str) -> str:
    gate = b("Add", b("Erf", b("Div", x, f32(b, math.sqrt(2)))), f32(b, 1))
    return b("Mul", b("Mul", x, gate), f32(b, 0.5))


def gelu_tanh(b: Builder, x: str) -> str:
    cube = b("Mul", f32(b, 0.044715), b("Pow", x, f32(b, 3)))
    inner = b("Mul", f32(b, math.sqrt(2 / math.pi)), b("Add", x, cube))
    return b("Mul", b("Mul", f32(b, 0.5), x), b("Add", f32(b, 1), b("Tanh", inner)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_go_into_the_convolution(name):
    b = Builder(20)
    graph = check(b.model(ACTIVATIONS[name](b, conv(b, image(b)))))
    assert body(graph) == ["Conv"]
    node = next(n for n in graph.nodes if n.op == "Conv")
    assert node.attrs["activation"] == name and node.attrs["layout"] == "NHWC"


@pytest.mark.parametrize("name", ["Relu", "Clip", "Silu", "GeluTanh"])
def test_activations_go_into_the_matmul(name):
    b = Builder(20)
    x = b("Add", b("MatMul", b.input("x", [2, 5]), b.weight(5, 4)), b.weight(4))
    graph = check(b.model(ACTIVATIONS[name](b, x)))
    assert ops(graph) == ["MatMul"] and graph.nodes[0].attrs["activation"] == name


def test_relu_six():
    b = Builder(20)
    y = b("Min", b("Relu", conv(b, image(b))), f32(b, 6))
    graph = check(b.model(y))
    assert body(graph) == ["Conv"]


@pytest.mark.parametrize("shape", range(5))
def test_hard_swish_written_out(shape):
    b = Builder(20)
    x = b.input("x", [3, 4])
    hard = b("Clip", b("Add", x, f32(b, 3)), f32(b, 0), f32(b, 6))
    forms = [
        lambda: b("Div", b("Mul", x, hard), f32(b, 6)),
        lambda: b("Mul", x, b("Div", hard, f32(b, 6))),
        lambda: b("Mul", b("Mul", hard, f32(b, 1 / 6)), x),
        lambda: b("Mul", b("Mul", hard, x), f32(b, 1 / 6)),
        lambda: b("Mul", x, b("HardSigmoid", x, alpha=1 / 6, beta=0.5)),
    ]
    model = b.model(forms[shape]())
    used = {i for n in model.graph.node for i in n.input}
    assert ops(check(model)) == ["HardSwish"], used


def test_an_activation_of_a_result_read_twice_stays():
    b = Builder(20)
    y = conv(b, image(b))
    graph = check(b.model(b("Relu", y), b("Abs", y)))
    assert {"Conv", "Relu", "Abs"} <= set(ops(graph))


def test_an_activation_of_a_graph_output_stays():
    b = Builder(20)
    y = conv(b, image(b))
    assert "Relu" in ops(check(b.model(y, b("Relu", y))))


def batch_norm(b: Builder, x: str, c: int) -> str:
    var = b.const(b.rng.random(c).astype(np.float32) + 0.5)
    return b("BatchNormalization", x, b.weight(c), b.weight(c), b.weight(c), var)


def test_batch_norm_and_affine_go_into_the_convolution():
    b = Builder(20)
    y = batch_norm(b, b("Conv", image(b, 4), b.weight(6, 2, 3, 3), group=2), 6)
    y = b("Mul", b("Add", y, b.weight(6, 1, 1)), f32(b, 3))
    y = b("Sub", f32(b, 1), b("Div", y, b.const(np.arange(1, 7).reshape(6, 1, 1), np.float32)))
    assert body(check(b.model(y))) == ["Conv"]


def test_batch_norm_goes_into_the_transposed_convolution():
    b = Builder(20)
    y = b("ConvTranspose", image(b, 4), b.weight(4, 3, 2, 2), group=2, strides=[2, 2])
    assert body(check(b.model(batch_norm(b, y, 6)))) == ["ConvTranspose"]


def test_a_constant_that_varies_in_space_stays():
    b = Builder(20)
    assert body(check(b.model(b("Mul", conv(b, image(b)), b.weight(6, 5))))) == ["Conv", "Mul"]


def test_batch_norm_before_matmuls_goes_into_them():
    b = Builder(20)
    x = batch_norm(b, b.input("x", [3, 5]), 5)
    graph = check(b.model(b("MatMul", x, b.weight(5, 2)), b("Gemm", x, b.weight(4, 5), b.weight(4), transB=1)))
    assert ops(graph) == ["MatMul", "MatMul"]


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0)])
def test_gemm(alpha, beta):
    b = Builder(20)
    y = b("Gemm", b.input("x", [5, 3]), b.weight(4, 5), b.weight(4), alpha=alpha, beta=beta, transA=1, transB=1)
    graph = check(b.model(y))
    assert ops(graph) == ["MatMul"] and graph.nodes[0].attrs["transA"] == 1


def test_gemm_with_a_computed_scale_stays():
    b = Builder(20)
    y = b("Gemm", b.input("x", [2, 3]), b.input("w", [3, 4]), alpha=0.5)
    assert ops(check(b.model(y))) == ["Gemm"]


def test_residuals():
    b = Builder(20)
    x = image(b, 4)
    y = b("Relu", b("Add", conv(b, b("Relu", conv(b, x, 4)), 4), x))
    graph = check(b.model(y))
    assert body(graph) == ["Conv", "Conv"]
    last = [n for n in graph.nodes if n.op == "Conv"][-1]
    assert len(last.inputs) == 4 and last.attrs["activation"] == "Relu"


def test_a_residual_that_broadcasts_stays():
    b = Builder(20)
    y = b("Add", conv(b, image(b)), b.input("r", [1, 4, 1, 1]))
    assert "Add" in ops(check(b.model(y)))


def test_two_branches_become_one_residual():
    b = Builder(20)
    x = image(b)
    graph = check(b.model(b("Add", conv(b, x), conv(b, x))))
    assert body(graph) == ["Conv", "Conv"]


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_layer_norm(square, parts):
    b = Builder(17)
    x = b.input("x", [2, 3, 8])
    centre = b("Sub", x, b("ReduceMean", x, axes=[-1]))
    squared = b("Pow", centre, f32(b, 2)) if square == "Pow" else b("Mul", centre, centre)
    y = b("Div", centre, b("Sqrt", b("Add", b("ReduceMean", squared, axes=[-1]), f32(b, 1e-5))))
    y = b("Mul", y, b.weight(8)) if parts > 0 else y
    y = b("Add", y, b.weight(8)) if parts > 1 else y
    assert ops(check(b.model(y))) == ["LayerNormalization"]


def test_a_norm_over_other_axes_stays():
    b = Builder(17)
    x = b.input("x", [2, 8, 8])
    centre = b("Sub", x, b("ReduceMean", x, axes=[1]))
    y = b("Div", centre, b("Sqrt", b("Add", b("ReduceMean", b("Mul", centre, centre), axes=[1]), f32(b, 1e-5))))
    assert "LayerNormalization" not in ops(check(b.model(y)))


def test_rms_norm():
    b = Builder(17)
    x = b.input("x", [2, 3, 8])
    root = b("Sqrt", b("Add", b("ReduceMean", b("Pow", x, f32(b, 2)), axes=[-1]), f32(b, 1e-6)))
    assert ops(check(b.model(b("Mul", b.weight(8), b("Div", x, root))))) == ["RMSNormalization"]


def heads(b: Builder, x: str, n: int, length: int, h: int, d: int) -> str:
    split = b("Reshape", b("MatMul", x, b.weight(h * d, h * d)), b.const([n, length, h, d], np.int64))
    return b("Transpose", split, perm=[0, 2, 1, 3])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaled", ["Mul", "Div", "no"])
def test_attention(masked, scaled):
    b = Builder(17)
    n, length, h, d = 2, 5, 3, 4
    x = b.input("x", [n, length, h * d])
    q, k, v = (heads(b, x, n, length, h, d) for _ in range(3))
    score = b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2]))
    score = score if scaled == "no" else b(scaled, score, f32(b, 0.5 if scaled == "Mul" else 2.0))
    score = b("Add", score, b.input("m", [n, 1, length, length])) if masked else score
    y = b("Transpose", b("MatMul", b("Softmax", score, axis=-1), v), perm=[0, 2, 1, 3])
    graph = check(b.model(b("Reshape", y, b.const([n, length, h * d], np.int64))))
    assert sorted(ops(graph)) == ["Attention", "MatMul", "MatMul", "MatMul"]


def test_attention_with_a_broadcast_key_mask_is_right():
    b = Builder(17)
    q, k, v = (b.input(name, [1, 2, 4, 3]) for name in "qkv")
    score = b("Add", b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2])), b.input("m", [1, 1, 1, 4]))
    check(b.model(b("MatMul", b("Softmax", score, axis=-1), v)))


@pytest.mark.parametrize(("perm", "shape"), [((0, 1, 4, 2, 5, 3), (1, 2, 3, 3)), ((0, 3, 4, 1, 5, 2), (1, 3, 3, 2))])
def test_pixel_shuffle(perm, shape):
    b = Builder(17)
    x = b.input("x", ["n", 18, 4, 5])
    wide = b("Reshape", x, b.const([-1, *shape[1:], 4, 5], np.int64))
    y = b("Reshape", b("Transpose", wide, perm=list(perm)), b.const([-1, 2, 12, 15], np.int64))
    graph = check(b.model(y))
    assert "DepthToSpace" in ops(graph) and len(graph.nodes) <= 3


def test_pads_go_into_convolutions_and_average_pools():
    b = Builder(17)
    pads = b.const([0, 0, 1, 0, 0, 0, 0, 2], np.int64)
    x = b("Pad", image(b), pads)
    y = b("Conv", x, b.weight(4, 3, 3, 3))
    z = b("AveragePool", b("Pad", y, pads), kernel_shape=[3, 3])
    assert body(check(b.model(z))) == ["Conv", "AveragePool"]


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "ConvTranspose", "AveragePool"])
def test_auto_pad(mode, op):
    b = Builder(17)
    x = image(b, 4)
    weights = [b.weight(4, 4, 2, 3)] if op.startswith("Conv") else []
    y = b(op, x, *weights, kernel_shape=[2, 3], strides=[2, 2], auto_pad=mode)
    graph = check(b.model(y))
    assert all("auto_pad" not in n.attrs for n in graph.nodes)


def test_reshapes_of_symbolic_batches_are_solved():
    b = Builder(17)
    x = b.input("x", ["n", 6, 4])
    batch = b("Unsqueeze", b("Gather", b("Shape", x), b.const(0, np.int64)), b.const([0], np.int64))
    target = b("Concat", batch, b.const([-1], np.int64), b.const([3], np.int64), b.const([4], np.int64), axis=0)
    graph = check(b.model(b("Reshape", x, target)))
    assert ops(graph) == ["Reshape"] and graph.outputs[0].shape == ("n", 2, 3, 4)


def test_subgraphs_are_optimised_too():
    b = Builder(17)
    graph = converted(b.model(b("Relu", b("Identity", b.input("x", [2])))))
    assert ops(graph) == ["Relu"]


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1), ()])
def test_scale_and_shift_after_a_normalisation_go_into_it(shape):
    b = Builder(20)
    one, two = (b.const(b.rng.uniform(0.5, 2, shape), np.float32) for _ in range(2))
    stats = [b.weight(3), b.weight(3), b.weight(3), b.const(b.rng.uniform(0.5, 2, 3), np.float32)]
    graph = check(b.model(b("Relu", b("Add", b("Mul", b("BatchNormalization", image(b), *stats), one), two))))
    assert not {"Mul", "Add"} & set(ops(graph)) and ops(graph).count("BatchNormalization") == 1


def test_a_normalisation_that_others_read_stays():
    b = Builder(20)
    stats = [b.weight(3), b.weight(3), b.weight(3), b.const(np.ones(3), np.float32)]
    y = b("BatchNormalization", image(b), *stats)
    graph = check(b.model(y, b("Mul", y, b.const(np.full((3, 1, 1), 2.0), np.float32))))
    assert "Mul" in ops(graph)
