"""One entry point of a file to one ONNX graph, whose inputs and outputs have the names that the caller uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from converter.errors import ConvertError, UnsupportedNode, UnsupportedOpError
from converter.frontends.loaded import Integers
from converter.frontends.tflite.custom import has_rule
from converter.frontends.tflite.model import Model, Operator, Quant, Signature, Subgraph, Tensor
from converter.frontends.tflite.scope import Program, Scope
from converter.frontends.tflite.state import States

__all__ = ["DEFAULT", "Entry", "distinct", "entry_points", "to_ir"]

DEFAULT = "predict"
"""The signature name of a model that declares none."""
_IR_VERSION = 12
_BATCH = "batch"


class Entry(NamedTuple):
    """A signature as a graph."""

    model: ir.Model
    states: States
    quants: dict[str, Quant]
    """How the integers of its inputs and outputs mean real numbers, by their names."""


def entry_points(model: Model) -> dict[str, Signature]:
    """The signatures by key. None, or a single one: `DEFAULT`. Several: their own keys, and the first also as `DEFAULT`
    if no signature has that key."""
    if not model.signatures:
        return {DEFAULT: Signature(DEFAULT, 0, (), ())}
    if len(model.signatures) == 1:
        return {DEFAULT: model.signatures[0]}
    found = {signature.key: signature for signature in model.signatures}
    if len(found) < len(model.signatures) or "" in found:
        raise ConvertError(f"two signatures have the same key, or none: {[s.key for s in model.signatures]}")
    return found if DEFAULT in found else {DEFAULT: model.signatures[0], **found}


def to_ir(model: Model, signature: Signature, integers: Integers = "exact") -> Entry:
    """The signature's subgraph as a model at the pinned opset, in QDQ form where it is quantised.

    Inputs and outputs keep their stored types, in the file's order. Raises UnsupportedOpError listing every operator
    without a rule, ConvertError for anything else that cannot be translated.
    """
    subgraph = model.subgraphs[signature.subgraph]
    missing = list(_unsupported(model, subgraph, {subgraph.index}))
    if missing:
        raise UnsupportedOpError(missing)
    inputs = [(i, _named(subgraph, signature.inputs, i)[0]) for i in _once(subgraph.inputs)]
    outputs = [(i, name) for i in _once(subgraph.outputs) for name in _named(subgraph, signature.outputs, i)]
    names = distinct([name for _, name in (*inputs, *outputs)])
    program = Program(model, subgraph.name or "main", names, integers)
    scope = Scope(program, subgraph, program.graph, (subgraph.index,))
    shared = _shares_batch([subgraph.tensors[i] for i, _ in inputs])
    for (index, _), name in zip(inputs, names, strict=False):
        value = _input(subgraph.tensors[index], name, shared)
        program.graph.inputs.append(value)
        scope.bind(index, value)
    scope.run()
    for (index, _), name in zip(outputs, names[len(inputs) :], strict=True):
        program.graph.outputs.append(scope.output(index, name))
    program.states.finish()
    ends = zip(names, (subgraph.tensors[i].quant for i, _ in (*inputs, *outputs)), strict=True)
    quants = {name: quant for name, quant in ends if quant is not None}
    return Entry(ir.Model(program.graph, ir_version=_IR_VERSION, producer_name="tflite"), program.states, quants)


def _once(indices: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(indices))


def _named(subgraph: Subgraph, names: Sequence[tuple[str, int]], index: int) -> list[str]:
    """The caller's names of a tensor, or its own."""
    found = [name for name, tensor in names if tensor == index and name]
    return found or [subgraph.tensors[index].name or f"tensor {index}"]


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with numbers appended to repeated ones: those of a bundle's inputs and outputs, in this order."""
    found: dict[str, None] = {}
    for name in names:
        unique, number = name, 1
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found[unique] = None
    return list(found)


# shapes of inputs


def _shares_batch(tensors: Sequence[Tensor]) -> bool:
    """Whether every input has an unknown first dimension before others: a batch, the same for all."""
    return bool(tensors) and all(t.rank > 1 and t.shape_signature[0] < 0 for t in tensors)


def _input(tensor: Tensor, name: str, shares_batch: bool) -> ir.Value:
    """A graph input; sizes that the file leaves open get symbolic names."""
    if tensor.dtype is None:
        raise ConvertError(f"input {name!r} is a {tensor.type_name}; only plain tensors can be inputs")

    def dim(axis: int, size: int) -> int | str:
        if size >= 0:
            return size
        return _BATCH if shares_batch and axis == 0 else f"{name}.{axis}"

    shape = ir.Shape([dim(i, d) for i, d in enumerate(tensor.shape_signature)]) if tensor.has_rank else None
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)


# operators without a rule

_CALLS = (
    "subgraph",
    "then_subgraph_index",
    "else_subgraph_index",
    "cond_subgraph_index",
    "body_subgraph_index",
    "init_subgraph_index",
    "decomposition_subgraph_index",
)


def _unsupported(model: Model, subgraph: Subgraph, seen: set[int]) -> Iterator[UnsupportedNode]:
    """Operators without a rule in the subgraph and in those it calls."""
    pending = [subgraph]
    while pending:
        current = pending.pop()
        for operator in current.operators:
            if not has_rule(operator):
                yield _node(current, operator)
            for index in (operator.options.get(name) for name in _CALLS):
                if isinstance(index, int) and 0 <= index < len(model.subgraphs) and index not in seen:
                    seen.add(index)
                    pending.append(model.subgraphs[index])


def _node(subgraph: Subgraph, operator: Operator) -> UnsupportedNode:
    name = next((subgraph.tensors[i].name for i in operator.outputs if i >= 0), "")
    return UnsupportedNode(
        name,
        operator.name,
        "tflite" if operator.custom is None else "tflite.custom",
        operator.version,
        f"subgraph {subgraph.index}, operator {operator.index}",
        _hint(operator),
    )


def _hint(operator: Operator) -> str:
    if operator.custom is None:
        return ""
    if operator.name.startswith("Flex"):
        return "a TensorFlow operator; convert again with TFLITE_BUILTINS only"
    return "register it with lite_runtime.custom, or translate it with converter.frontends.tflite.custom"
