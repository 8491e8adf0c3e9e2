"""A golden sample: seeded inputs and the NumPy reference's outputs for them, stored in the bundle as a self-test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from converter.errors import ConvertError
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Graph, Value, numpy_dtype
from lite_runtime.graph.verify import verify_graph
from lite_runtime.running.executor import Executor, Settings
from lite_runtime.running.inputs import check_inputs

__all__ = ["COST_LIMIT", "SIZE_LIMIT", "Sample", "of_text", "sample", "sample_inputs"]

COST_LIMIT = 200_000_000
"""The most multiply-adds of a reference run that takes clearly less than one or two seconds."""
SIZE_LIMIT = 1 << 14
"""The most bytes of inputs and outputs that are stored whatever the model's size."""
SHARE = 32
"""A larger sample may take up to a `SHARE`th of the weights' bytes."""
MEMORY = 1 << 28
"""The most bytes of values that a reference run may keep in memory."""
_SYMBOLIC = 1
_GRID = 32
"""Real numbers are multiples of 1 / _GRID, which compress to one byte each."""


Sample = tuple[dict[str, Array], dict[str, Array]]
"""Inputs and outputs by name."""


def sample(graph: Graph, cost: int) -> tuple[Sample | None, str]:
    """((inputs, outputs), "stored"), or (None, why not). `cost`: estimated multiply-adds of one run.

    Raises ConvertError for an output that has not the declared type.
    """
    if cost > COST_LIMIT:
        return None, f"skipped: a reference run takes about {cost / 1e9:.1f} G multiply-adds"
    if any(v.kind != "tensor" or v.shape is None for v in (*graph.inputs, *graph.outputs)):
        return None, "skipped: an input or output is not a tensor of known rank"
    limit = max(SIZE_LIMIT, sum(a.nbytes for a in graph.constants.values()) // SHARE)
    least = sum(map(_bytes, (*graph.inputs, *graph.outputs)))
    if least > limit:
        return None, f"skipped: inputs and outputs of {least} bytes are more than {limit}"
    return _computed(graph, sample_inputs(graph), limit)


def of_text(graph: Graph, inputs: Mapping[str, Array]) -> tuple[Sample | None, str]:
    """The same of a language model, whose inputs are `golden_text.inputs`."""
    return _computed(graph, inputs, max(SIZE_LIMIT, sum(a.nbytes for a in graph.constants.values()) // SHARE))


def _computed(graph: Graph, inputs: Mapping[str, Array], limit: int) -> tuple[Sample | None, str]:
    """The sample with these inputs, if it has at most `limit` bytes; inputs of zeros take none in a file."""
    given = {name: array.copy() for name, array in inputs.items()}  # caches are changed in place
    try:
        verify_graph(graph)
        executor = Executor(graph, Settings(native=False, limit=MEMORY))
        outputs = executor.run(check_inputs(graph, given))
    except MsedgeError as error:
        return None, f"skipped: this model cannot run on random inputs ({error})"
    for value in graph.outputs:  # operators of which onnx's inference knows nothing may contradict a declaration
        given = outputs[value.name].dtype
        if given != numpy_dtype(value.dtype):
            raise ConvertError(
                f"output {value.name!r} is declared {value.dtype}, but its operator gives {given}; correct the "
                "declaration, or export the model again"
            )
    if any(not _fits(outputs[v.name], v) for v in graph.outputs):
        return None, "skipped: with random inputs the outputs do not have their declared shapes"
    size = sum(a.nbytes for a in (*(a for a in inputs.values() if a.any()), *outputs.values()))
    if size > limit:
        return None, f"skipped: inputs and outputs of {size} bytes are more than {limit}"
    return (dict(inputs), outputs), "stored"


def _fits(array: Any, value: Value) -> bool:
    """Whether an output is a tensor of the shape that its declaration says."""
    declared = value.shape or ()
    return (
        isinstance(array, np.ndarray)
        and array.ndim == len(declared)
        and all(not isinstance(d, int) or d == n for d, n in zip(declared, array.shape, strict=True))
    )


def sample_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random inputs, the same for the same graph; symbolic sizes are 1. Raises ConvertError for inputs too large."""
    needed = sum(map(_bytes, graph.inputs))
    if needed > MEMORY:
        raise ConvertError(f"its inputs have {needed} bytes, more than the {MEMORY} that a sample may take")
    rng = np.random.default_rng(seed)
    return {value.name: _random(value, rng) for value in graph.inputs}


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else _SYMBOLIC for d in value.shape or ())


def _bytes(value: Value) -> int:
    return math.prod(_shape(value)) * numpy_dtype(value.dtype).itemsize


def _random(value: Value, rng: np.random.Generator) -> Array:
    shape, dtype = _shape(value), numpy_dtype(value.dtype)
    if value.dtype == "string":
        words = np.empty(math.prod(shape), object)
        words[:] = [f"text {i}" for i in range(words.size)]
        return words.reshape(shape)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return (np.rint(rng.standard_normal(shape) * _GRID) / _GRID).astype(dtype)
