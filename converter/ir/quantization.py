"""How the integers of a model's inputs and outputs mean real numbers: (q - zero_point) * scale, for callers.

A bundle has it in its metadata, by signature and name, so that `Interpreter` gives it as TensorFlow Lite does:

    {"quantization": {"predict": {"x": {"scales": [0.5], "zero_points": [-3], "dimension": 0}}}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import onnx_ir as ir

from converter.ir import build

__all__ = ["ARITHMETIC", "KEY", "Scales", "ends", "metadata"]

KEY = "quantization"
ARITHMETIC = "msedge.integers"
"""The key of a graph's `meta` that names the arithmetic of its quantised operators: "exact" or "litert"."""


class Scales(NamedTuple):
    """One scale and zero point for the whole tensor, or one for each position along `dimension`."""

    scales: list[float]
    zero_points: list[int]
    dimension: int = 0


def metadata(found: Mapping[str, Mapping[str, Scales]]) -> dict[str, Any]:
    """The entry for a bundle's metadata, by signature and name; empty if nothing is quantised."""
    told = {key: {name: scales._asdict() for name, scales in by.items()} for key, by in found.items() if by}
    return {KEY: told} if told else {}


def ends(model: ir.Model) -> dict[str, Scales]:
    """Inputs that DequantizeLinear reads and outputs that QuantizeLinear writes, by name."""
    return dict(_ends(model))


def _ends(model: ir.Model) -> Iterator[tuple[str, Scales]]:
    for value in model.graph.inputs:
        readers = [use.node for use in value.uses() if use.idx == 0 and build.is_op(use.node, "DequantizeLinear")]
        yield from _scales(value, readers[:1])
    for value in model.graph.outputs:
        producer = value.producer()
        if producer is not None and build.is_op(producer, "QuantizeLinear"):
            yield from _scales(value, [producer])


def _scales(value: ir.Value, nodes: list[ir.Node]) -> Iterator[tuple[str, Scales]]:
    for node in nodes:
        scale, zero = build.array(node.inputs[1]), build.array(node.inputs[2]) if len(node.inputs) > 2 else None
        if scale is not None and not build.attr(node, "block_size", 0):
            zeros = [0] * scale.size if zero is None else [int(v) for v in zero.reshape(-1)]
            axis = int(build.attr(node, "axis", 1)) if scale.size > 1 else 0
            yield value.name or "", Scales([float(v) for v in scale.reshape(-1)], zeros, axis)
