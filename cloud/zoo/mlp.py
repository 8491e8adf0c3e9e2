"""Dense networks."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["mlp"]


def mlp(features: int, outputs: int, hidden: Sequence[int] = (), seed: int = 0) -> ir.Model:
    """Dense layers with ReLU between them: `x` [batch, features] -> `logits` [batch, outputs].

    Without `hidden` layers it is softmax regression; the name of the last layer is `head`.
    """
    b = Builder("mlp", seed)
    y = b.input("x", (BATCH, features))
    for i, units in enumerate(hidden):
        y = b.relu(b.dense(y, units, name=f"layer{i}"))
    return b.model(logits=b.dense(y, outputs, name="head"))
