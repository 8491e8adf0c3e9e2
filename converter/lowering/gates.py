"""Gated products of language models as one operator: gate, up, activation, product and rounding."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from lite_runtime.graph import Graph, Node
from lite_runtime.operators.language import ACTIVATIONS

__all__ = ["gate_products"]

_TABLE = ("K", "N", "bits", "block_size", "zero_point", "layout")


class _Gate(NamedTuple):
    """The nodes of a gated product: Q(act(gate) * up), and the name of the activation."""

    gate: Node
    up: Node
    active: Node
    product: Node
    rounded: Node
    activation: str


def gate_products(graph: Graph) -> Graph:
    """The graph with Q(act(A G) * (A U)) as one node, where A has 8 bits, both weights are in panels of one format, and
    nothing else reads what is between."""
    readers = Counter(name for node in graph.nodes for name in (*node.inputs, *node.captures) if name)
    readers.update(value.name for value in graph.outputs)
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    found = [gate for node in graph.nodes if (gate := _found(node, makers, readers)) is not None]
    gone = {id(node) for gate in found for node in (gate.gate, gate.up, gate.active, gate.product)}
    made = {id(gate.rounded): _fused(gate) for gate in found}
    nodes = tuple(made.get(id(node), node) for node in graph.nodes if id(node) not in gone)
    return graph.replace(nodes=nodes)


def _found(rounded: Node, makers: dict[str, Node], readers: Counter[str]) -> _Gate | None:
    if rounded.op != "DynamicQuantizeBlocks" or rounded.attrs.get("block_size", ACTIVATIONS) != ACTIVATIONS:
        return None
    product = _alone(rounded.inputs[0], makers, readers, "Mul")
    if product is None:
        return None
    for one, other in (product.inputs, product.inputs[::-1]):
        active, up = makers.get(one), _alone(other, makers, readers, "MatMulNBits")
        name = "" if active is None or readers[one] != 1 else _activation(active)
        if active is None or up is None or not name:
            continue
        gate = _alone(active.inputs[0], makers, readers, "MatMulNBits")
        if gate is not None and _alike(gate, up):
            return _Gate(gate, up, active, product, rounded, name)
    return None


def _alone(name: str, makers: dict[str, Node], readers: Counter[str], op: str) -> Node | None:
    """The node of this operator that makes a value which one node reads."""
    maker = makers.get(name)
    return maker if maker is not None and maker.op == op and readers[name] == 1 else None


def _activation(node: Node) -> str:
    if node.op == "Gelu":
        return "GeluTanh" if node.attrs.get("approximate") == "tanh" else ""
    return node.op if node.op == "Silu" else ""


def _alike(gate: Node, up: Node) -> bool:
    """Whether two products read the same int8 activations in blocks of 32, by weights of one format in panels, and add
    nothing."""
    one, other = ((*node.inputs, *[""] * 8)[:8] for node in (gate, up))
    same = all(gate.attrs.get(name) == up.attrs.get(name) for name in _TABLE)
    plain = not any((*one[6:], *other[6:], gate.attrs.get("transposed", 0), up.attrs.get("transposed", 0)))
    depth, columns, block = (int(gate.attrs[name]) for name in ("K", "N", "block_size"))  # type: ignore[arg-type]
    whole = columns % ACTIVATIONS == 0 and block % ACTIVATIONS == 0 and depth % ACTIVATIONS == 0
    paired = bool(one[3]) == bool(other[3])
    return bool(
        same and plain and whole and paired and gate.attrs.get("layout") == "panels"
        and one[4] and one[5] and (one[0], *one[4:6]) == (other[0], *other[4:6])
    )  # fmt: skip


def _fused(gate: _Gate) -> Node:
    (a, q, scales, offsets, a_scales, a_sums), (_, v, v_scales, v_offsets, *_) = (
        node.inputs[:6] for node in (gate.gate, gate.up)
    )
    inputs = (a, a_scales, a_sums, q, scales, v, v_scales, *((offsets, v_offsets) if offsets else ()))
    return gate.rounded.replace(
        op="GatedMatMulNBits",
        inputs=inputs,
        attrs={name: gate.gate.attrs[name] for name in _TABLE if name in gate.gate.attrs}
        | {"activation": gate.activation},
    )
