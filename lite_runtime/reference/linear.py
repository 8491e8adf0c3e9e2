"""Matrix products and operators based on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.activation import activate
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, require

__all__ = ["matmul"]


def matmul(a: Array, b: Array) -> Array:
    """NumPy's matrix product, with validated operand sizes."""
    require(a.ndim > 0 and b.ndim > 0, "expected operands of rank 1 at least, got a scalar")
    inner = b.shape[0] if b.ndim == 1 else b.shape[-2]
    require(a.shape[-1] == inner, f"expected equal inner sizes, got {a.shape} @ {b.shape}")
    return np.asarray(np.matmul(a, b))


def _turned(x: Array, swap: int) -> Array:
    require(not swap or x.ndim >= 2, f"expected at least a matrix to transpose, got shape {x.shape}")
    return np.swapaxes(x, -1, -2) if swap else x


@define("MatMul")
@in_float32
def _matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    /,
    transA: int = 0,
    transB: int = 0,
    activation: str = "",
    **parameters: Any,
) -> Array:
    """act(A @ B + bias + R); bias broadcasts to the product, R has its shape."""
    y = matmul(_turned(a, transA), _turned(b, transB))
    for name, term in (("bias", bias), ("R", residual)):
        if term is not None:
            fits = np.broadcast_shapes(term.shape, y.shape) == y.shape
            require(fits, f"expected {name} that broadcasts to {y.shape}, got shape {term.shape}")
            y = y + term
    return activate(y, activation, **parameters)


@define("Gemm")
@in_float32
def _gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    /,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    require(a.ndim == 2 and b.ndim == 2, f"expected two matrices, got shapes {a.shape} and {b.shape}")
    y = matmul(_turned(a, transA), _turned(b, transB))
    y = (y * alpha).astype(a.dtype) if alpha != 1 else y
    if c is None:
        return y
    require(np.broadcast_shapes(c.shape, y.shape) == y.shape, f"expected C that broadcasts to {y.shape}, got {c.shape}")
    return np.asarray((y + (c * beta).astype(a.dtype)).astype(a.dtype))


@define("Einsum")
@in_float32
def _einsum(*inputs: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation.replace(" ", ""), *inputs, optimize=len(inputs) > 2)).astype(inputs[0].dtype)


@define("Det")
@in_float32
def _det(x: Array, /) -> Array:
    require(x.ndim >= 2 and x.shape[-1] == x.shape[-2], f"expected square matrices, got shape {x.shape}")
    return np.asarray(np.linalg.det(x)).astype(x.dtype)


@define("Inverse")
@in_float32
def _inverse(x: Array, /) -> Array:
    """Of each square matrix; of one that has none, numbers that are not finite."""
    require(x.ndim >= 2 and x.shape[-1] == x.shape[-2], f"expected square matrices, got shape {x.shape}")
    singular = np.linalg.det(x) == 0 if x.size else np.zeros(x.shape[:-2], bool)
    held = np.where(singular[..., None, None], np.eye(x.shape[-1], dtype=x.dtype), x)
    return np.where(singular[..., None, None], np.nan, np.linalg.inv(held)).astype(x.dtype)
