"""What operators compute in when a model is run in bfloat16 or float16.

A row an operator that is not like the rest. WIDE ones compute in float32: they take statistics, sums of many terms or
exponentials, whose errors or range a narrow type does not hold. KEPT ones take their operands as they come: operands
there are settings, or the operator says itself what type it gives. All others compute in the narrow type. Every
operator is given its operands in its own type, so results need no change: what is wide becomes narrow where it is read.
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
KEPT = frozenset({"Cast", "CastLike", "ConstantOfShape", "Dropout", "Identity", "Range", "Resize", "Shape", "Size"})

NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16))
"""Types a float32 model may be run in."""

_FLOATS = (np.dtype(np.float32), *NARROW)


def narrowest(values: Mapping[str, Any]) -> np.dtype[Any] | None:
    """The narrow float type among `values`, None where there is none."""
    found = {np.dtype(v.dtype) for v in values.values() if hasattr(v, "dtype") and v.dtype in NARROW}
    return min(found, key=lambda dtype: dtype.name, default=None)


def as_computed(op: str, value: Any, narrow: np.dtype[Any]) -> Any:
    """An operand as the operator `op` takes it in a run that is `narrow`."""
    if op in KEPT:
        return value
    wanted = _FLOATS[0] if op in WIDE else narrow
    if isinstance(value, list):
        return [as_computed(op, one, narrow) for one in value]
    if not isinstance(value, (np.ndarray, jax.Array)) or value.dtype == wanted or value.dtype not in _FLOATS:
        return value
    return value.astype(wanted)
