"""Temporal convolutional networks."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["tcn"]


def tcn(
    input_shape: tuple[int, int, int] = (1, 1, 784), classes: int = 10, seed: int = 0, *, filters: int = 25,
    levels: int = 8, kernel: int = 7, dropout: float = 0.05, norm: bool = False, pooled: bool = False,
) -> ir.Model:  # fmt: skip
    """TCN (Bai, Kolter & Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence
    Modeling", 2018): `x` [batch, channels, 1, steps] -> `logits` [batch, classes] of the last step.

    `levels` residual blocks of two causal convolutions over `kernel` steps that lie 1, 2, 4, ... apart, with ReLU and
    dropout. A step sees 2 (kernel - 1) (2^levels - 1) steps before it. The defaults are the paper's for pixels of MNIST
    in order (66,510 parameters; the paper says about 70 K). Its weight normalisation, a help in training alone, is left
    out.

    Departures for small models and short trainings: a batch normalisation behind every convolution of a block (`norm`),
    and the mean of all steps instead of the last one (`pooled`), for windows that show the same thing throughout.
    """
    b = Builder("tcn", seed)
    y = b.input("x", (BATCH, *input_shape))
    for level in range(levels):
        y = _block(b, y, filters, kernel, 1 << level, dropout, norm, f"level{level}")
    if pooled:
        y = b.global_average_pool(y)
    else:
        y = b.flatten(b.op("Gather", y, b.constant("last", -1), axis=3, name="step", shape=dims(y)[:3]))
    return b.model(logits=b.dense(y, classes, name="head"))


def _block(
    b: Builder, x: ir.Value, filters: int, kernel: int, apart: int, dropout: float, norm: bool, name: str
) -> ir.Value:  # fmt: skip
    before, y = (kernel - 1) * apart, x
    for part in ("first", "second"):
        y = b.conv(
            y, filters, (1, kernel), dilation=(1, apart), pads=(0, before, 0, 0), bias=not norm,
            name=f"{name}.{part}",
        )  # fmt: skip
        y = b.batch_norm(y, name=f"{name}.{part}.norm") if norm else y
        y = b.dropout(b.relu(y), dropout, name=f"{name}.{part}.dropout")
    if dims(x)[1] != filters:
        x = b.conv(x, filters, 1, bias=True, name=f"{name}.shortcut")
    return b.relu(b.add(x, y, name=f"{name}.add"))
