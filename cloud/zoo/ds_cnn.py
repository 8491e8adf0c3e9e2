"""Depthwise-separable networks."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["ds_cnn"]


def ds_cnn(
    input_shape: tuple[int, int, int] = (1, 49, 10), classes: int = 12, seed: int = 0,
    *, filters: int = 64, blocks: int = 4, dropout: tuple[float, float] = (0.2, 0.4),
) -> ir.Model:  # fmt: skip
    """MLPerf Tiny's keyword spotter (Zhang et al., 2017, DS-CNN-S): `x` [batch, 1, frames, MFCCs] -> `logits`;
    23,180 parameters.

    A 10x4 convolution of stride 2, `blocks` of depthwise 3x3 and pointwise 1x1, each with batch norm and ReLU,
    average pool, dense. `dropout`: the rates after the first convolution and before the pool.
    """
    b = Builder("ds_cnn", seed)
    x = b.input("x", (BATCH, *input_shape))
    y = b.dropout(b.conv_bn_relu(x, filters, (10, 4), stride=2, name="stem"), dropout[0], name="stem.dropout")
    for i in range(blocks):
        y = b.depthwise(y, 3, name=f"block{i}.depthwise.conv")
        y = b.relu(b.batch_norm(y, name=f"block{i}.depthwise.bn"), name=f"block{i}.depthwise.relu")
        y = b.conv_bn_relu(y, filters, 1, name=f"block{i}.pointwise")
    pooled = b.global_average_pool(b.dropout(y, dropout[1], name="head.dropout"))
    return b.model(logits=b.dense(pooled, classes, name="head"))
