"""Low-rank adapters that are chosen for each row (Hu et al., 2021, "LoRA")."""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define

__all__: list[str] = []


@define("LoraMatMul")
def _lora_matmul(
    x: Array, base: Array, adapters: Array, adapter_rows: Array, /, *, K: int, N: int, rank: int, offset: int
) -> Array:
    """base + (x @ A) @ B for each row of x (rows, K) and base (rows, N), with the matrices of its adapter.

    adapter_rows (rows): rows of adapters (slots, size); negative: none, the result is base. A is stored transposed,
    (rank, K), from element `offset` of an adapter on, and B (rank, N) behind it, multiplied by the adapter's factor.
    Raises InputError for an adapter that does not exist.
    """
    if (adapter_rows >= len(adapters)).any():
        raise InputError(f"LoraMatMul: expected adapters from -1 to {len(adapters) - 1}, got {adapter_rows.max()}")
    y = base.copy()
    middle, end = offset + rank * K, offset + rank * (K + N)
    for slot in set(adapter_rows[adapter_rows >= 0].tolist()):
        rows = adapter_rows == slot
        a, b = adapters[slot, offset:middle].reshape(rank, K), adapters[slot, middle:end].reshape(rank, N)
        y[rows] += (x[rows] @ a.T) @ b
    return np.asarray(y, np.float32)
