"""What `differentiate` appends, and what it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from converter.errors import TrainingError
from converter.ir import build, spec
from converter.ir.grad import differentiate
from converter.lowering import lower
from converter.pass_lists import to_ir
from lite_runtime import reference
from tests.converter.ir.grad.support import Part, agree, check, differentiated, drawn, jax_gradients
from tests.converter.support import Builder


def mlp(b: Builder, batch: int | str = "batch") -> str:
    """Three layers, their weights inputs."""
    y = b.input("x", (batch, 4))
    for i in range(3):
        y = b("Relu", b("Gemm", y, b.input(f"w{i}", (4, 4)), b.input(f"b{i}", (4,))))
    return str(b("ReduceMean", b("Mul", y, y), keepdims=0))


def added(model: ir.Model, wrt: Sequence[str]) -> Counter[str]:
    before = set(model.graph)
    differentiated(model, list(wrt))
    return Counter(node.op_type for node in model.graph if node not in before)


def test_only_the_requested_gradients() -> None:
    b = Builder()
    loss = mlp(b)
    last = added(to_ir(b.model(loss)), ["w2", "b2"])
    assert last["Gemm"] == 1 and last["Where"] == 1
    every = added(to_ir(b.model(loss)), ["w0", "w1", "w2"])
    assert every["Gemm"] == 5  # a product for each weight, and one for each layer between


def test_known_shapes_are_constants() -> None:
    b = Builder()
    model = to_ir(b.model(mlp(b)))
    unknown = added(model, ["w0", "b0"])
    assert unknown["Shape"] == 2  # of the mean over the batch: how many, and back to their shape
    b = Builder()
    assert "Shape" not in added(to_ir(b.model(mlp(b, 3))), ["w0", "b0"])


def test_unused_constants_are_gone() -> None:
    b = Builder()
    model = to_ir(b.model(mlp(b)))
    differentiated(model, ["b2"])
    assert all(v.uses() for v in model.graph.initializers.values())


def test_each_gradient_is_a_separate_value() -> None:
    """Gradients that are equal, the seed itself, and zeros for what the loss does not depend on."""
    b = Builder()
    total = b("ReduceSum", b("Add", b.input("x", (3,)), b.input("y", (3,))), keepdims=0)
    b.input("z", ("batch", 2))
    model = to_ir(b.model(b("Add", total, b.input("s", ()))))
    found = differentiated(model, ["x", "y", "z", "s"])
    grads = found.graph.outputs[1:]
    assert len(set(grads)) == 4 and all(v.producer() is not None for v in grads)
    fed = {"x": np.ones(3, "f"), "y": np.ones(3, "f"), "z": np.ones((4, 2), "f"), "s": np.float32(1).reshape(())}
    outputs = reference.run(lower(found), fed)
    for name, wanted in (("x", np.ones(3)), ("y", np.ones(3)), ("z", np.zeros((4, 2))), ("s", np.ones(()))):
        np.testing.assert_array_equal(outputs[f"grad/{name}"], wanted)


def test_gradients_of_intermediate_values() -> None:
    b = Builder()
    b("Exp", b.input("x", (3,)))
    inner = b.nodes[-1].output[0]
    model = to_ir(b.model(b("ReduceSum", b("Mul", inner, inner), keepdims=0)))
    value = next(v for n in model.graph for v in n.outputs if v.name == inner)
    (grad,) = differentiate(model, model.graph.outputs[0], [value]).values()
    grad.name = "grad"
    model.graph.outputs.append(grad)
    x = np.array([0.1, -0.3, 0.5], np.float32)
    np.testing.assert_allclose(reference.run(lower(model), {"x": x})["grad"], 2 * np.exp(x), rtol=1e-6)


def test_a_loss_of_one_element() -> None:
    b = Builder()
    model = to_ir(b.model(b("ReduceSum", b.input("x", (1, 3)), b.const([1]), keepdims=0)))
    found = differentiated(model, ["x"])
    assert build.dims(found.graph.outputs[1]) == (1, 3)


def test_a_vector_is_not_accepted_as_a_loss() -> None:
    b = Builder()
    model = to_ir(b.model(b("Relu", b.input("x", (3,)))))
    with pytest.raises(TrainingError, match="expected a scalar"):
        differentiated(model, ["x"])


def test_every_operator_without_a_rule_is_listed() -> None:
    """Those on the way only, with their reasons."""
    b = Builder()
    x, unrelated = b.input("x", (2, 3, 4, 4)), b.input("u", (4, 4))
    y = b("LpPool", x, kernel_shape=[2, 2])
    y = b("Reshape", b("GlobalLpPool", y), b.const([2, 3]))
    y = b("ScatterElements", y, b.const([[0, 1, 1]]), b.const(np.ones((1, 3), "f")), reduction="max")
    side = b("Det", unrelated)
    model = to_ir(b.model(b("Add", b("ReduceSum", y, keepdims=0), side)))
    before = list(model.graph)
    with pytest.raises(TrainingError) as caught:
        differentiated(model, ["x"])
    text = str(caught.value)
    assert "3 operators" in text and "reduction max" in text and "train only what comes after" in text
    assert all(op in text for op in ("LpPool", "GlobalLpPool", "ScatterElements")) and "Det" not in text
    assert list(model.graph) == before, "nothing was written"


def test_a_subgraph_with_captures_is_refused() -> None:
    b = Builder()
    x = b.input("x", (3,))
    branches = []
    for op in ("Exp", "Sin"):
        node = helper.make_node(op, [x], [f"{op}_inner"])
        branches.append(helper.make_graph([node], op, [], [helper.make_tensor_value_info(f"{op}_inner", 1, (3,))]))
    y = b("If", b.const(True), then_branch=branches[0], else_branch=branches[1])
    model = to_ir(b.model(b("ReduceSum", y, keepdims=0)))
    with pytest.raises(TrainingError, match="If"):
        differentiated(model, ["x"])


def test_sizes_a_convolution_needs() -> None:
    b = Builder()
    y = b("Conv", b.input("x", (1, 2, "h", "w")), b.input("w0", (3, 2, 3, 3)), strides=[2, 2])
    model = to_ir(b.model(b("ReduceSum", y, keepdims=0)))
    with pytest.raises(TrainingError, match="give input_shapes"):
        differentiated(model, ["w0"])


def test_dropout_in_training_form() -> None:
    """What the forward pass kept passes the gradient on."""
    b = Builder()
    y = b("Dropout", b.input("x", (50,)), b.const(np.float32(0.4)), b.const(True), seed=3)
    model = to_ir(b.model(b("ReduceSum", b("Mul", y, y), keepdims=0)))
    model.graph.outputs.append(next(n.outputs[0] for n in model.graph if n.op_type == "Dropout"))
    found = differentiated(model, ["x"])
    x = np.linspace(1, 2, 50, dtype=np.float32)
    outputs = reference.run(lower(found), {"x": x})
    kept = outputs[found.graph.outputs[1].name or ""]
    assert 0 < (kept == 0).sum() < 50
    np.testing.assert_allclose(outputs["grad/x"], np.where(kept == 0, 0, 2 * kept / 0.6), rtol=1e-5)


def test_operators_of_our_domain() -> None:
    """Silu, which patterns of the source become, has the rule of Swish; what kernels need fused is refused."""
    model = to_ir((b := Builder()).model(b("ReduceSum", b("Swish", b.input("x", (4,))), keepdims=0)))
    node = next(n for n in model.graph if n.op_type == "Swish")
    node.op_type, node.domain = "Silu", build.DOMAIN
    build.adopt(model)
    fed = {"x": np.linspace(-2, 2, 4, dtype=np.float32)}
    s = 1 / (1 + np.exp(-fed["x"]))
    found = reference.run(lower(differentiated(model, ["x"])), fed)
    np.testing.assert_allclose(found["grad/x"], s + fed["x"] * s * (1 - s), rtol=1e-5)
    model = to_ir((b := Builder()).model(b("ReduceSum", b("Conv", b.input("x", (1, 2, 3, 3)), b.weight(2, 2, 1, 1)),
                                           keepdims=0)))  # fmt: skip
    build.adopt(model)
    conv = next(n for n in model.graph if n.op_type == "Conv")
    conv.domain = build.DOMAIN
    build.set_attrs(conv, activation="Relu")
    with pytest.raises(TrainingError, match="fused for inference"):
        differentiated(model, ["x"])


def test_initialisers_are_values_too() -> None:
    b = Builder()
    w = b.weight(3, 2)
    model = to_ir(b.model(b("ReduceSum", b("MatMul", b.input("x", ("batch", 3)), w), keepdims=0)))
    found = differentiated(model, [w])
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    outputs = reference.run(lower(found), {"x": x})
    np.testing.assert_allclose(outputs[f"grad/{w}"], np.tile(x.sum(0)[:, None], 2))
    spec.check(found, "in the end")


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[str], tuple[int, ...], int]:
    ops = "Tanh Sigmoid Exp Add Mul Sub Transpose Concat Softmax ReduceMean Pad Slice".split()
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    return draw(st.lists(st.sampled_from(ops), min_size=1, max_size=6)), shape, draw(st.integers(0, 1 << 16))


def grown(b: Part, ops: Sequence[str], shape: tuple[int, ...]) -> str:
    """A random chain whose binary operators meet earlier values, turned round where shapes do not broadcast."""
    y, rank = b.input("x", shape, -1, 1), len(shape)
    for op in ops:
        axis = int(b.rng.integers(rank))
        if op in ("Add", "Mul", "Sub"):
            y = b(op, y, b.input(f"{op}{b.rng.integers(1 << 30)}", (1,) * int(b.rng.integers(rank + 1)), -1, 1))
        elif op == "Concat":
            y = b(op, y, b("Tanh", y), axis=axis)
        elif op == "Transpose":
            y = b(op, y, perm=[int(i) for i in b.rng.permutation(rank)])
        elif op == "Softmax":
            y = b(op, y, axis=axis)
        elif op == "ReduceMean":
            y = b(op, y, b.ints([axis]))
        elif op == "Pad":
            y = b(op, y, b.ints(b.rng.integers(0, 3, 2)), "", b.ints([axis]))
        elif op == "Slice":
            y = b(op, y, b.ints([0]), b.ints([int(b.rng.integers(1, 4))]), b.ints([axis]))
        else:
            y = b(op, y)
    return y


@settings(max_examples=8, deadline=None)
@given(chains())
def test_random_chains(chain: tuple[list[str], tuple[int, ...], int]) -> None:
    ops, shape, seed = chain
    check({"chain": lambda b: grown(b, ops, shape)}, native=False, seed=seed)


def test_the_gradient_of_a_sum_is_the_sum_of_gradients() -> None:
    """Linearity in the loss, whatever the two losses share."""
    b = Builder(seed=4)
    part = Part(b, "p")
    shared = b("Tanh", b("MatMul", part.input("x", (3, 4)), part.input("w", (4, 2))))
    one, two = b("ReduceSum", b("Exp", shared), keepdims=0), b("ReduceSum", b("Mul", shared, shared), keepdims=0)
    fed, names = drawn(b, part.ranges), list(part.ranges)
    found = []
    for loss in (one, two, b("Add", one, two)):
        model = to_ir(b.model(loss))
        wanted = jax_gradients(model, fed, names)
        outputs = reference.run(lower(differentiated(model, names)), fed)
        agree(outputs, wanted)
        found.append(outputs)
    for name in names:
        total = found[0][f"grad/{name}"] + found[1][f"grad/{name}"]
        np.testing.assert_allclose(found[2][f"grad/{name}"], total, rtol=1e-4, atol=1e-5)
