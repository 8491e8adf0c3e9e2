"""Graph convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["gcn"]


def gcn(
    nodes: int = 2708, features: int = 1433, classes: int = 7, seed: int = 0, *, hidden: Sequence[int] = (16,),
    dropout: float = 0.5, pooled: bool = False,
) -> ir.Model:  # fmt: skip
    """GCN (Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017): `x` [batch,
    nodes, features] and `adjacency` [batch, nodes, nodes] -> `logits` [batch, nodes, classes]; by default the paper's
    for Cora, 23,063 parameters.

    Each layer averages over neighbours, adjacency @ (x @ weight) + bias, with ReLU between. `adjacency` is normalised
    beforehand, D^-1/2 (A + I) D^-1/2, with rows of zeros for missing nodes. `pooled`: `logits` [batch, classes] of the
    whole graph instead, by a mean over nodes before the last layer.
    """
    b = Builder("gcn", seed)
    y = b.input("x", (BATCH, nodes, features))
    adjacency = b.input("adjacency", (BATCH, nodes, nodes))
    wide = features
    for i, units in enumerate(hidden):
        y = b.relu(_layer(b, b.dropout(y, dropout, name=f"layer{i}.dropout"), adjacency, wide, units, f"layer{i}"))
        wide = units
    y = b.dropout(y, dropout, name="head.dropout")
    if not pooled:
        return b.model(logits=_layer(b, y, adjacency, wide, classes, "head"))
    mean = b.op("ReduceMean", y, b.constant("nodes", [1]), keepdims=0, name="mean", shape=(BATCH, wide))
    return b.model(logits=b.dense(mean, classes, name="head"))


def _layer(b: Builder, x: ir.Value, adjacency: ir.Value, wide: int, units: int, name: str) -> ir.Value:
    nodes = int(x.shape[1])  # type: ignore[index, arg-type]
    weight = b.normal(f"{name}.weight", (wide, units), (2 / (wide + units)) ** 0.5)  # Glorot's
    y = b.op("MatMul", x, weight, name=f"{name}.product", shape=(BATCH, nodes, units))
    y = b.op("MatMul", adjacency, y, name=f"{name}.around", shape=(BATCH, nodes, units))
    return b.op("Add", y, b.normal(f"{name}.bias", (units,), 0.0), name=name)
