"""Nested graphs with names that are unique in the enclosing graph, so that their nodes can stand among its nodes.

The names depend on nothing but the graphs.
"""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.graph import Array, Attr, Graph, Node

__all__ = ["first_output", "inlined", "spliced"]


def inlined(graph: Graph, prefix: str) -> Graph:
    """The graph with `prefix` before every name that it defines. Captured names stay as they are."""
    return _renamed(graph, {name: prefix + name for name in _defined(graph)})


def spliced(node: Node, key: str) -> tuple[list[Node], Mapping[str, Array]]:
    """Nodes and constants that compute an If's outputs as its branch `key` does."""
    branch = node.attrs[key]
    assert isinstance(branch, Graph)
    inner = inlined(branch, f"{first_output(node)}/{key}/")
    ends = zip(inner.outputs, node.outputs, strict=False)
    return [*inner.nodes, *(Node("Identity", (v.name,), (name,)) for v, name in ends if name)], inner.constants


def first_output(node: Node) -> str:
    """A name that identifies a node in its graph."""
    return next((name for name in node.outputs if name), "")


def _defined(graph: Graph) -> set[str]:
    made = {name for node in graph.nodes for name in node.outputs if name}
    return made.union(graph.constants, (value.name for value in graph.inputs))


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    def new(name: str) -> str:
        return names.get(name, name)

    return Graph(
        tuple(value._replace(name=new(value.name)) for value in graph.inputs),
        tuple(value._replace(name=new(value.name)) for value in graph.outputs),
        tuple(_renamed_node(node, names) for node in graph.nodes),
        {new(name): array for name, array in graph.constants.items()},
        graph.name,
    )


def _renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    def nested(attr: Attr) -> Attr:
        if not isinstance(attr, Graph):
            return attr
        own = _defined(attr)
        return _renamed(attr, {name: to for name, to in names.items() if name not in own})

    inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (node.inputs, node.outputs))
    attrs = {key: nested(attr) for key, attr in node.attrs.items()} if node.captures else node.attrs
    return Node(node.op, inputs, outputs, attrs, node.name)
