"""Channels that belong together, and their removal: the results stay, the weights do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from cloud.zoo import ds_cnn, mlp, resnet8
from converter.ir.channels import Group, cut, groups
from tests.cloud.models import run_onnx


def weighing(group: Group) -> set[str]:
    return {member.name for member in group.members if member.weighs and member.makes}


def zeroed(model: ir.Model, share: float = 0.5) -> int:
    """Some channels of every group made zero; returns how many."""
    count = 0
    for group in groups(model):
        dead = np.zeros(group.size, bool)
        dead[: int(share * group.size)] = True
        count += int(dead.sum())
        for member in group.members:
            if member.makes:
                value = model.graph.initializers[member.name]
                assert value.const_value is not None
                array = np.moveaxis(value.const_value.numpy().copy(), member.axis, 0)
                array[np.repeat(dead, member.block)] = 0
                value.const_value = ir.Tensor(np.ascontiguousarray(np.moveaxis(array, 0, member.axis)))
    return count


def random(model: ir.Model) -> ir.Model:
    """Every float initialiser with random numbers, also biases and running statistics."""
    rng = np.random.default_rng(0)
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        array = value.const_value.numpy()
        if array.dtype == np.float32 and array.size > 1:
            drawn = rng.standard_normal(array.shape).astype(np.float32) * 0.3
            value.const_value = ir.Tensor(np.abs(drawn) + 0.5 if "var" in name else drawn)
    return model


def residual() -> ir.Model:
    return resnet8((1, 8, 8), filters=(4, 8, 8))


def weighted(body: str, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {body}')
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return ir.from_proto(made)


def flattened() -> ir.Model:
    """Filters before a Flatten, a Reshape with the same effect, and a product from the other side."""
    rng = np.random.default_rng(1)
    shapes = {"w": (6, 2, 3, 3), "b": (6,), "g": (5, 96), "c": (5,), "m": (5, 3), "d": (3,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return weighted(
        """net (float[n, 2, 4, 4] x) => (float[n, 3] y) {
          a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
          r = Tanh (a)
          f = Reshape (r, shape)
          h = Gemm <transB = 1> (f, g, c)
          k = Relu (h)
          p = MatMul (k, m)
          y = Add (p, d)
        }""",
        {**arrays, "shape": np.array([-1, 96])},
    )


NETS: dict[str, Callable[[], ir.Model]] = {
    "residual": residual, "depthwise": lambda: ds_cnn((1, 8, 8)), "dense": lambda: mlp(64, 10, (8, 6)),
    "flattened": flattened,
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_zero_channels_are_removed_and_nothing_changes(name: str) -> None:
    model = random(NETS[name]())
    dead = zeroed(model)
    (given,) = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    shape = [3, *(int(d) for d in given.shape[1:])] if given.shape is not None else [3]
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    before, sizes = run_onnx(model, **{str(given.name): x})[0], count(model)
    assert dead > 0 and cut(model) == dead
    np.testing.assert_allclose(run_onnx(model, **{str(given.name): x})[0], before, atol=1e-5, rtol=1e-5)
    assert count(model) < 0.7 * sizes
    assert cut(model) == 0


def count(model: ir.Model) -> int:
    return sum(int(np.prod(v.const_value.shape)) for v in model.graph.initializers.values() if v.const_value)


def test_what_a_residual_sum_joins_is_one_group() -> None:
    found = [weighing(group) for group in groups(residual())]
    assert {"stem.conv.weight", "stack0.second.conv.weight"} in found
    assert {"stack1.second.conv.weight", "stack1.shortcut.weight"} in found
    assert not any("head.weight" in names for names in found)  # the outputs


def test_what_is_alive_in_one_place_stays() -> None:
    """A channel whose bias, or whose other branch, is not zero is kept."""
    model = random(residual())
    group = next(g for g in groups(model) if "stem.conv.weight" in weighing(g))
    weights = model.graph.initializers["stem.conv.weight"]
    assert weights.const_value is not None
    array = weights.const_value.numpy().copy()
    array[:2] = 0
    weights.const_value = ir.Tensor(array)
    assert group.size == 4 and cut(model) == 0


@pytest.mark.parametrize("op", ["Sigmoid", "Softmax <axis = 1>", "Exp"])
def test_operators_that_make_something_of_zero_keep_channels(op: str) -> None:
    made = weighted(
        f"""net (float[n, 2] x) => (float[n, 3] y) {{
          h = MatMul (x, a)
          s = {op} (h)
          y = MatMul (s, b)
        }}""",
        {"a": np.zeros((2, 4), np.float32), "b": np.zeros((4, 3), np.float32)},
    )
    assert groups(made) == [] and cut(made) == 0
