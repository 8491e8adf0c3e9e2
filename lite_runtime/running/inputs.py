"""Validates the inputs that callers pass to a signature, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Value, dtype_name

__all__ = ["Loaded", "check_inputs"]

Loaded = tuple[Callable[[], Mapping[str, Array]], str | None]
"""A function that creates the state as loaded, and its name among cached programs (None if it has none)."""


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as arrays in native byte order, checked against the graph's inputs."""
    names = [v.name for v in graph.inputs]
    if set(inputs) != set(names):
        missing, unknown = sorted(set(names) - set(inputs)), sorted(set(inputs) - set(names))
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        raise InputError(f"inputs: {'; '.join(parts)}; this signature takes {', '.join(map(_describe, graph.inputs))}")
    sizes: dict[str, int] = {}
    return {v.name: _check(v, inputs[v.name], sizes) for v in graph.inputs}


def _describe(value: Value) -> str:
    shape = "any rank" if value.shape is None else ", ".join("?" if d is None else str(d) for d in value.shape)
    return f"{value.name}: {value.dtype}[{shape}]"


def _check(value: Value, given: Any, sizes: dict[str, int]) -> Any:
    if value.kind != "tensor":
        return given
    array = np.asarray(given)
    if not array.flags.aligned or not array.dtype.isnative:
        array = np.require(array, array.dtype.newbyteorder("="), "A")
    got = dtype_name(array.dtype) if array.dtype.kind in "biufcOUSTV" else str(array.dtype)
    if got != value.dtype:
        raise InputError(f"input {_describe(value)}: got dtype {got}; convert it with .astype('{value.dtype}')")
    if value.dtype == "string":
        array = array.astype(object)
    if value.shape is None:
        return array
    if array.ndim != len(value.shape):
        raise InputError(f"input {_describe(value)}: expected rank {len(value.shape)}, got shape {list(array.shape)}")
    for want, size in zip(value.shape, array.shape, strict=True):
        fixed = sizes.setdefault(want, size) if isinstance(want, str) else want
        if fixed is not None and fixed != size:
            because = f" ({want} is {fixed} in an earlier input)" if isinstance(want, str) else ""
            raise InputError(f"input {_describe(value)}: got shape {list(array.shape)}{because}")
    return array
