"""Two towers, for retrieval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["two_tower"]


def two_tower(
    query: tuple[int, int] = (32, 30000), item: tuple[int, int] = (32, 30000), seed: int = 0, *, width: int = 64,
    hidden: Sequence[int] = (300,), vector: int = 128, dropout: float = 0.0,
) -> ir.Model:  # fmt: skip
    """Two towers (Huang et al., "Learning Deep Structured Semantic Models", 2013; Yi et al., "Sampling-Bias-Corrected
    Neural Modeling for Large Corpus Item Recommendations", 2019): `query` [batch, n] int32 and `item` [batch, m] int32
    -> `query_vector` and `item_vector` [batch, vector], of length 1, whose product says how well they fit; 3,956,056
    parameters.

    `query` and `item`: (ids per example, different ids); id 0 is padding. Each tower is a mean of embeddings of `width`
    and dense layers with ReLU between. Items' vectors are computed once and kept; a query is one product with them.
    """
    b = Builder("two_tower", seed)
    sides = {}
    for name, (length, vocabulary) in (("query", query), ("item", item)):
        ids = b.input(name, (BATCH, length), ir.DataType.INT32)
        y = b.dropout(_mean(b, ids, vocabulary, width, name), dropout, name=f"{name}.dropout")
        for i, units in enumerate(hidden):
            y = b.relu(b.dense(y, units, name=f"{name}.layer{i}"))
        y = b.dense(y, vector, name=f"{name}.head")
        sides[f"{name}_vector"] = b.op("LpNormalization", y, axis=-1, p=2)
    return b.model(**sides)


def _mean(b: Builder, ids: ir.Value, vocabulary: int, width: int, name: str) -> ir.Value:
    """The mean of the embeddings of ids that are not 0, [batch, width]."""
    batch, length = dims(ids)
    table = b.normal(f"{name}.weight", (vocabulary, width), width**-0.5)
    rows = b.op("Gather", table, ids, name=f"{name}.rows", shape=(batch, length, width))
    empty = b.weight(f"{name}.padding", np.array(0, np.int32))
    missing = b.op("Equal", ids, empty, dtype=ir.DataType.BOOL)
    there = b.op("Cast", b.op("Not", missing, dtype=ir.DataType.BOOL), to=int(ir.DataType.FLOAT))
    last, middle = b.constant(f"{name}.last", [2]), b.constant(f"{name}.middle", [1])
    there = b.op("Unsqueeze", there, last, name=f"{name}.there", shape=(batch, length, 1))
    total = b.op("ReduceSum", b.op("Mul", rows, there), middle, keepdims=0, shape=(batch, width))
    count = b.op("ReduceSum", there, middle, keepdims=0, shape=(batch, 1))
    return b.op("Div", total, b.op("Max", count, b.fixed(f"{name}.least", [1])), name=f"{name}.mean")
