"""Integer matrix products and convolutions, in int32, without gradients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from cloud.engine.lowering.convolution import conv
from cloud.engine.lowering.registry import Tensor, lowering

__all__: list[str] = []


def _centred(x: Tensor, zero: Tensor | None) -> Tensor:
    x = jnp.asarray(x).astype(np.int32)
    return x if zero is None else x - jnp.asarray(zero).astype(np.int32)


@lowering("MatMulInteger")
def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    """Zero points: one for all, or one per row of a and one per column of b."""
    if a_zero is not None and a_zero.ndim == 1 and a.ndim > 1:
        a_zero = jnp.expand_dims(a_zero, -1)
    return jnp.matmul(_centred(a, a_zero), _centred(b, b_zero))


@lowering("ConvInteger")
def conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, **window: Any
) -> Tensor:
    """Zero points: one for all; for w also one per output channel. Padding has the value of x's zero point."""
    if w_zero is not None:
        w_zero = jnp.reshape(w_zero, (-1,) + (1,) * (w.ndim - 1))
    return conv(_centred(x, x_zero), _centred(w, w_zero), **window)
