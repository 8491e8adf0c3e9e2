"""Gradients of whole networks by all their parameters against JAX's, forward and training form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
import optax
import pytest

from cloud import engine, zoo
from converter.ir.grad import differentiate
from converter.lowering import lower
from converter.pass_lists import to_ir
from lite_runtime import reference
from lite_runtime.graph import Array
from tests.converter.ir.grad.support import agree, compiled, natively
from tests.converter.support import Builder


def with_loss(model: ir.Model) -> ir.Model:
    """`labels` as a new input, cross entropy as the first output; the parameters become inputs."""
    graph = model.graph
    labels = ir.val("labels", ir.DataType.INT64, ["batch"])
    node = ir.node("SoftmaxCrossEntropyLoss", [graph.outputs[0], labels], name="loss")
    loss = node.outputs[0]
    loss.name, loss.type, loss.shape = "loss", ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
    graph.append(node)
    graph.inputs.append(labels)
    graph.outputs.insert(0, loss)
    return model


def parameters(model: ir.Model) -> list[str]:
    """Weights and biases: what the engine would train."""
    return sorted(engine.lower(model, training=True).params)


def as_inputs(model: ir.Model, names: list[str]) -> dict[str, Array]:
    """The initialisers become inputs; their contents."""
    found = {}
    for name in names:
        value = model.graph.initializers.pop(name)
        assert value.const_value is not None
        found[name], value.const_value = value.const_value.numpy(), None
        model.graph.inputs.append(value)
    return found


def _cross_entropy(logits: Any, labels: Array) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def jax_gradients(model: ir.Model, x: Array, labels: Array, train: bool) -> tuple[dict[str, Array], dict[str, Array]]:
    """Of the mean cross entropy by the parameters; and the running statistics afterwards."""
    function = engine.lower(model, training=True)

    @compiled
    def gradients(params: Any) -> Any:
        def loss(params: Any) -> Any:
            outputs, state = function.apply(params, function.state, {"x": x}, train=train)
            return _cross_entropy(next(iter(outputs.values())), labels), state

        return jax.grad(loss, has_aux=True)(params)

    grads, state = gradients(function.params)
    return {k: np.asarray(v) for k, v in grads.items()}, {k: np.asarray(v) for k, v in state.items()}


def in_training_form(model: ir.Model) -> dict[str, str]:
    """Every BatchNormalization uses the batch's statistics; new running ones by the old ones' names."""
    found = {}
    for node in model.graph:
        if node.op_type == "BatchNormalization":
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            node.resize_outputs(3)
            for value, old in zip(node.outputs[1:], node.inputs[3:], strict=True):
                assert old is not None and old.name
                value.name = found[old.name] = f"{old.name}/new"
                model.graph.outputs.append(value)
    return found


def shaken(model: ir.Model, seed: int = 3) -> ir.Model:
    """Initial biases and statistics are zeros and ones; here they are any numbers."""
    rng = np.random.default_rng(seed)
    for name, value in model.graph.initializers.items():
        old = value.const_value
        if old is not None and old.dtype == ir.DataType.FLOAT and len(old.shape) == 1:
            new = old.numpy() + rng.uniform(-0.3, 0.3, tuple(old.shape)).astype(np.float32)
            value.const_value = ir.tensor(new, name=name)
    return model


def transformer_block(batch: str = "batch") -> ir.Model:
    """Attention and a gated product, each behind a normalisation and around a short cut; pooled, then classes."""
    b = Builder(seed=5)
    x, size, heads = b.input("x", [batch, 6, 12]), 12, 3

    def dense(y: str, inputs: int, outputs: int) -> str:
        return str(b("Add", b("MatMul", y, b.weight(inputs, outputs)), b.weight(outputs)))

    def norm(y: str) -> str:
        return str(b("LayerNormalization", y, b.weight(size), b.weight(size)))

    y = norm(x)
    q, k, v = (dense(y, size, size) for _ in range(3))
    attended = b("Attention", q, k, v, q_num_heads=heads, kv_num_heads=heads, is_causal=1)
    x = b("Add", x, dense(attended, size, size))
    x = b("Add", x, dense(b("Gelu", dense(norm(x), size, 20)), 20, size))
    pooled = b("ReduceMean", norm(x), b.const([1]), keepdims=0)
    return to_ir(b.model(b("Gemm", pooled, b.weight(size, 4), b.weight(4))))


def lstm_classifier() -> ir.Model:
    """Embedded tokens through two directions, the last state to classes."""
    b = Builder(seed=6)
    tokens = b("Cast", b.input("x", ["batch", 7]), to=7)
    steps = b("Transpose", b("Gather", b.weight(9, 5), tokens), perm=[1, 0, 2])
    _, last, _ = b("LSTM", steps, b.weight(2, 16, 5), b.weight(2, 16, 4), b.weight(2, 32), hidden_size=4,
                   direction="bidirectional", outputs=3)  # fmt: skip
    flat = b("Reshape", b("Transpose", last, perm=[1, 0, 2]), b.const([-1, 8]))
    return to_ir(b.model(b("Gemm", flat, b.weight(8, 4), b.weight(4))))


MODELS: Mapping[str, tuple[Callable[[], ir.Model], tuple[int, ...], bool]] = {
    "resnet8": (lambda: zoo.resnet8((3, 16, 16), filters=(4, 6, 8)), (3, 16, 16), False),
    "resnet8, training": (lambda: zoo.resnet8((3, 16, 16), filters=(4, 6, 8)), (3, 16, 16), True),
    "ds_cnn, training": (lambda: zoo.ds_cnn((1, 15, 10), filters=6, dropout=(0, 0)), (1, 15, 10), True),
    "transformer block": (transformer_block, (6, 12), False),
    "lstm": (lstm_classifier, (7,), False),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    make, shape, train = MODELS[name]
    rng = np.random.default_rng(7)
    model = shaken(make())
    x, labels = rng.standard_normal((5, *shape)).astype(np.float32), rng.integers(0, 4, 5)
    if name == "lstm":
        x = rng.integers(0, 9, (5, *shape)).astype(np.float32)
    wanted, state = jax_gradients(model, x, labels, train)
    names, running = parameters(model), in_training_form(model) if train else {}
    found = to_ir(with_loss(model))
    fed = {"x": x, "labels": labels, **as_inputs(found, names)}
    loss = found.graph.outputs[0]
    grads = differentiate(found, loss, [v for v in found.graph.inputs if v.name in names])
    for parameter, value in grads.items():
        value.name = f"grad/{parameter}"
        found.graph.outputs.append(value)
    for outputs in (reference.run(lower(found), fed), natively(found, fed)):
        agree(outputs, wanted)
        for old, new in running.items():
            np.testing.assert_allclose(outputs[new], state[old], rtol=1e-4, atol=1e-5)
