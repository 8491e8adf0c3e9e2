"""Dependencies between nodes and values."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

__all__ = ["ancestors", "dependents"]


def ancestors(graph: ir.Graph, value: ir.Value) -> set[ir.Node]:
    """The nodes that compute `value`."""
    wanted: set[ir.Node] = set()
    needed = {value}
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            wanted.add(node)
            needed.update(v for v in node.inputs if v is not None)
    return wanted


def dependents(model: ir.Model, values: Iterable[ir.Value]) -> list[ir.Node]:
    """Nodes of the main graph whose results change with these values, in order."""
    changing = set(values)
    found = []
    for node in model.graph:
        if any(v in changing for v in node.inputs if v is not None):
            changing.update(node.outputs)
            found.append(node)
    return found
