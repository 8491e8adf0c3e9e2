"""Remove a QuantizeLinear and DequantizeLinear of values that already are multiples of the same step.

DequantizeLinear(QuantizeLinear(y)) -> y, where y is computed from DequantizeLinears with the same parameters by

1. operators that move or select elements: Reshape, Transpose, Slice, Gather, MaxPool, nearest-neighbour Resize;
2. Concat, Max, Min of such values, and Where choosing between them;
3. Pad with a number among those multiples.

Only operators that accept the integers directly (`spec.takes`) count; `integer.dequantize_later` moves them there.
Exporters write such pairs around every operator. Without them, passes see uninterrupted chains of movement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build, spec
from converter.ir.build import Edit, attr
from converter.passes import quantized
from converter.passes.quantized import Parameters
from lite_runtime.operators import having

__all__ = ["representable", "rule", "run"]

_DEPTH = 16


def run(model: ir.Model) -> int:
    """The number of pairs removed."""
    return sum(rule(node) for node in build.nodes(model) if build.is_op(node, "DequantizeLinear"))


def rule(node: ir.Node) -> bool:
    """Remove the pair that ends in this DequantizeLinear, if it has no effect."""
    q = node.inputs[0]
    back, made = quantized.dequantized(node.outputs[0]), q.producer() if q is not None else None
    given = quantized.quantizer(made)
    if back is None or given is None or made is None or not given.plain or not quantized.same(back.parameters, given):
        return False
    value = made.inputs[0]
    if value is None or not _multiples(value, given, _DEPTH):
        return False
    if node.outputs[0].is_graph_output() and (value.is_graph_output() or value.producer() is None):
        return False
    Edit(node).replace(value)
    if not made.outputs[0].uses() and not made.outputs[0].is_graph_output() and made.graph is not None:
        made.graph.remove(made, safe=True)
    return True


def representable(number: float, parameters: Parameters) -> int | None:
    """The integer that represents exactly `number`, or None."""
    scale, zero = parameters.scales, parameters.zeros
    if scale is None or zero is None or scale.ndim or zero.ndim or not np.isfinite(number):
        return None
    step = np.float32(scale)
    whole = float(np.rint(np.float32(number) / step)) + float(zero)
    low, high = _range(parameters.dtype)
    exact = low <= whole <= high and np.float32(whole - float(zero)) * step == np.float32(number)
    return int(whole) if exact else None


def _range(dtype: ir.DataType) -> tuple[int, int]:
    from lite_runtime.reference.quantize import integer_range

    return integer_range(dtype.numpy())


def _multiples(value: ir.Value | None, parameters: Parameters, depth: int) -> bool:
    found = quantized.dequantized(value)
    if found is not None:
        return quantized.same(found.parameters, parameters)
    node = value.producer() if value is not None else None
    if node is None or depth == 0 or node.domain not in ("", build.DOMAIN):
        return False
    operands = _OPERANDS.get(node.op_type)
    if not spec.takes(node.op_type, 1 if node.op_type == "Where" else 0, parameters.dtype):
        return False
    chosen = operands(node, parameters) if operands is not None else None
    return bool(chosen) and all(_multiples(v, parameters, depth - 1) for v in chosen or ())


Operands = Callable[[ir.Node, Parameters], "list[ir.Value | None] | None"]


def _first(node: ir.Node, parameters: Parameters) -> list[ir.Value | None]:
    return [node.inputs[0]]


def _all(node: ir.Node, parameters: Parameters) -> list[ir.Value | None]:
    return list(node.inputs)


def _where(node: ir.Node, parameters: Parameters) -> list[ir.Value | None]:
    return list(node.inputs[1:])


def _resize(node: ir.Node, parameters: Parameters) -> list[ir.Value | None] | None:
    outside = attr(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return [node.inputs[0]] if attr(node, "mode", "nearest") == "nearest" and not outside else None


def _pad(node: ir.Node, parameters: Parameters) -> list[ir.Value | None] | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    number = 0.0 if value is None else build.scalar(value)
    constant = attr(node, "mode", "constant") == "constant"
    fits = not constant or (number is not None and representable(number, parameters) is not None)
    return [node.inputs[0]] if fits else None


_OPERANDS: Mapping[str, Operands] = {
    **dict.fromkeys(having("movement") | having("selects"), _first),
    **dict.fromkeys(("Concat", "Max", "Min"), _all),
    "Where": _where,
    "Resize": _resize,
    "Pad": _pad,
}
