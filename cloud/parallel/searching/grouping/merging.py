"""Sums over devices that the compiler merges: if only `a + b` is read (transposed or not), the partial results of `a`
and `b` are added before they are reduced. An example is the gradient of a weight used twice, such as a tied embedding.

The GPU compiler does this to all-reduces and reduce-scatters; the CPU compiler does not.
"""

from __future__ import annotations

from collections import Counter

from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.searching.options import wanted
from cloud.parallel.searching.walk import lying, sums

__all__ = ["merged"]

_ADDS = ("add", "add_any")


def merged(graph: Graph, plan: Plan) -> frozenset[tuple[int, int]]:
    """(operator, result) of the sums that are merged into another one."""
    readers = Counter(v for op in graph.ops for v in op.inputs) + Counter(graph.leaving)
    found = {each.value: each for each in sums(graph, plan) if each.axes}
    lies, gone = lying(graph, plan), set[tuple[int, int]]()
    for op, assignment in zip(graph.ops, plan.ops, strict=True):
        alone = all(v in found and readers[v] == 1 for v in op.inputs)
        if not alone or any(wanted(op, i, assignment.loops) != lies[v] for i, v in enumerate(op.inputs)):
            continue
        if op.primitive == "transpose":
            found[op.outputs[0]] = found[op.inputs[0]]
        elif op.primitive in _ADDS:
            left, right = (found[v] for v in op.inputs)
            if left.axes == right.axes and graph.ops[left.op].times == graph.ops[right.op].times:
                gone.add((right.op, right.result))
                found[op.outputs[0]] = left
    return frozenset(gone)
