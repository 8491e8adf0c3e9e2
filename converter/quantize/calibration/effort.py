"""How many rows each step of the quantiser uses: as many as help, but fewer where one run of the model takes long.

The estimate counts the operations and elements of the graph, not time, so the result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from converter.ir import build
from lite_runtime.operators import OPERATORS, having

__all__ = ["affordable", "multiply_adds", "run_seconds"]

_ARITHMETIC = 20e9
"""Multiply-adds in a second on one core; only a unit."""
_ELEMENTS = 2e9
"""Elements that other operators write in a second, likewise."""


def run_seconds(model: ir.Model) -> float:
    """A rough estimate of the seconds of one run on one core."""
    written = sum(_elements(v) for node in build.nodes(model) for v in node.outputs)
    return multiply_adds(model) / _ARITHMETIC + written / _ELEMENTS


def affordable(seconds: float, each: float, fewest: int, most: int) -> int:
    """How many runs of `each` seconds fit into `seconds`, between `fewest` and `most`."""
    return max(fewest, min(most, int(seconds / max(each, 1e-9))))


_WEIGHTS: Mapping[str, int] = {
    **{op: 3 if "quantised" in OPERATORS[op].traits else 1 for op in having("accumulates")},
    "ConvInteger": 1,
    "MatMulInteger": 1,
}
"""Contraction operators and the index of their weight operand."""


def multiply_adds(model: ir.Model) -> int:
    """An estimate of one run's multiply-adds: contractions exactly, other operators one per result; symbols count 1."""
    total = 0
    for node in build.nodes(model):
        size = sum(_elements(v) for v in node.outputs)
        operand = _WEIGHTS.get(node.op_type)
        if operand is not None and len(node.inputs) > operand:
            weight = build.dims(node.inputs[operand]) or (1,)
            depth = _elements(node.inputs[operand]) // max(1, _filters(node, weight))
            if "ConvTranspose" in node.op_type:
                size = _elements(node.inputs[0])
            size *= max(1, depth)
        total += size
    return total


def _filters(node: ir.Node, weight: tuple[int | str | None, ...]) -> int:
    found = weight[0 if "Conv" in node.op_type else -1]
    return found if isinstance(found, int) else 1


def _elements(value: ir.Value | None) -> int:
    return prod(d if isinstance(d, int) else 1 for d in build.dims(value) or ())
