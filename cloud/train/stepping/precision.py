"""Mixed precision: a step's dtype, while weights, optimiser and sums stay float32 (Micikevicius et al., "Mixed
Precision Training", ICLR 2018).

Weights and inputs are cast to the narrow type where they enter the model, outputs back to float32 where they leave it;
in between the model decides (ONNX operators that compute statistics or exponentials use float32, see
`cloud.engine.precision`). float16 has such a small range that gradients vanish: the loss is multiplied by a scale, and
gradients are divided by it. A step whose gradients overflow is skipped and halves the scale; `GROW_AFTER` finite steps
in a row double it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "GROW_AFTER",
    "PRECISIONS",
    "LossScale",
    "all_finite",
    "first_scale",
    "is_least",
    "narrowed",
    "next_scale",
    "widened",
]

PRECISIONS: Mapping[str, Any] = MappingProxyType(
    {"float32": np.dtype(np.float32), "bfloat16": np.dtype(jnp.bfloat16), "float16": np.dtype(np.float16)}
)
GROW_AFTER = 2000
_FIRST, _LEAST, _MOST = 2.0**15, 1.0, 2.0**24


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossScale:
    """`value` () float32, and the number of consecutive `good` steps, () int32."""

    value: Any
    good: Any


def first_scale() -> LossScale:
    """The initial scale for float16."""
    return LossScale(jnp.full((), _FIRST, jnp.float32), jnp.zeros((), jnp.int32))


def next_scale(scale: LossScale, finite: Any) -> LossScale:
    """The scale after a step whose gradients were `finite` () bool, or not."""
    good = jnp.where(finite, scale.good + 1, 0)
    grow = good >= GROW_AFTER
    value = jnp.where(finite, jnp.where(grow, scale.value * 2, scale.value), scale.value / 2)
    return LossScale(jnp.clip(value, _LEAST, _MOST), jnp.where(grow, 0, good))


def is_least(scale: LossScale) -> Any:
    """() bool: the scale is already the smallest, so an overflow is not caused by it."""
    return scale.value <= _LEAST


def narrowed(tree: Any, dtype: Any) -> Any:
    """`tree` with its float32 arrays as `dtype`."""
    return _cast(tree, lambda d: d == np.float32, dtype)


def widened(tree: Any) -> Any:
    """`tree` with its narrow float arrays as float32."""
    return _cast(tree, lambda d: jnp.issubdtype(d, np.floating) and d.itemsize < 4, np.float32)


def _cast(tree: Any, which: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if which(jnp.result_type(a)) else a, tree)


def all_finite(tree: Any) -> Any:
    """() bool: whether all values are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
