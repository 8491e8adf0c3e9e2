"""Convolutions as matrix products.

On a CPU, XLA does not use its fast kernels for a convolution inside a loop: two convolutions along time with their
gradients take 78 ms per step in a `lax.scan` and 1.2 ms as products (batch 32, 9 channels of 128 values; outside a loop
both take 1.2 ms). The simulator runs its steps inside loops.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
from jax import lax

from cloud.engine import EngineFunction
from cloud.engine.lowering.registry import Lowering
from cloud.engine.lowering.spatial import per_axis, window_pads

__all__ = ["as_products"]

Function = TypeVar("Function", bound=EngineFunction)


def as_products(function: Function) -> Function:
    """The same function with ungrouped convolutions computed as matrix products."""
    steps = tuple(
        dataclasses.replace(step, row=_PRODUCT) if step.op == "Conv" and step.attributes.get("group", 1) == 1 else step
        for step in function.program.steps
    )
    return dataclasses.replace(function, program=dataclasses.replace(function.program, steps=steps))


def _conv(
    x: Any, w: Any, b: Any = None,
    *, auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """x [N, C, d...], w [M, C, k...], b [M]: the inputs of every kernel tap, concatenated, times the kernel."""
    rank, extents = x.ndim - 2, w.shape[2:]
    strides, dilations = per_axis(strides, rank), per_axis(dilations, rank)
    padding = window_pads(auto_pad, pads, x.shape[2:], extents, strides, dilations)
    x = jnp.pad(x, [(0, 0), (0, 0), *padding])
    spans = [(k - 1) * d + 1 for k, d in zip(extents, dilations, strict=True)]
    outs = tuple((n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, strides, strict=True))

    def read(tap: Sequence[int]) -> Any:
        begins = [t * d for t, d in zip(tap, dilations, strict=True)]
        ends = [a + (o - 1) * s + 1 for a, o, s in zip(begins, outs, strides, strict=True)]
        return lax.slice(x, (0, 0, *begins), (*x.shape[:2], *ends), (1, 1, *strides)).reshape(*x.shape[:2], -1)

    patches = jnp.stack([read(tap) for tap in itertools.product(*map(range, extents))], 1)  # N taps C positions
    patches = jnp.transpose(patches, (0, 3, 2, 1)).reshape(-1, x.shape[1] * patches.shape[1])
    y = patches @ w.reshape(w.shape[0], -1).T + (0 if b is None else b)
    return jnp.moveaxis(y.reshape(x.shape[0], *outs, -1), -1, 1)


_PRODUCT = Lowering(_conv, wants_context=False)
