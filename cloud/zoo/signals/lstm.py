"""Recurrent networks with long short-term memory."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["lstm"]


def lstm(
    input_shape: tuple[int, int, int] = (9, 1, 128), classes: int = 6, seed: int = 0, *, hidden: int = 64,
    layers: int = 1, dropout: float = 0.0,
) -> ir.Model:  # fmt: skip
    """LSTM (Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997; with the forget gate of Gers et al., 2000) over
    time: `x` [batch, channels, 1, steps] -> `logits` [batch, classes] of the state after the last step;
    19,590 parameters.

    `layers` of `hidden` units, one on the other. Forget gates begin with bias 1 (Jozefowicz et al., 2015).
    """
    b = Builder("lstm", seed)
    x = b.input("x", (BATCH, *input_shape))
    channels, rows, steps = input_shape
    y = b.transpose(b.reshape(x, (channels * rows, steps)), (2, 0, 1), name="steps")
    axis = b.constant("direction", [1])
    for i in range(layers):
        y = _layer(b, y, hidden, axis, f"layer{i}")
        y = b.dropout(y, dropout if i + 1 < layers else 0, name=f"layer{i}.dropout")
    last = b.op("Gather", y, b.constant("last", -1), axis=0, name="step", shape=(BATCH, hidden))
    return b.model(logits=b.dense(last, classes, name="head"))


def _layer(b: Builder, x: ir.Value, hidden: int, axis: ir.Value, name: str) -> ir.Value:
    """[steps, batch, features] -> [steps, batch, hidden]"""
    steps, batch, features = dims(x)
    bias = np.zeros((1, 8, hidden), np.float32)
    bias[:, 2] = 1  # the gates of ONNX: input, output, forget, cell
    weights = [
        b.normal(f"{name}.input.weight", (1, 4 * hidden, int(features)), int(features) ** -0.5),
        b.normal(f"{name}.state.weight", (1, 4 * hidden, hidden), hidden**-0.5),
        b.weight(f"{name}.bias", bias.reshape(1, -1)),
    ]
    y = b.op("LSTM", x, *weights, name=name, hidden_size=hidden, shape=(steps, 1, batch, hidden))
    return b.op("Squeeze", y, axis, name=f"{name}.states", shape=(steps, batch, hidden))
