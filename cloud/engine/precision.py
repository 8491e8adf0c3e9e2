"""The types in which operators compute when a model runs in bfloat16 or float16.

The tables list the exceptions. WIDE operators compute in float32: they take statistics, sums of many terms or
exponentials, for which a narrow type lacks precision or range. KEPT operators get their operands unchanged: the
operands are settings, or the operator itself defines its result type. All others compute in the narrow type. Every
operator gets its operands in its own type, so results need no conversion: a wide result is narrowed where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lite_runtime.operators import having

__all__ = ["KEPT", "NARROW", "WIDE", "as_computed", "narrowest"]

WIDE = having("wide")
KEPT = having("shape_only") | {"Cast", "CastLike", "ConstantOfShape", "Dropout", "Identity", "Range", "Resize"}

NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16))
"""Types in which a float32 model can run."""

_FLOATS = (np.dtype(np.float32), *NARROW)


def narrowest(values: Mapping[str, Any]) -> np.dtype[Any] | None:
    """The narrow float type among `values`, None if there is none."""
    found = {np.dtype(v.dtype) for v in values.values() if hasattr(v, "dtype") and v.dtype in NARROW}
    return min(found, key=lambda dtype: dtype.name, default=None)


def as_computed(op: str, value: Any, narrow: np.dtype[Any]) -> Any:
    """An operand converted for the operator `op` in a run with the type `narrow`."""
    if op in KEPT:
        return value
    wanted = _FLOATS[0] if op in WIDE else narrow
    if isinstance(value, list):
        return [as_computed(op, one, narrow) for one in value]
    if not isinstance(value, (np.ndarray, jax.Array)) or value.dtype == wanted or value.dtype not in _FLOATS:
        return value
    return value.astype(wanted)
