"""Products whose right operand is selected for each row: one batch for several owners."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.reference.activation import activate
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__: list[str] = []


@define("GroupedMatMul")
def _grouped_matmul(
    x: Array,
    table: Array,
    slots: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    /,
    activation: str = "",
    **parameters: Any,
) -> Array:
    """act(x @ table[slot] + bias[slot] + R): x float32[..., K] with its leading axes merged into rows; table float32
    [D, K, N]; slots int64[G], one for every (rows / G) adjacent rows; bias float32[D, N]; R with the result's shape.
    """
    require(x.ndim >= 1 and table.ndim == 3, f"expected x[..., K] and a table [D, K, N], got {x.shape}, {table.shape}")
    require(x.shape[-1] == table.shape[1], f"expected inner sizes that agree, got {x.shape} and {table.shape}")
    require(slots.ndim == 1 and slots.dtype == np.int64, f"expected slots int64[G], got {slots.dtype}{slots.shape}")
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    fits = len(rows) % len(slots) == 0 if len(slots) else not len(rows)
    require(fits, f"expected rows in {len(slots)} equal groups, got {len(rows)}")
    if ((slots < 0) | (slots >= len(table))).any():
        raise InputError(f"expected slots of 0 to {len(table) - 1}, got {slots.min()} to {slots.max()}")
    each = np.repeat(slots, len(rows) // max(len(slots), 1))
    y = np.matmul(rows[:, None], table[each])[:, 0]
    if bias is not None:
        require(bias.shape == (len(table), table.shape[2]), f"expected a bias [D, N], got {bias.shape}")
        y = y + bias[each]
    y = y.reshape(*x.shape[:-1], table.shape[2])
    if residual is not None:
        require(residual.shape == y.shape, f"expected R of shape {y.shape}, got {residual.shape}")
        y = y + residual
    return activate(y, activation, **parameters)
