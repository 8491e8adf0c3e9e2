"""`auto_pad` becomes explicit pads wherever the spatial sizes are known; VALID and NOTSET need no sizes.

Formulas: ONNX's own of Conv, MaxPool and ConvTranspose.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import attr, dims, set_attrs
from lite_runtime.operators import OPERATORS, attributes, having

__all__ = ["run"]

_WINDOWED = frozenset(op for op in OPERATORS if "auto_pad" in attributes(op))


def run(model: ir.Model) -> int:
    """The number of operators whose pads became explicit."""
    found = (n for n in build.nodes(model) if n.domain in ("", build.DOMAIN) and n.op_type in _WINDOWED)
    return sum(_resolve(node) for node in found)


def _resolve(node: ir.Node) -> bool:
    mode = attr(node, "auto_pad", "NOTSET")
    if "auto_pad" not in node.attributes:
        return False
    if mode == "NOTSET":
        set_attrs(node, auto_pad=None)
        return True
    shape, kernel = dims(node.inputs[0]), _kernel(node)
    if mode == "VALID":
        set_attrs(node, auto_pad=None, pads=None)
        return True
    if shape is None or kernel is None or not all(isinstance(d, int) for d in shape[2:]):
        return False
    transposed = node.op_type.endswith("ConvTranspose")
    if transposed and "output_shape" in node.attributes:
        return False
    if attr(node, "ceil_mode", 0):
        return False
    n = len(kernel)
    if len(shape) != 2 + n:
        return False
    strides, dilations = attr(node, "strides", [1] * n), attr(node, "dilations", [1] * n)
    total = []
    for i in range(n):
        extent = (kernel[i] - 1) * dilations[i] + 1
        size = int(shape[2 + i])  # type: ignore[arg-type]
        if transposed:
            grown = attr(node, "output_padding", [0] * n)[i]
            total.append(max(0, (size - 1) * strides[i] + grown + extent - size * strides[i]))
        else:
            total.append(max(0, (-(-size // strides[i]) - 1) * strides[i] + extent - size))
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    upper = mode == "SAME_UPPER"
    set_attrs(node, auto_pad=None, pads=(less + more) if upper else (more + less))
    return True


def _kernel(node: ir.Node) -> list[int] | None:
    given = attr(node, "kernel_shape", None)
    if given is not None:
        return list(given)
    at = 3 if node.op_type in having("accumulates", "quantised") else 1
    weight = build.static_dims(node.inputs[at]) if len(node.inputs) > at else None
    return None if weight is None else list(weight[2:])
