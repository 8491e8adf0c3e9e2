"""A graph as a list of steps: every node with its lowering, operands and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from cloud.engine.lowering import LOWERINGS, Program, Step
from cloud.engine.lowering.quantization import straight_through
from cloud.engine.lowering.registry import Lowering
from cloud.errors import EngineError
from converter.ir import statistics
from lite_runtime.operators import find

__all__ = ["compiled", "weights_of"]


def compiled(graph: ir.Graph, constants: Mapping[str, npt.NDArray[Any]]) -> Program:
    """The graph as a program that holds `constants`. Raises EngineError, which lists every unsupported operator with
    the names of its nodes."""
    unsupported: dict[str, list[str]] = {}
    program = _program(graph, constants, unsupported, count())
    if unsupported:
        lines = "; ".join(f"{op} ({', '.join(nodes)})" for op, nodes in sorted(unsupported.items()))
        raise EngineError(
            f"the engine has no lowering for {len(unsupported)} operator(s): {lines}. Rewrite these nodes, or register "
            "a function for them with cloud.engine.lowering.registry.lowering"
        )
    return program


def weights_of(graph: ir.Graph) -> dict[str, npt.NDArray[Any]]:
    """Initialisers by name. Raises EngineError for one without data."""
    weights = {}
    for name, value in graph.initializers.items():
        if value.const_value is None:
            raise EngineError(f"initialiser {name!r} has no data; load the model together with its external data file")
        weights[name] = value.const_value.numpy()
    return weights


def _program(
    graph: ir.Graph, constants: Mapping[str, npt.NDArray[Any]],
    unsupported: dict[str, list[str]], counter: Iterator[int],
) -> Program:  # fmt: skip
    steps = tuple(step for node in graph if (step := _compile(node, unsupported, counter)) is not None)
    return Program(_names(graph.inputs), _names(graph.outputs), steps, dict(constants))


def _names(values: Sequence[ir.Value | None]) -> tuple[str, ...]:
    return tuple("" if value is None else str(value.name or "") for value in values)


_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_STRAIGHT_THROUGH = Lowering(straight_through, wants_context=False)


def _quantizer(node: ir.Node | None) -> ir.Node | None:
    """The node that makes the integers that a DequantizeLinear reads: both become one step that gradients pass
    through."""
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return None
    source = None if node.inputs[0] is None else node.inputs[0].producer()
    known = source is not None and source.op_type in _QUANTIZERS and source.domain in ("", "ai.onnx")
    return source if known else None


def _only_dequantized(node: ir.Node) -> bool:
    """Whether the integers of a QuantizeLinear have no reader other than DequantizeLinear."""
    if node.op_type != "QuantizeLinear" or node.domain not in ("", "ai.onnx"):
        return False
    y = node.outputs[0]
    return not y.is_graph_output() and all(use.idx == 0 and _quantizer(use.node) is node for use in y.uses())


def _operands(quantizer: ir.Node, node: ir.Node) -> tuple[str, ...]:
    """x, scale, zero point, and then the scale and zero point of the DequantizeLinear `node`."""
    measured = quantizer.outputs[1:] if quantizer.op_type == "DynamicQuantizeLinear" else ()
    return (*_names((*quantizer.inputs, *measured, None))[:3], *_names((*node.inputs[1:], None))[:2])


def _compile(node: ir.Node, unsupported: dict[str, list[str]], counter: Iterator[int]) -> Step | None:
    if _only_dequantized(node):
        return None
    where = f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} giving {node.outputs[0].name!r}"
    attributes = {name: _attribute(a, where, unsupported, counter) for name, a in node.attributes.items()}
    quantizer = _quantizer(node)
    if quantizer is not None:
        before = {name: _attribute(a, where, unsupported, counter) for name, a in quantizer.attributes.items()}
        inputs, both = _operands(quantizer, node), {"quantize": before, "dequantize": attributes}
        return Step(node.op_type, _STRAIGHT_THROUGH, inputs, _names(node.outputs), both, where, next(counter))
    row = LOWERINGS.get(node.op_type) if find(node.domain, node.op_type) is not None else None
    if row is None:
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        unsupported.setdefault(op, []).append(repr(node.name) if node.name else f"giving {node.outputs[0].name!r}")
        return None
    moves = node.metadata_props.get(statistics.KEY) if node.op_type == "BatchNormalization" else None
    if moves == statistics.UNBIASED:
        attributes["unbiased"] = True
    return Step(
        node.op_type, row, _names(node.inputs), _names(node.outputs), attributes, where, next(counter),
        still=moves == statistics.STILL,
    )  # fmt: skip


def _attribute(attribute: ir.Attr, where: str, unsupported: dict[str, list[str]], counter: Iterator[int]) -> Any:
    kind = ir.AttributeType
    match attribute.type:
        case kind.GRAPH:
            graph = attribute.as_graph()
            return _program(graph, weights_of(graph), unsupported, counter)
        case kind.TENSOR:
            return attribute.as_tensor().numpy()
        case kind.INTS | kind.FLOATS | kind.STRINGS:
            return tuple(attribute.value)
        case kind.INT | kind.FLOAT | kind.STRING:
            return attribute.value
    raise EngineError(f"{where}: attribute {attribute.name!r} of type {attribute.type.name} is not supported")
