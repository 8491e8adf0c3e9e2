"""Weights in fewer bytes, each followed by a node that decodes it for the kernels once, when a bundle is loaded.

Half precision: float32 constants become float16 and a Cast. Integers narrower than a byte: packed bytes and an Unpack4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from converter.lowering.panels import TABLES
from lite_runtime.graph import Array, Attr, Graph, Node
from lite_runtime.operators import having
from lite_runtime.reference.narrow import pack4
from lite_runtime.reference.support import NARROW_INTS

__all__ = ["Halved", "halve_weights", "pack_narrow"]

SMALLEST = 64
"""The fewest elements for which storing a constant in half precision is worth its Cast."""
LOSSLESS_FROM = 1024
"""The fewest elements for which it is done by default if it is lossless."""


@dataclass(frozen=True)
class Halved:
    """What `halve_weights` did: how many constants it stored in float16, and how many overflowed and stayed float32."""

    graph: Graph
    stored: int
    overflowed: int


def halve_weights(graph: Graph, *, lossless: bool = False) -> Halved:
    """Store float32 constants of `SMALLEST` or more elements as float16; values beyond float16's range keep float32.

    `lossless`: only constants that are exact in float16, such as weights that the source stored in float16. Tables of
    weights in blocks stay as they are, because kernels read them in place.
    """
    constants: dict[str, Array] = {}
    casts: list[Node] = []
    overflowed = 0
    taken = {*graph.constants, *(name for node in graph.walk() for name in node.outputs)}
    kept = {v.name for v in graph.outputs}
    kept.update(name for node in graph.walk() if node.op in TABLES for name in node.inputs)
    for name, value in graph.constants.items():
        if value.dtype != np.float32 or value.size < SMALLEST or name in kept:
            constants[name] = value
            continue
        half = _half(value)
        if lossless and (value.size < LOSSLESS_FROM or half is None or (half != value).any()):
            constants[name] = value
            continue
        if half is None:
            overflowed += 1
            constants[name] = value
            continue
        stored = _unused(f"{name}.float16", taken)
        constants[stored] = half
        casts.append(Node("Cast", (stored,), (name,), {"to": int(onnx.TensorProto.FLOAT)}, f"{name}.float32"))
    return Halved(graph.replace(nodes=(*casts, *graph.nodes), constants=constants), len(casts), overflowed)


def _half(value: Array) -> Array | None:
    """float16, or None when a finite value would become infinite."""
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    return half if bool((np.isfinite(half) == np.isfinite(value)).all()) else None


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def pack_narrow(graph: Graph) -> Graph:
    """Pack 4-bit and 2-bit integers that only DequantizeLinear and integer products read, two per byte, also in
    subgraphs.

    NumPy has no such types: a device would need the package ml_dtypes to read them, and would use one byte for each.
    Each becomes uint8 followed by an Unpack4, which gives int8 or uint8; DequantizeLinear gives the same result.
    """
    nodes = tuple(node.replace(attrs={k: _packed_inside(v) for k, v in node.attrs.items()}) for node in graph.nodes)
    graph = graph.replace(nodes=nodes)
    packable = _only_dequantised(graph)
    constants = dict(graph.constants)
    taken = {*constants, *(name for node in graph.walk() for name in node.outputs)}
    unpacks: list[Node] = []
    for name in packable:
        value = constants.pop(name)
        stored = _unused(f"{name}.packed", taken)
        constants[stored] = pack4(value)
        attrs: dict[str, Attr] = {"shape": value.shape, "signed": int(value.dtype.name.startswith("int"))}
        unpacks.append(Node("Unpack4", (stored,), (name,), attrs, f"{name}.unpacked"))
    return graph.replace(nodes=(*unpacks, *nodes), constants=constants)


def _packed_inside(attr: Attr) -> Attr:
    return pack_narrow(attr) if isinstance(attr, Graph) else attr


_BY_WEIGHTS = having("accumulates", "quantised")
"""Operators whose fourth operand, the weights, may be unpacked 8-bit integers as well as narrow ones."""


def _only_dequantised(graph: Graph) -> list[str]:
    """Narrow constants of this graph that are read by DequantizeLinear alone, each with all the node's narrow operands
    (its values and its zero points change their type together), or as the weights of an integer product."""
    narrow = {name for name, value in graph.constants.items() if value.dtype.name in NARROW_INTS}
    other = {name for node in graph.nodes for name in node.captures} | {v.name for v in (*graph.inputs, *graph.outputs)}
    pairs: list[set[str]] = []
    for node in graph.nodes:
        if node.op == "DequantizeLinear":
            pairs.append({name for name in (node.inputs[0], *node.inputs[2:]) if name})
        elif node.op in _BY_WEIGHTS:
            pairs.append({node.inputs[3]})
            other.update((*node.inputs[:3], *node.inputs[4:]))
        else:
            other.update(node.inputs)
    while True:
        kept = narrow - other
        mixed = [pair for pair in pairs if pair & kept and not pair <= kept]
        if not mixed:
            return [name for name in graph.constants if name in kept]
        other.update(*mixed)
