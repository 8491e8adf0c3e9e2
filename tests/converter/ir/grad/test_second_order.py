"""The rules applied to their own results: gradients of gradients compared with JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
import pytest

from cloud import engine
from converter.ir.grad import differentiate
from converter.ir.grad.tape import Tape
from converter.lowering import lower
from converter.pass_lists import to_ir
from lite_runtime import reference
from lite_runtime.graph import Array
from tests.converter.ir.grad.support import Part, agree, compiled, drawn, natively
from tests.converter.support import Builder


def hessian_products(model: ir.Model, fed: dict[str, Array]) -> dict[str, Array]:
    """The gradient of sum(sin(gradient)), by every input."""
    function = engine.lower(model)
    name = function.outputs[0].name

    def loss(values: Any) -> Any:
        return function.apply(function.params, function.state, values)[0][name].reshape(())

    def outer(values: Any) -> Any:
        return sum(jax.numpy.sin(g).sum() for g in jax.grad(loss)(values).values())

    return {k: np.asarray(v) for k, v in compiled(jax.grad(outer))(fed).items()}


def twice_differentiated(model: ir.Model) -> ir.Model:
    inputs = list(model.graph.inputs)
    grads = differentiate(model, model.graph.outputs[0], inputs)
    tape = Tape(model.graph)
    parts = (tape.term(g).op("Sin").op("ReduceSum", keepdims=0) for g in grads.values())
    total = sum(parts, start=tape.const(0.0, np.float32))
    for name, value in differentiate(model, total.value, inputs).items():
        value.name = f"grad/{name}"
        model.graph.outputs.append(value)
    return model


def mean_square(b: Part, y: str, shape: tuple[int, ...]) -> str:
    difference = b("Sub", y, b.weight(*shape))
    return str(b("ReduceMean", b("Mul", difference, difference), keepdims=0))


def mlp(b: Part) -> str:
    """Rectified, tanh, cross entropy."""
    y = b("Relu", b("Gemm", b.input("x", (4, 5)), b.input("w0", (5, 6)), b.input("b0", (6,))))
    y = b("Tanh", b("Add", b("MatMul", y, b.input("w1", (6, 5))), b.input("b1", (5,))))
    logits = b("Gemm", y, b.input("w2", (3, 5)), b.input("b2", (3,)), transB=1)
    return str(b("SoftmaxCrossEntropyLoss", logits, b.ints([0, 2, 1, 1])))


def regression(b: Part) -> str:
    y = b("Sigmoid", b("Gemm", b.input("x", (6, 2)), b.input("w0", (2, 8)), b.input("b0", (8,))))
    return mean_square(b, b("MatMul", y, b.input("w1", (8, 1))), (6, 1))


def convolutional(b: Part) -> str:
    y = b("Conv", b.input("x", (2, 2, 7, 6)), b.input("w0", (4, 2, 3, 3)), b.input("b0", (4,)), pads=[1, 1, 1, 1],
          strides=[1, 2])  # fmt: skip
    y = b("MaxPool", b("Softplus", y), kernel_shape=[2, 2], strides=[2, 1])
    y = b("ConvTranspose", y, b.input("w1", (4, 3, 2, 2)), group=1)
    y = b("AveragePool", b("Tanh", y), kernel_shape=[2, 2], pads=[1, 0, 0, 1])
    return mean_square(b, b("GlobalAveragePool", b("Mul", y, y)), (2, 3, 1, 1))


def normalised(b: Part) -> str:
    y = b("MatMul", b.input("x", (2, 3, 5)), b.input("w", (5, 6)))
    y = b("LayerNormalization", y, b.input("scale", (6,)), b.input("b", (6,)))
    return mean_square(b, b("Gelu", y), (2, 3, 6))


def embedded(b: Part) -> str:
    y = b("Gather", b.input("table", (7, 4)), b.ints([[1, 6, 1], [0, 2, 2]]))
    return mean_square(b, b("Softmax", b("Slice", y, b.ints([1]), b.ints([4]), b.ints([2]))), (2, 3, 3))


@pytest.mark.parametrize("make", [mlp, regression, convolutional, normalised, embedded])
def test_gradient_of_gradient(make: Callable[[Part], str]) -> None:
    b = Builder(seed=1)
    part = Part(b, make.__name__)
    model = to_ir(b.model(make(part)))
    fed = drawn(b, part.ranges)
    wanted = hessian_products(model, fed)
    found = twice_differentiated(model)
    agree(reference.run(lower(found), fed), wanted)
    agree(natively(found, fed), wanted)


def batch_norm(x: Any, scale: Any, b: Any) -> Any:
    normal = (x - x.mean((0, 2), keepdims=True)) / jax.numpy.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    return normal * scale[:, None] + b[:, None]


def test_through_batch_statistics() -> None:
    """In training form, which the engine has no gradient of gradients to compare with but as plain arithmetic."""
    b = Builder(seed=2)
    part = Part(b, "bn")
    operands = [part.input("x", (3, 2, 4)), part.input("scale", (2,)), part.input("b", (2,))]
    y, *_ = b("BatchNormalization", *operands, b.weight(2), b.weight(2), outputs=3, training_mode=1)
    target = b.weight(3, 2, 4)
    difference = b("Sub", b("Tanh", y), target)
    model = to_ir(b.model(b("ReduceMean", b("Mul", difference, difference), keepdims=0)))
    fed = drawn(b, part.ranges)
    held = model.graph.initializers[target].const_value
    assert held is not None

    def loss(values: Any) -> Any:
        return ((jax.numpy.tanh(batch_norm(*(values[k] for k in operands))) - held.numpy()) ** 2).mean()

    def outer(values: Any) -> Any:
        return sum(jax.numpy.sin(g).sum() for g in jax.grad(loss)(values).values())

    wanted = {k: np.asarray(v) for k, v in compiled(jax.grad(outer))(fed).items()}
    agree(reference.run(lower(twice_differentiated(model)), fed), wanted, 1e-3)
