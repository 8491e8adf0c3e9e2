"""TC-ResNet."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["tc_resnet"]


def tc_resnet(
    input_shape: tuple[int, int, int] = (40, 1, 98), classes: int = 12, seed: int = 0, *, width: float = 1.0,
    filters: tuple[int, ...] = (16, 24, 32, 48), repeats: int = 1, kernel: int = 9, dropout: float = 0.5,
) -> ir.Model:  # fmt: skip
    """TC-ResNet8 (Choi et al., "Temporal Convolution for Real-time Keyword Spotting on Mobile Devices", 2019): `x`
    [batch, MFCCs, 1, frames], the coefficients as channels, -> `logits` [batch, classes].

    A convolution over 3 frames, residual blocks of two convolutions over `kernel` frames (`repeats` of them for each
    width, the first of stride 2), average pool, dense; 65,148 trained parameters (with running statistics the paper's
    66 K). TC-ResNet14-1.5 is `repeats` 2 and `width` 1.5.
    """
    b = Builder("tc_resnet", seed)
    first, *rest = (int(count * width) for count in filters)
    y = b.conv(b.input("x", (BATCH, *input_shape)), first, (1, 3), name="stem")
    for i, count in enumerate(rest):
        for j in range(repeats):
            y = _block(b, y, count, kernel, 1 if j else 2, f"block{i}.{j}")
    y = b.dropout(b.global_average_pool(y), dropout, name="dropout")
    return b.model(logits=b.dense(y, classes, name="head"))


def _block(b: Builder, x: ir.Value, filters: int, kernel: int, stride: int, name: str) -> ir.Value:
    y = b.conv_bn_relu(x, filters, (1, kernel), stride=(1, stride), name=f"{name}.first")
    y = b.batch_norm(b.conv(y, filters, (1, kernel), name=f"{name}.second.conv"), name=f"{name}.second.bn")
    if stride != 1 or dims(x)[1] != filters:
        x = b.conv_bn_relu(x, filters, 1, stride=(1, stride), name=f"{name}.shortcut")
    return b.relu(b.add(x, y, name=f"{name}.add"), name=f"{name}.relu")
