"""The lite graph: its data structures, the schema of its operators, and the verifier for graphs read from files."""

from __future__ import annotations

from lite_runtime.graph.model import (
    DTYPES,
    OPSET,
    Array,
    Attr,
    Dim,
    Graph,
    Node,
    Spec,
    StateUse,
    Value,
    dtype_name,
    itemsize,
    numpy_dtype,
    spec_of,
)

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
