"""Parameters of a quantised source become float again, and so do values computed from them.

1. DequantizeLinear of a constant whose name matches: its result, as an initialiser of that name.
2. QuantizeLinear ... DequantizeLinear around values that depend on those, with only movement between: removed. Ranges
   measured before the training would clip values that training changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit
from converter.passes import quantized
from converter.quantize.options import matches
from converter.training.reach import ancestors, dependents
from lite_runtime.operators import having

__all__ = ["stored", "unquantize"]

_MOVES = having("view") | {"Transpose"}


def stored(model: ir.Model, loss_of: ir.Value) -> dict[str, list[ir.Node]]:
    """Quantised constants of at least one axis that `loss_of` depends on: name -> the DequantizeLinears of each."""
    found: dict[str, list[ir.Node]] = {}
    wanted = ancestors(model.graph, loss_of)
    for node in model.graph:
        constant = quantized.stored(node.outputs[0]) if build.is_op(node, "DequantizeLinear") else None
        if constant is not None and constant.q.ndim and constant.name and node in wanted:
            found.setdefault(constant.name, []).append(node)
    return found


def unquantize(model: ir.Model, globs: Iterable[str], known: Mapping[str, list[ir.Node]]) -> None:
    """Make float initialisers of those `known` whose names match, in place."""
    globs, made = tuple(globs), list[ir.Value]()
    for name, nodes in known.items():
        if matches(globs, name):
            made.append(_as_float(model.graph, name, nodes))
    for node in list(dependents(model, made)):
        if build.is_op(node, "QuantizeLinear") and node.graph is not None:
            _drop_steps(node)


def _as_float(graph: ir.Graph, name: str, nodes: list[ir.Node]) -> ir.Value:
    constant = quantized.stored(nodes[0].outputs[0])
    assert constant is not None
    old = graph.initializers.pop(name)
    old.name = build.fresh(graph, name)
    if any(use.node not in nodes for use in old.uses()):
        graph.register_initializer(old)
    tensor = ir.tensor(constant.values(), name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(constant.q.shape), const_value=tensor)
    graph.register_initializer(value)
    for node in nodes:
        node.outputs[0].replace_all_uses_with(value)
        graph.remove(node, safe=True)
    return value


def _drop_steps(quantizer: ir.Node) -> None:
    """Bypass a quantiser whose readers are only movements to DequantizeLinears."""
    x = quantizer.inputs[0]
    ends = None if quantizer.outputs[0].is_graph_output() else list(_ends(quantizer.outputs[0]))
    if x is None or ends is None or None in ends:
        return
    moved = {node: node.outputs[0] for node in _movements(quantizer.outputs[0])}
    quantizer.outputs[0].replace_all_uses_with(x)
    for value in moved.values():
        value.type = x.type
    for end in ends:
        assert end is not None
        Edit(end).replace(end.inputs[0])


def _ends(value: ir.Value) -> Iterator[ir.Node | None]:
    """The DequantizeLinears after movements; None if anything else reads the value."""
    for use in value.uses():
        if build.is_op(use.node, "DequantizeLinear") and use.idx == 0:
            yield use.node
        elif build.is_op(use.node, *_MOVES) and use.idx == 0 and not use.node.outputs[0].is_graph_output():
            yield from _ends(use.node.outputs[0])
        else:
            yield None


def _movements(value: ir.Value) -> Iterator[ir.Node]:
    for use in value.uses():
        if build.is_op(use.node, *_MOVES):
            yield use.node
            yield from _movements(use.node.outputs[0])
