"""Builds a graph for batches whose rows belong to several owners: each row is computed with its owner's tensors, all
other work is done once for the batch.

Values that depend only on owned tensors and constants (a filter scaled by its norm, a transposed matrix) are computed
when an owner's tensors arrive, by the graph `Grouped.prepare`. Where such a value is combined with values that depend
on rows, it becomes a *table* [slots, *shape], which is an input, and the node is rewritten:

1. MatMul, Gemm, Conv with 1x1 filters in NHWC, by an owned matrix: GroupedMatMul.
2. MatMul, Gemm, Conv of which only the bias is owned: the product without bias, then each row's bias is added.
3. Conv by constant filters times owned factors, as a folded BatchNormalization leaves it: the product by the constant
   filters, then each row's factors and bias.
4. Elementwise operators: the owned operand is gathered for each row.
5. LayerNormalization, RMSNormalization with owned scale or bias: normalised, then as in 4.
"""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.graph import Graph, Spec
from lite_runtime.learning.grouping_rules import RULES
from lite_runtime.learning.grouping_walk import SLOTS, Grouped, Table, Ungrouped, Walk
from lite_runtime.planning.stage import next_stage

__all__ = ["SLOTS", "Grouped", "Table", "Ungrouped", "group"]


def group(graph: Graph, owned: Mapping[str, Spec], inputs: Mapping[str, Spec], limit: int) -> Grouped:
    """The graph for inputs of these types, each with the batch axis first; `owned`: the other inputs, of one owner.

    graph: values that depend only on constants are already computed (`stage.fold`). limit: greatest size of one value
    in bytes. Raises Ungrouped.
    """
    rows = {spec.shape[0] if spec.shape else None for spec in inputs.values()}
    count = rows.pop() if len(rows) == 1 else None
    if not count:
        raise Ungrouped("expected inputs with the same number of rows, at least one, in axis 0 of each")
    stage = next_stage(graph, {**inputs, **owned}, limit)
    if stage.frontier:
        raise Ungrouped(f"{stage.frontier[0].where}: the shape of its result depends on values")
    made = Walk(graph, stage, owned, inputs, count, RULES)
    for node in stage.ready:
        made.take(node)
    return made.finish()
