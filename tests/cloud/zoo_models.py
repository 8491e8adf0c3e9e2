"""Small variants of the zoo's models, and inputs for them, which several tests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from cloud import zoo

__all__ = ["SMALL", "fed"]

V3 = [(3, 16, 16, True, "Relu", 2), (5, 32, 16, True, "HardSwish", 1)]

SMALL: Mapping[str, Callable[[], ir.Model]] = {
    "lenet5": lambda: zoo.lenet5((1, 28, 28), pads=2),
    "alexnet": lambda: zoo.alexnet((3, 32, 32), 10, stem=(3, 1, 1), width=1 / 16, hidden=32),
    "resnet18": lambda: zoo.resnet18((3, 32, 32), 10, width=4, blocks=(1, 2), small=True),
    "resnet50": lambda: zoo.resnet50((3, 32, 32), 10, width=4, blocks=(1, 1)),
    "mobilenet_v2": lambda: zoo.mobilenet_v2((3, 32, 32), 10, width=0.25, rows=((1, 16, 1, 1), (4, 24, 2, 2)), last=64),
    "mobilenet_v3_small": lambda: zoo.mobilenet_v3_small((3, 32, 32), 10, rows=V3, hidden=32),
    "mobilenet_v3_large": lambda: zoo.mobilenet_v3_large((3, 32, 32), 10, width=0.5, rows=V3[1:], hidden=32),
    "efficientnet_lite": lambda: zoo.efficientnet_lite(
        (3, 32, 32), 10, width=0.5, rows=((3, 1, 16, 1, 1), (5, 4, 24, 2, 2)), stem=8, last=64
    ),
    "unet": lambda: zoo.unet((1, 16, 16), width=4, levels=1),
    "vit": lambda: zoo.vit((1, 28, 28), 10, patch=7, width=32, layers=1, heads=2),
    "yolo": lambda: zoo.yolo((1, 64, 64), 3, width=4, depth=1),
    "yolos": lambda: zoo.yolos((1, 32, 32), 3, patch=8, width=32, layers=1, heads=2, objects=5),
    "yolos spread": lambda: zoo.yolos(
        (1, 32, 32), 3, patch=8, width=32, layers=1, heads=2, objects=5, stem=4, spread=True, dense=True
    ),
    "bert": lambda: zoo.bert(16, 3, vocabulary=50, positions=20, width=32, layers=1),
    "gpt": lambda: zoo.gpt(16, 50, width=32, layers=1, heads=2),
    "t5": lambda: zoo.t5(12, 10, vocabulary=50, width=32, layers=1, heads=2, head_width=8, hidden=32),
    "t5 aligned": lambda: zoo.t5(
        12, 10, vocabulary=50, width=32, layers=1, heads=2, head_width=8, hidden=32, aligned=True
    ),
    "tc_resnet": lambda: zoo.tc_resnet((10, 1, 49), 10, filters=(8, 12, 16)),
    "tcn": lambda: zoo.tcn((1, 1, 64), 10, filters=8, levels=2),
    "tcn norm": lambda: zoo.tcn((3, 1, 48), 5, filters=8, levels=2, kernel=3, norm=True, pooled=True),
    "lstm": lambda: zoo.lstm((3, 1, 20), 5, hidden=16, layers=2),
    "autoencoder": lambda: zoo.autoencoder(64, 4, hidden=(32,)),
    "gcn": lambda: zoo.gcn(9, 3, 4),
    "gcn pooled": lambda: zoo.gcn(9, 3, 4, pooled=True),
    "two_tower": lambda: zoo.two_tower((8, 50), (3, 20), width=16, hidden=(16,), vector=8),
}


def fed(model: ir.Model, rows: int = 3) -> dict[str, np.ndarray]:
    """Inputs by name: normal numbers, and ids with padding behind them."""
    rng, found = np.random.default_rng(0), {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [d if isinstance(d, int) else rows for d in value.shape]
        if value.dtype == ir.DataType.INT32:
            ids = rng.integers(1, 20, shape).astype(np.int32)
            ids[:, shape[1] - shape[1] // 3 :] = 0
            found[str(value.name)] = ids
        else:
            found[str(value.name)] = rng.normal(size=shape).astype(np.float32)
    return found
