"""Transposed convolutions with steps as convolutions without: each phase of the output is a convolution of its own
with every `stride`-th weight, and DepthToSpace puts the phases side by side. Kernels compute that in one product,
without the sum over overlapping patches: a third of the time for the gradient of a small network for MNIST."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from converter.ir import build

__all__ = ["split_phases"]


def split_phases(model: ir.Model) -> None:
    """Replace, in place, the ConvTranspose nodes of two dimensions with equal steps, constant weights and no groups."""
    for node in list(model.graph):
        if node.op_type == "ConvTranspose" and (found := _phases(node)) is not None:
            weight, pads, stride = found
            _replace(model, node, weight, pads, stride)


def _phases(node: ir.Node) -> tuple[npt.NDArray[Any], list[int], int] | None:
    """Weights and paddings of the convolution that computes all phases; None for a node of another form."""
    weight, x, y = node.inputs[1], node.inputs[0], node.outputs[0]
    sizes, wanted = (build.dims(value) if value is not None else None for value in (x, y))
    plain = (
        build.attr(node, "group", 1) == 1 and set(build.attr(node, "dilations", [1])) == {1} and len(node.inputs) == 2
    )
    if weight is None or weight.const_value is None or sizes is None or wanted is None or not plain:
        return None
    steps, pads = build.attr(node, "strides", [1, 1]), build.attr(node, "pads", [0, 0, 0, 0])
    numbers = [*sizes[2:], *wanted[2:]]
    if len(steps) != 2 or steps[0] != steps[1] or steps[0] == 1 or not all(isinstance(n, int) for n in numbers):
        return None
    made, ends = weight.const_value.numpy(), []
    for axis, (size, long) in enumerate(zip(sizes[2:], wanted[2:], strict=True)):
        if long % steps[axis]:
            return None
        made, first = _along(made, 2 + axis, steps[axis], pads[axis])
        ends.append((-first, long // steps[axis] - size + first + made.shape[2 + axis] - 1))
    if min(min(pair) for pair in ends) < 0:
        return None
    stride = steps[0]
    taps = made.shape[2:4]  # (in, out, taps, taps, phase, phase)
    conv = made.transpose(1, 4, 5, 0, 2, 3).reshape(-1, made.shape[0], *taps)
    return np.ascontiguousarray(conv), [ends[0][0], ends[1][0], ends[0][1], ends[1][1]], stride


def _along(weight: npt.NDArray[Any], axis: int, stride: int, pad: int) -> tuple[npt.NDArray[Any], int]:
    """Weights with `axis` as offsets of the input, from the second result on, and the phases last.

    Output stride * q + r of a transposed convolution, `pad` cut off, is the sum over weights k of the same phase as
    pad + r of the input at q + (pad + r - k) / stride.
    """
    offsets = {
        (r, k): (pad + r - k) // stride
        for r in range(stride) for k in range(weight.shape[axis]) if (pad + r - k) % stride == 0
    }  # fmt: skip
    first = min(offsets.values())
    shape = list(weight.shape)
    shape[axis] = max(offsets.values()) - first + 1
    made = np.zeros((*shape, stride), weight.dtype)
    for (r, k), offset in offsets.items():
        here: list[Any] = [slice(None)] * weight.ndim
        here[axis] = offset - first
        made[(*here, r)] = np.take(weight, k, axis)
    return made, first


def _replace(model: ir.Model, node: ir.Node, weight: npt.NDArray[Any], pads: list[int], stride: int) -> None:
    name = f"{node.outputs[0].name}.phases"
    held = ir.Value(name=f"{name}.weight", shape=ir.Shape(weight.shape), type=ir.TensorType(ir.DataType.FLOAT),
                    const_value=ir.tensor(weight, name=f"{name}.weight"))  # fmt: skip
    model.graph.register_initializer(held)
    conv = ir.node("Conv", [node.inputs[0], held], {"pads": pads, "kernel_shape": list(weight.shape[2:])}, name=name)
    conv.outputs[0].name, conv.outputs[0].type = name, node.outputs[0].type
    wanted = node.outputs[0].shape
    assert wanted is not None
    conv.outputs[0].shape = ir.Shape([wanted[0], len(weight), *(int(n) // stride for n in wanted[2:])])  # type: ignore[arg-type]
    last = ir.node("DepthToSpace", [conv.outputs[0]], {"blocksize": stride, "mode": "CRD"}, name=f"{name}.side by side")
    old, new = node.outputs[0], last.outputs[0]
    new.name, new.type, new.shape = f"{name}.joined", old.type, old.shape
    model.graph.insert_before(node, [conv, last])
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
    new.name, old.name = old.name, None
