"""A part of an exported graph on its own, which the reference computes: what it does is seen from its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from converter.lowering import lower
from lite_runtime.graph import Array
from lite_runtime.running.executor import Executor, Settings

__all__ = ["Probe", "needed"]

_LIMIT = 1 << 31
"""The most bytes of values that a run may keep."""
_MOST_NODES = 2000
_OLDEST = 13
"""From this opset on, operators of attention mean what they do in the latest one, which the reference computes."""


def needed(results: Sequence[ir.Value], given: Collection[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]]:
    """The nodes that compute `results` from `given`, and what else they read of the graph's inputs. Raises ConvertError
    for a part that is too large, or that has graphs inside."""
    nodes, entries, left, seen = set[ir.Node](), set[ir.Value](), list(results), set(given)
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            if value.const_value is None:
                entries.add(value)
            continue
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise ConvertError(
                f"node {build.title(node)}: expected plain operators, got graphs inside; export it again"
            )
        nodes.add(node)
        if len(nodes) > _MOST_NODES:
            raise ConvertError(f"expected at most {_MOST_NODES} operators of attention in a layer, got more")
        left += [v for v in node.inputs if v is not None]
    return nodes, entries


class Probe:
    """The part of `graph` that computes `results` from the values `given`, and from inputs of the graph."""

    def __init__(self, graph: ir.Graph, results: Sequence[ir.Value], given: Sequence[ir.Value]) -> None:
        if graph.opset_imports.get("", 0) < _OLDEST:
            raise ConvertError(
                f"expected attention in operators of opset {_OLDEST} or later, got {graph.opset_imports.get('', 0)}; "
                "export it again"
            )
        nodes, entries = needed(results, given)
        self.entries = sorted(entries, key=lambda value: value.name or "")
        self._given = {value: f"given.{i}" for i, value in enumerate([*given, *self.entries])}
        made = {value: _input(name, value) for value, name in self._given.items()}
        copies = ir.Graph(list(made.values()), [], nodes=[], name="probe", opset_imports=dict(graph.opset_imports))
        for number, node in enumerate(node for node in graph if node in nodes):
            operands = [None if v is None else made.get(v) or _constant(v, made, copies) for v in node.inputs]
            outputs = [ir.Value(name=f"value.{number}.{i}") for i in range(len(node.outputs))]
            copy = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()), outputs=outputs)
            copies.append(copy)
            made |= zip(node.outputs, outputs, strict=True)
        for value in results:
            found = made[value]
            found.type, found.shape = value.type or ir.TensorType(given[0].dtype or ir.DataType.FLOAT), value.shape
            copies.outputs.append(found)
        self._names = [made[value].name or "" for value in results]
        self._executor = Executor(lower(ir.Model(copies, ir_version=10)), Settings(native=False, limit=_LIMIT))

    def run(self, values: Mapping[ir.Value, Array]) -> list[Array]:
        """The results for these values of everything that is given or an entry. Raises MsedgeError if the part does
        not take them."""
        found = self._executor.run({name: values[value] for value, name in self._given.items()})
        return [np.asarray(found[name]) for name in self._names]


def _input(name: str, value: ir.Value) -> ir.Value:
    """An input in the place of a value, of open sizes."""
    kind, rank = value.dtype or ir.DataType.FLOAT, build.rank(value)
    shape = None if rank is None else ir.Shape([None] * rank)
    return ir.Value(name=name, type=ir.TensorType(kind), shape=shape)


def _constant(value: ir.Value, made: dict[ir.Value, ir.Value], graph: ir.Graph) -> ir.Value:
    """An initialiser's copy."""
    assert value.const_value is not None
    name = f"constant.{len(made)}"
    copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    graph.register_initializer(copy)
    made[value] = copy
    return copy
