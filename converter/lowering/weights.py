"""Weights stored in half precision: float32 constants become float16 followed by a Cast, so kernels see float32
again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx

from lite_runtime.graph import Array, Graph, Node

__all__ = ["Halved", "halve_weights"]

SMALLEST = 64
"""Elements from which storing a constant in half precision pays for its Cast."""


@dataclass(frozen=True)
class Halved:
    """What `halve_weights` did: how many constants it stored in float16, and how many overflowed and stayed float32."""

    graph: Graph
    stored: int
    overflowed: int


def halve_weights(graph: Graph) -> Halved:
    """Store float32 constants of `SMALLEST` or more elements as float16; values beyond float16's range keep float32."""
    constants: dict[str, Array] = {}
    casts: list[Node] = []
    overflowed = 0
    taken = {*graph.constants, *(name for node in graph.walk() for name in node.outputs)}
    kept = {v.name for v in graph.outputs}
    for name, value in graph.constants.items():
        if value.dtype != np.float32 or value.size < SMALLEST or name in kept:
            constants[name] = value
            continue
        half = _half(value)
        if half is None:
            overflowed += 1
            constants[name] = value
            continue
        stored = _unused(f"{name}.float16", taken)
        constants[stored] = half
        casts.append(Node("Cast", (stored,), (name,), {"to": int(onnx.TensorProto.FLOAT)}, f"{name}.float32"))
    return Halved(replace(graph, nodes=(*casts, *graph.nodes), constants=constants), len(casts), overflowed)


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
