"""Run one operator natively, by 1 and by 3 workers with every buffer against a guard page, and by reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.running.executor import Executor, Settings
from tests.lite_runtime.ops.one_node import Alike, graph_of

DTYPES = ("bool", "int8", "float16", "int32", "float32", "int64", "complex64", "complex128")
"""One or two element types of every size."""


def some(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    """Random elements in which every byte counts."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtype.startswith("int"):
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True))
    imaginary = 1j * rng.normal(size=shape) if dtype.startswith("complex") else 0
    return np.asarray(rng.normal(size=shape) + imaginary).astype(dtype)


def moves(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    constants: Sequence[int] = (),
    outputs: int = 1,
    reference: bool = False,
    tolerance: float = 0.0,
) -> list[Array]:
    """Native results equal the reference's (bit for bit without a tolerance), whatever the number of workers.

    reference: whether the reference has to compute the node after all.
    """
    graph, fed, wanted = graph_of(op, inputs, attrs or {}, outputs, constants)
    one = Executor(graph, Settings(guard=True))
    for workers, run in ((1, one), (3, Alike(one, Settings(threads=3, guard=True)))):
        results = list(run.run(fed).values())
        ran = [node.op for part in run.parts(fed) for node in part.reference]
        assert bool(ran) == reference, f"{op}: the reference ran {ran}"
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
            if tolerance:
                np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
            else:
                assert got.tobytes() == want.tobytes(), f"{op} by {workers} workers"
    return wanted
