"""Working memory of a run of a bundle's signature."""

from __future__ import annotations

import numpy as np

from lite_runtime import load
from lite_runtime.graph import Value, numpy_dtype
from lite_runtime.native import build

__all__ = ["sizes", "working_memory"]


def sizes(value: Value, batch: int) -> tuple[int, ...]:
    """The shape with every open dimension being `batch`."""
    return tuple(d if isinstance(d, int) else batch for d in value.shape or ())


def working_memory(data: bytes, signature: str, batch: int) -> int | None:
    """Bytes of the arena that this machine's kernels need for zeros of that batch; None where it has no kernels."""
    if not build.available():
        return None
    model = load(data)
    rows = {v.name: np.zeros(sizes(v, batch), numpy_dtype(v.dtype)) for v in model.inputs(signature)}
    return model.cost(rows, signature).arena_bytes
