"""The table of differentiation rules. One file per family of operators fills it.

A rule gets a node with the gradients of its results and returns the gradients of its operands, in order, None where
there is none:

    @rule("Tanh")
    def _tanh(n: At) -> Gradients:
        return [n.g * (1 - n.y * n.y)]

Gradients of operands that are not requested are removed afterwards, so rules need not check. Where an operator is
shorter to write in terms of others than to differentiate, `composed` takes this definition, which is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build
from converter.ir.grad.tape import Operand, Tape, Term
from lite_runtime.operators import having, require

__all__ = ["RULES", "WITHOUT", "At", "Gradients", "Refusal", "Rule", "composed", "pull_back", "refuse", "rule"]

Gradients: TypeAlias = "Sequence[Term | None]"
Rule: TypeAlias = "Callable[[At], Gradients]"
Refusal: TypeAlias = "Callable[[ir.Node], str]"
"""Why this node cannot be differentiated, "" if it can."""

RULES: dict[str, Rule] = {}
REFUSALS: dict[str, Refusal] = {}
WITHOUT = having("flat")
"""Operators without gradients: their results do not depend on the operands' values, or their derivative is 0 wherever
it exists."""


@dataclass(frozen=True)
class At:
    """A node to differentiate, and the tape that its gradients are written to."""

    tape: Tape
    node: ir.Node
    grads: Sequence[Operand]
    """Gradients of its results, in order: None for those that the loss does not depend on."""
    active: frozenset[ir.Value]
    """Values whose gradients are requested."""

    @property
    def inputs(self) -> list[Operand]:
        """Its operands, None for omitted ones."""
        return [None if v is None else self.tape.term(v) for v in self.node.inputs]

    @property
    def outputs(self) -> list[Term]:
        """Its results."""
        return [self.tape.term(v) for v in self.node.outputs]

    def has(self, i: int) -> bool:
        """Whether operand `i` is present."""
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def input(self, i: int) -> Term:
        """Operand `i`, which must be present."""
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        if value is None:
            raise self.error(f"operand {i} is missing")
        return self.tape.term(value)

    @property
    def x(self) -> Term:
        """The first operand."""
        return self.input(0)

    @property
    def y(self) -> Term:
        """The first result."""
        return self.tape.term(self.node.outputs[0])

    @property
    def g(self) -> Term:
        """The gradient of the first result; zeros if the loss depends on others only."""
        found = self.grads[0]
        return self.tape.zeros_like(self.y) if found is None else found

    def attr(self, name: str, default: Any) -> Any:
        """The attribute's value, or `default`."""
        return build.attr(self.node, name, default)

    def constant(self, i: int, what: str) -> np.ndarray:
        """The contents of operand `i`, which must be known before the model runs."""
        found = self.input(i).array()
        if found is None:
            raise self.error(f"its {what} must be a constant")
        return found

    def wants(self, i: int) -> bool:
        """Whether the gradient of operand `i` is requested."""
        return self.has(i) and self.node.inputs[i] in self.active

    def axis(self, default: int) -> int:
        """Attribute `axis` of the first operand, counted from the front."""
        return int(self.attr("axis", default)) % self.x.rank

    def output(self, i: int, dtype: ir.DataType, shape: build.Shape | None) -> Term:
        """Result `i` of the node; the output is added if the node does not have it yet."""
        if len(self.node.outputs) <= i:
            self.node.resize_outputs(i + 1)
        value = self.node.outputs[i]
        value.name = value.name or build.fresh(self.tape.graph, self.node.name or self.node.op_type)
        value.type = value.type or ir.TensorType(dtype)
        if value.shape is None and shape is not None:
            value.shape = ir.Shape(shape)
        return self.tape.term(value)

    def error(self, what: str) -> TrainingError:
        """A TrainingError that names this node."""
        return TrainingError(f"{self.node.op_type} {self.node.name!r} cannot be differentiated: {what}")


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of `ops`."""

    def enter(function: Rule) -> Rule:
        require(ops, "gradients")
        for op in ops:
            if op in RULES:
                raise ValueError(f"expected one rule for {op}, got two")
            RULES[op] = function
        return function

    return enter


def refuse(*ops: str) -> Callable[[Refusal], Refusal]:
    """Register a function that says which nodes of `ops` their rule cannot differentiate, before anything is
    written."""

    def enter(function: Refusal) -> Refusal:
        REFUSALS.update(dict.fromkeys(ops, function))
        return function

    return enter


def composed(*ops: str) -> Callable[[Callable[[At], Sequence[Operand]]], Rule]:
    """Register the definition of `ops`: a function that writes a node's results in terms of other operators. They are
    recomputed in the backward pass, because the forward pass does not keep their intermediate values."""

    def enter(meaning: Callable[[At], Sequence[Operand]]) -> Rule:
        def differentiated(n: At) -> Gradients:
            written = len(n.tape.nodes)
            results = meaning(n)
            given = {y.value: g for y, g in zip(results, n.grads, strict=False) if y is not None and g is not None}
            found = pull_back(n.tape, n.tape.nodes[written:], given, n.active & set(n.node.inputs))
            return [None if v is None else found.pop(v, None) for v in n.node.inputs]

        return rule(*ops)(differentiated)

    return enter


# -- the chain rule ---------------------------------------------------------------------------------------------------


def reads(node: ir.Node) -> set[ir.Value]:
    """The values a node reads, those its subgraphs capture included."""
    found = {v for v in node.inputs if v is not None}
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = attribute.as_graph()
            within = {v for n in inner for v in n.outputs} | set(inner.inputs) | set(inner.initializers.values())
            captured = {v for n in inner for v in reads(n)} | set(inner.outputs)
            found |= captured - within
    return found


def moved_by(nodes: Sequence[ir.Node], wrt: frozenset[ir.Value]) -> frozenset[ir.Value]:
    """`wrt`, and every value among the results of `nodes` (in order) that changes smoothly with it."""
    moved = set(wrt)
    for node in nodes:
        if node.op_type not in WITHOUT and reads(node) & moved:
            moved |= {v for v in node.outputs if _smooth(node, v)}
    return frozenset(moved)


def _smooth(node: ir.Node, value: ir.Value) -> bool:
    """Whether it holds real numbers. Quantised values count as the numbers they represent."""
    known = value.dtype
    return known is None or known.is_floating_point() or node.op_type == "QuantizeLinear"


def path(nodes: Sequence[ir.Node], ends: frozenset[ir.Value], moved: frozenset[ir.Value]) -> list[ir.Node]:
    """The nodes, last one first, through which `ends` depend on changing values."""
    needed, found = set(ends), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs) and moved.intersection(node.outputs) and reads(node) & moved:
            found.append(node)
            needed |= reads(node) & moved
    return found


def pull_back(
    tape: Tape, nodes: Sequence[ir.Node], given: Mapping[ir.Value, Term], wrt: frozenset[ir.Value]
) -> dict[ir.Value, Term]:
    """The gradients of `wrt` through `nodes`, given the gradients of their results; no entry without a dependence."""
    moved = moved_by(nodes, wrt)
    grads: dict[ir.Value, Term] = dict(given)
    for node in path(nodes, frozenset(given), moved):
        tape.hint = f"grad/{node.name or node.op_type}"
        at = At(tape, node, [grads.get(v) for v in node.outputs], moved)
        if all(g is None for g in at.grads):
            continue
        for value, g in zip(list(node.inputs), RULES[node.op_type](at), strict=False):
            if value is not None and g is not None and value in moved:
                grads[value] = grads[value] + g if value in grads else g
    return {v: grads[v] for v in wrt if v in grads}
