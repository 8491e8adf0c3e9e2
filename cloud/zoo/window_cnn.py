"""Networks over windows of a signal."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["window_cnn"]


def window_cnn(
    input_shape: tuple[int, int, int] = (9, 1, 128), classes: int = 6, seed: int = 0,
    *, filters: tuple[int, ...] = (32, 64), kernel: int = 9, stride: int = 2, hidden: int = 64,
    dropout: float = 0.0,
) -> ir.Model:  # fmt: skip
    """Channels over time to classes: `x` [batch, channels, 1, steps] -> `logits` [batch, classes].

    Convolutions along time with ReLU, each with an output `stride` times shorter than its input, average pool, a dense
    layer, dropout of rate `dropout`, the dense `head`. No normalisation over the batch: its statistics would differ
    from device to device. The defaults fit windows of inertial sensors (25,000 parameters); spectra over time fit too,
    with one channel per band.
    """
    b = Builder("window_cnn", seed)
    y = b.input("x", (BATCH, *input_shape))
    for i, width in enumerate(filters):
        y = b.relu(b.conv(y, width, (1, kernel), stride=(1, stride), bias=True, name=f"conv{i}"))
    y = b.relu(b.dense(b.global_average_pool(y), hidden, name="dense"))
    return b.model(logits=b.dense(b.dropout(y, dropout, name="dropout"), classes, name="head"))
