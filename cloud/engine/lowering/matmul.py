"""Matrix products."""

from __future__ import annotations

import jax.numpy as jnp

from cloud.engine.lowering.registry import Tensor, lowering

__all__: list[str] = []


@lowering("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return jnp.matmul(a, b)


@lowering("Gemm")
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None,
    *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    y = jnp.matmul(a.T if transA else a, b.T if transB else b)
    if alpha != 1.0:
        y = (alpha * y).astype(y.dtype)
    if c is None or beta == 0.0:
        return y
    return y + (c if beta == 1.0 else (beta * c).astype(c.dtype))


@lowering("Einsum")
def einsum(*operands: Tensor, equation: str) -> Tensor:
    return jnp.einsum(equation.replace(" ", ""), *operands)
