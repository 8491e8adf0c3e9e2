"""Scan and Loop with a known, small number of turns become that many copies of their body.

Copies are planned, fused and run natively like any other nodes; a body inside Scan or Loop runs by reference. Recurrent
cells that ONNX's LSTM cannot express (projection, layer normalisation, a clipped cell) are such bodies, and a streaming
model has few turns in each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr

__all__ = ["MOST_NODES", "run"]

MOST_NODES = 2048
"""The most nodes that the copies of one body may have."""


def run(model: ir.Model) -> int:
    """The number of nodes unrolled. Shape inference must run afterwards: shapes may differ between turns."""
    count = 0
    for node in list(build.nodes(model)):
        if node.graph is not None and build.is_op(node, "Scan", "Loop"):
            count += _scan(node) if node.op_type == "Scan" else _loop(node)
    return count


def _scan(node: ir.Node) -> bool:
    body, scans = node.attributes["body"].as_graph(), int(attr(node, "num_scan_inputs", 0))
    states = len(node.inputs) - scans
    axes = list(attr(node, "scan_input_axes", ()) or [0] * scans)
    back = list(attr(node, "scan_input_directions", ()) or [0] * scans)
    sequences = node.inputs[states:]
    lengths = {_length(v, axis) for v, axis in zip(sequences, axes, strict=True)}
    turns = lengths.pop() if len(lengths) == 1 else None
    if turns is None or not _small(body, turns):
        return False
    edit = Edit(node)
    copies = _Copies(edit, body)
    carried: list[ir.Value | None] = list(node.inputs[:states])
    stacks: list[list[ir.Value]] = [[] for _ in range(len(body.outputs) - states)]
    for turn in range(turns):
        taken = [
            _element(edit, v, axis, turns - 1 - turn if reverse else turn, turns)
            for v, axis, reverse in zip(sequences, axes, back, strict=True)
        ]
        results = copies.turn([*carried, *taken])
        carried = list(results[:states])
        for stack, value in zip(stacks, results[states:], strict=True):
            stack.append(value)
    places = list(attr(node, "scan_output_axes", ()) or [0] * len(stacks))
    turned = list(attr(node, "scan_output_directions", ()) or [0] * len(stacks))
    whole = [
        _stacked(edit, stack[::-1] if reverse else stack, axis)
        for stack, axis, reverse in zip(stacks, places, turned, strict=True)
    ]
    _replace(edit, [*carried, *whole])
    return True


def _loop(node: ir.Node) -> bool:
    body = node.attributes["body"].as_graph()
    trips, start = build.array(node.inputs[0]), node.inputs[1] if len(node.inputs) > 1 else None
    if trips is None or trips.size != 1 or not _always(start) or not _goes_on(body):
        return False
    turns = int(trips.reshape(-1)[0])
    if not _small(body, turns):
        return False
    edit = Edit(node)
    copies, true = _Copies(edit, body), edit.const(True, bool)
    carried: list[ir.Value | None] = list(node.inputs[2:])
    stacks: list[list[ir.Value]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    for turn in range(turns):
        results = copies.turn([edit.const(turn, "int64"), true, *carried])[1:]
        for stack, value in zip(stacks, results[len(carried) :], strict=True):
            stack.append(value)
        carried = list(results[: len(carried)])
    _replace(edit, [*carried, *(_stacked(edit, stack, 0) for stack in stacks)])
    return True


def _length(value: ir.Value | None, axis: int) -> int | None:
    shape = build.dims(value) if value is not None else None
    found = None if shape is None else shape[axis]
    return found if isinstance(found, int) else None


def _small(body: ir.Graph, turns: int) -> bool:
    """Whether the copies are few, and the body has no graphs inside."""
    attributes = (a for node in body for a in node.attributes.values())
    inner = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes)
    return not inner and turns > 0 and turns * max(1, len(body)) <= MOST_NODES


def _always(condition: ir.Value | None) -> bool:
    found = build.array(condition)
    return condition is None or (found is not None and bool(found.all()))


def _goes_on(body: ir.Graph) -> bool:
    """Whether the body's condition is true in every turn: the one it got, or a constant."""
    value: ir.Value | None = body.outputs[0]
    while value is not None and (node := value.producer()) is not None and build.is_op(node, "Identity"):
        value = node.inputs[0]
    return value is body.inputs[1] or (build.array(value) is not None and _always(value))


def _element(edit: Edit, value: ir.Value | None, axis: int, index: int, turns: int) -> ir.Value:
    """One element of a sequence along `axis`, without the axis."""
    if turns == 1:
        return _typed(edit.op("Squeeze", [value, edit.ints([axis])]), value)
    return _typed(edit.op("Gather", [value, edit.ints(index)], {"axis": axis}), value)


def _stacked(edit: Edit, values: Sequence[ir.Value], axis: int) -> ir.Value:
    parts = [_typed(edit.op("Unsqueeze", [value, edit.ints([axis])]), value) for value in values]
    return parts[0] if len(parts) == 1 else _typed(edit.op("Concat", parts, {"axis": axis}), parts[0])


def _typed(made: ir.Value, like: ir.Value | None) -> ir.Value:
    made.type = like.type if like is not None else None
    return made


def _replace(edit: Edit, values: Sequence[ir.Value | None]) -> None:
    """The node's results; each is a value of its own, since an output cannot be one that the node only handed on."""
    edit.replace(*(_typed(edit.op("Identity", [value]), value) for value in values))


class _Copies:
    """Copies of a body's nodes before one node."""

    def __init__(self, edit: Edit, body: ir.Graph) -> None:
        self._edit, self._body = edit, body
        self._constants: dict[ir.Value, ir.Value] = {}
        for value in body.initializers.values():
            assert value.const_value is not None
            self._constants[value] = edit.const(value.const_value.numpy())

    def turn(self, given: Sequence[ir.Value | None]) -> list[ir.Value]:
        """One copy for these inputs; its outputs."""
        edit, known = self._edit, dict(self._constants)
        known.update((entry, v) for entry, v in zip(self._body.inputs, given, strict=True) if v is not None)
        for node in self._body:
            operands = [None if v is None else known.get(v, v) for v in node.inputs]
            results = [self._new(v) for v in node.outputs]
            made = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()), outputs=results)
            made.name = build.fresh(edit.graph, node.name or node.op_type)
            made.metadata_props.update(node.metadata_props)
            edit.graph.insert_before(edit.node, made)
            known.update(zip(node.outputs, results, strict=True))
        return [known.get(v, v) for v in self._body.outputs]

    def _new(self, value: ir.Value) -> ir.Value:
        return ir.Value(name=build.fresh(self._edit.graph, value.name) if value.name else "", type=value.type)
