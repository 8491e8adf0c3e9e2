"""LeNet-5."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["lenet5"]


def lenet5(
    input_shape: tuple[int, int, int] = (1, 32, 32), classes: int = 10, seed: int = 0, *, pads: int = 0,
    filters: tuple[int, int] = (6, 16), hidden: tuple[int, int] = (120, 84),
) -> ir.Model:  # fmt: skip
    """LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998) as it is usually built:
    `x` [batch, C, H, W] -> `logits` [batch, classes]; 61,706 parameters.

    Two 5x5 convolutions with tanh, each with an average pool of 2x2, then dense layers. Every filter of the second
    reads all of the first's (in the paper a part of them), and classes are logits instead of distances. `pads`: zeros
    on each side of the first convolution, 2 for images of 28x28.
    """
    b = Builder("lenet5", seed)
    y = b.input("x", (BATCH, *input_shape))
    for i, count in enumerate(filters):
        y = b.op("Tanh", b.conv(y, count, 5, pads=0 if i else pads, bias=True, name=f"conv{i + 1}"))
        y = b.pool(y, 2, op="AveragePool", name=f"pool{i + 1}")
    y = b.flatten(y)
    for i, units in enumerate(hidden):
        y = b.op("Tanh", b.dense(y, units, name=f"dense{i + 1}"))
    return b.model(logits=b.dense(y, classes, name="head"))
