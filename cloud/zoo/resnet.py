"""Residual networks."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["resnet8"]


def resnet8(
    input_shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, seed: int = 0,
    *, filters: tuple[int, ...] = (16, 32, 64), softmax: bool = False,
) -> ir.Model:  # fmt: skip
    """MLPerf Tiny's image classifier (Banbury et al., 2021): `x` [batch, C, H, W] -> `logits` [batch, classes];
    77,658 parameters.

    A 3x3 convolution, a stack of one residual block for each width of `filters` (all but the first halve the
    resolution and have a 1x1 convolution as shortcut), average pool, dense. Convolutions have no bias: the batch norm
    after each would cancel it. `softmax` appends a softmax and names the output `probabilities`.
    """
    b = Builder("resnet8", seed)
    x = b.input("x", (BATCH, *input_shape))
    y = b.conv_bn_relu(x, filters[0], 3, name="stem")
    for i, width in enumerate(filters):
        y = _block(b, y, width, stride=1 if i == 0 else 2, name=f"stack{i}")
    logits = b.dense(b.global_average_pool(y), classes, name="head")
    return b.model(probabilities=b.op("Softmax", logits, axis=-1)) if softmax else b.model(logits=logits)


def _block(b: Builder, x: ir.Value, width: int, *, stride: int, name: str) -> ir.Value:
    y = b.conv_bn_relu(x, width, 3, stride=stride, name=f"{name}.first")
    y = b.batch_norm(b.conv(y, width, 3, name=f"{name}.second.conv"), name=f"{name}.second.bn")
    if stride != 1:
        x = b.conv(x, width, 1, stride=stride, name=f"{name}.shortcut", bias=True)
    return b.relu(b.add(x, y, name=f"{name}.add"), name=f"{name}.relu")
