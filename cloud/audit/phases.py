"""Transposed convolutions with steps as convolutions without: each phase of the output is a convolution of its own
with every `stride`-th weight, and the phases are then put side by side. Kernels compute that in one product, without
the sum over overlapping patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit

__all__ = ["split_phases"]


def split_phases(model: ir.Model) -> None:
    """Replace, in place, the ConvTranspose nodes of two dimensions with steps, constant weights and no groups."""
    for node in list(model.graph):
        if node.op_type == "ConvTranspose" and (found := _phases(node)) is not None:
            _replace(node, *found)


def _phases(node: ir.Node) -> tuple[npt.NDArray[Any], list[int], list[int]] | None:
    """Weights and paddings of the convolution that computes all phases, its results ordered as (phase, phase, channel),
    and the steps; None for a node of another form."""
    weight, x, y = node.inputs[1], node.inputs[0], node.outputs[0]
    sizes, wanted = (build.dims(value) if value is not None else None for value in (x, y))
    plain = (
        build.attr(node, "group", 1) == 1 and set(build.attr(node, "dilations", [1])) == {1} and len(node.inputs) == 2
    )
    if weight is None or weight.const_value is None or sizes is None or wanted is None or not plain:
        return None
    steps, pads = list(build.attr(node, "strides", [1, 1])), build.attr(node, "pads", [0, 0, 0, 0])
    numbers = [*sizes[2:], *wanted[2:]]
    if len(steps) != 2 or steps == [1, 1] or not all(isinstance(n, int) for n in numbers):
        return None
    made, ends = weight.const_value.numpy(), []
    for axis, (size, long) in enumerate(zip(sizes[2:], wanted[2:], strict=True)):
        if long % steps[axis]:
            return None
        made, first = _along(made, 2 + axis, steps[axis], pads[axis])
        ends.append((-first, long // steps[axis] - size + first + made.shape[2 + axis] - 1))
    if min(min(pair) for pair in ends) < 0:
        return None
    taps = made.shape[2:4]  # (in, out, taps, taps, phase, phase)
    conv = made.transpose(4, 5, 1, 0, 2, 3).reshape(-1, made.shape[0], *taps)
    return np.ascontiguousarray(conv), [ends[0][0], ends[1][0], ends[0][1], ends[1][1]], steps


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


def _replace(node: ir.Node, weight: npt.NDArray[Any], pads: list[int], steps: list[int]) -> None:
    """The convolution, and its phases side by side. Kernels have channels last: there nothing moves but whole rows, and
    with a first step of 1 nothing at all."""
    edit, old = Edit(node), node.outputs[0]
    batch, _, *open_sizes = build.dims(old) or ()
    sizes = [size for size in open_sizes if isinstance(size, int)]  # all, see `_phases`
    high, wide = (size // step for size, step in zip(sizes, steps, strict=True))
    count, channels = len(weight), len(weight) // (steps[0] * steps[1])
    run = steps[1] * channels
    y = edit.op("Conv", [node.inputs[0], edit.const(weight)], {"pads": pads, "kernel_shape": weight.shape[2:]},
                like=old, shape=[batch, count, high, wide])  # fmt: skip
    y = edit.op("Transpose", [y], {"perm": (0, 2, 3, 1)}, like=old, shape=[batch, high, wide, count])
    if steps[0] > 1:
        y = edit.op("Reshape", [y, edit.ints((0, high, wide, steps[0], run))], like=old,
                    shape=[batch, high, wide, steps[0], run])  # fmt: skip
        y = edit.op("Transpose", [y], {"perm": (0, 1, 3, 2, 4)}, like=old, shape=[batch, high, steps[0], wide, run])
    y = edit.op("Reshape", [y, edit.ints((0, *sizes, channels))], like=old, shape=[batch, *sizes, channels])
    edit.replace(edit.op("Transpose", [y], {"perm": (0, 3, 1, 2)}, like=old))
