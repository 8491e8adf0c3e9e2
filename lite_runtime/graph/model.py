"""The lite graph: the contents of a bundle's manifest and the input of the planner. Frozen data with look-ups only.

Operators have ONNX names and ONNX semantics (opset `OPSET`, `ai.onnx` and `ai.onnx.ml`), extended by a few attributes
and by operators of our own; ARCHITECTURE.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import Frozen, NamedTuple

__all__ = [
    "DTYPES",
    "OPSET",
    "Array",
    "Attr",
    "Dim",
    "Graph",
    "Node",
    "Spec",
    "StateUse",
    "Value",
    "dtype_name",
    "itemsize",
    "numpy_dtype",
    "spec_of",
]

OPSET = 26

Array: TypeAlias = np.ndarray
Dim: TypeAlias = int | str | None
"""A known size, the name of a symbolic size, or None for unknown."""

_NUMPY = ("bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128").split()
_ML_DTYPES = {
    "bfloat16": "bfloat16",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
    "int4": "int4",
    "uint4": "uint4",
    "int2": "int2",
    "uint2": "uint2",
}
DTYPES: tuple[str, ...] = (*_NUMPY, *_ML_DTYPES, "string")
"""Every element type of a lite graph. The narrow ones need `ml_dtypes`; `string` is stored as NumPy's object dtype."""


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype that stores elements of `name` (one of `DTYPES`)."""
    if name in _NUMPY:
        return np.dtype(name)
    if name == "string":
        return np.dtype(object)
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise MsedgeError(f"dtype {name} needs the package ml_dtypes: pip install ml_dtypes") from None
        narrow: np.dtype = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return narrow
    raise MsedgeError(f"expected a dtype of {', '.join(DTYPES)}, got {name!r}")


@cache
def dtype_name(dtype: np.dtype) -> str:
    """The lite name of a NumPy dtype; the inverse of `numpy_dtype`."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OUST":
        return "string"
    if dtype.name in _NUMPY:
        return dtype.name
    for ours, theirs in _ML_DTYPES.items():
        if dtype.name == theirs:
            return ours
    raise MsedgeError(f"no lite dtype stores NumPy's {dtype}")


def itemsize(name: str) -> int:
    """Bytes of one element in memory."""
    return numpy_dtype(name).itemsize


class Spec(NamedTuple):
    """The concrete type of a tensor, known when a program is planned."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory if dense and row-major."""
        return self.size * itemsize(self.dtype)


def spec_of(array: Any) -> Spec | None:
    """The type of a run-time value; None for sequences, optionals and strings, which are stored outside the arena."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OUST":
        return None
    return Spec(dtype_name(array.dtype), array.shape)


class Value(NamedTuple):
    """A typed graph input or output. `shape` None: rank unknown. `kind` is "tensor", "sequence" or "optional"."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None = None
    kind: str = "tensor"


class StateUse(NamedTuple):
    """Which inputs and outputs of a signature's graph are state: kept between runs and hidden from the caller."""

    reads: Mapping[str, str]
    """Name of the graph's input -> name of the state it reads."""
    writes: Mapping[str, str]
    """Name of the graph's output -> name of the state that it replaces after a run."""

    def seen(self, graph: Graph) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The graph's inputs and outputs that are not state: those that a caller gives and receives."""
        inputs = tuple(value for value in graph.inputs if value.name not in self.reads)
        return inputs, tuple(value for value in graph.outputs if value.name not in self.writes)


class Node(Frozen):
    """One operator. The input name "" means that an optional input is left out; likewise for outputs."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = MappingProxyType({})
    name: str = ""

    @cached_property
    def captures(self) -> tuple[str, ...]:
        """Names that its subgraphs use from enclosing graphs, in order of first use."""
        seen: dict[str, None] = {}
        for attr in self.attrs.values():
            if isinstance(attr, Graph):
                seen.update(dict.fromkeys(attr.free_names))
        return tuple(seen)

    @property
    def where(self) -> str:
        """How errors name this node."""
        return f"{self.op} {self.name!r}" if self.name else f"{self.op} giving {', '.join(self.outputs)!r}"


class Graph(Frozen):
    """Nodes in topological order over named values; `constants` are arrays, usually views of a mapped file."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    name: str = ""

    @cached_property
    def free_names(self) -> tuple[str, ...]:
        """Names used but not defined here: a subgraph captures them from the enclosing graph."""
        known = {v.name for v in self.inputs} | set(self.constants)
        free: dict[str, None] = {}
        for node in self.nodes:
            free.update((name, None) for name in (*node.inputs, *node.captures) if name and name not in known)
            known.update(node.outputs)
        free.update((v.name, None) for v in self.outputs if v.name not in known)
        return tuple(free)

    def walk(self) -> Iterator[Node]:
        """Every node, including those of subgraphs."""
        for node in self.nodes:
            yield node
            for attr in node.attrs.values():
                if isinstance(attr, Graph):
                    yield from attr.walk()


Attr: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Array | Graph
