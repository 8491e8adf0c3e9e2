"""Every use of JAX that has moved between minor releases; written for 0.10. Other modules keep to its public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import numpy as np

__all__ = ["canonical_dtype", "everywhere", "is_traced", "shared_out", "sums_of_all"]


def is_traced(value: Any) -> bool:
    """True where `value` is a placeholder inside a transformation, so that its elements cannot be read."""
    return isinstance(value, jax.core.Tracer)


def canonical_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype JAX computes in for `dtype`: 64-bit types become 32-bit ones unless `jax_enable_x64` is set."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


_SPEC: Any = jax.sharding.PartitionSpec


def everywhere(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    """Where a value lies that every device of `mesh` holds whole."""
    return jax.sharding.NamedSharding(mesh, _SPEC())


def shared_out(function: Callable[[Any, Any], tuple[Any, Any]], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """`function(common, shared) -> (common, shared)` on every device of `mesh`, a trace of which sees its own part of
    the leading axes of what is shared."""
    specs = _SPEC(), _SPEC(mesh.axis_names)
    run: Callable[..., Any] = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    return run


def sums_of_all(values: Any, mesh: jax.sharding.Mesh) -> Any:
    """Inside `shared_out`: the sum over the devices."""
    psum: Any = jax.lax.psum
    return psum(values, mesh.axis_names)
