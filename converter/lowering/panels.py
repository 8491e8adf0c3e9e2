"""Weights in blocks, in the order in which kernels read them in place."""

from __future__ import annotations

from lite_runtime.graph import Graph, Node
from lite_runtime.reference.blocked import Blocks, to_panels

__all__ = ["TABLES", "in_panels"]

TABLES = {"MatMulNBits": (1, 2, 3), "GatherBlockQuantized": (0, 2, 3)}
"""Operator -> its inputs that are integers, scales and offsets."""


def in_panels(graph: Graph) -> Graph:
    """The graph with constants of MatMulNBits and GatherBlockQuantized in layout "panels". Those that are not constant,
    or that other operators read too, stay as they are."""
    tables = [_table(node) for node in graph.nodes]
    fixed = _fixed(graph, tables)
    constants = dict(graph.constants)
    done = set[tuple[str, ...]]()
    for node, names in zip(graph.nodes, tables, strict=True):
        if not names or names in done or fixed.intersection(names):
            continue
        done.add(names)
        q, scales, offsets = (graph.constants[name] if name else None for name in names)
        assert q is not None and scales is not None
        turned = to_panels(Blocks(q, scales, offsets), _bits(node))
        constants |= {name: table for name, table in zip(names, turned, strict=True) if table is not None}
    nodes = (
        node.replace(attrs={**node.attrs, "layout": "panels"}) if names and not fixed.intersection(names) else node
        for node, names in zip(graph.nodes, tables, strict=True)
    )
    return graph.replace(nodes=tuple(nodes), constants=constants)


def _table(node: Node) -> tuple[str, ...]:
    """The names of integers, scales and offsets ("" for none) that a node reads in layout ""; empty for others."""
    if node.op not in TABLES or node.attrs.get("layout", ""):
        return ()
    return tuple(node.inputs[i] if i < len(node.inputs) else "" for i in TABLES[node.op])


def _bits(node: Node) -> int:
    return int(node.attrs["bits"])  # type: ignore[arg-type]


def _fixed(graph: Graph, tables: list[tuple[str, ...]]) -> set[str]:
    """Names that must keep their contents, and those that belong to a table with one of these."""
    fixed = {value.name for value in graph.outputs}
    bits: dict[str, int] = {}
    for node, names in zip(graph.nodes, tables, strict=True):
        if names and bits.setdefault(names[0], _bits(node)) != _bits(node):
            fixed.add(names[0])
        fixed.update(node.captures)
        fixed.update(name for name in node.inputs if name and name not in names)
        fixed.update(name for name in names if name and name not in graph.constants)
    while True:
        more = {name for names in tables if fixed.intersection(names) for name in names if name} - fixed
        if not more:
            return fixed
        fixed |= more
