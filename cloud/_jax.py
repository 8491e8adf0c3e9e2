"""Every use of JAX that has moved between minor releases; written for 0.10. Other modules keep to its public API."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import numpy as np

__all__ = ["canonical_dtype", "is_traced"]


def is_traced(value: Any) -> bool:
    """True where `value` is a placeholder inside a transformation, so that its elements cannot be read."""
    return isinstance(value, jax.core.Tracer)


def canonical_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype JAX computes in for `dtype`: 64-bit types become 32-bit ones unless `jax_enable_x64` is set."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
