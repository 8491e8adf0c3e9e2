"""All lowerings, one file per family. Importing this package fills the table."""

from __future__ import annotations

from cloud.engine.lowering import (
    activation,
    attention,
    control,
    convolution,
    elementwise,
    indexing,
    integers,
    loss,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    sequence,
    signal,
)
from cloud.engine.lowering.registry import LOWERINGS, Context, Program, Step, Tensor

__all__ = [
    "LOWERINGS",
    "Context",
    "Program",
    "Step",
    "Tensor",
    "activation",
    "attention",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "integers",
    "loss",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "resize",
    "sequence",
    "signal",
    "supported_ops",
]


def supported_ops() -> tuple[str, ...]:
    """Names of all operators that the engine supports, sorted."""
    return tuple(sorted(LOWERINGS))
