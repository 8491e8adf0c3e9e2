"""Parts of a step by depth, so that repeated blocks may be decided differently.

Folding makes one decision for all blocks of a kind. If memory is short, that is all or nothing: either every block
shards its tensors, or none does. With one decision per part, only some blocks need to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cloud.parallel.graph import Graph
from cloud.parallel.searching.grouping.groups import Group
from cloud.parallel.searching.walk import late

__all__ = ["parts"]


def parts(graph: Graph, groups: Sequence[Group], count: int) -> list[int]:
    """The part of each group, 0 to `count` - 1: parameters by the order in which they are first read, in equal numbers;
    the other groups, including backward and optimiser operators, as the nearest parameter."""
    if count == 1:
        return [0] * len(groups)
    home = {group.value: g for g, group in enumerate(groups) if group.value >= 0}
    home.update({v: g for g, group in enumerate(groups) for k in group.ops for v in graph.ops[k].outputs})
    of = {k: g for g, group in enumerate(groups) for k in group.ops}
    near: list[dict[int, None]] = [{} for _ in groups]
    first: dict[int, int] = {}
    after = late(graph)
    for k, op in enumerate(graph.ops):
        for v in op.inputs:
            if v in home:
                near[home[v]][of[k]] = near[of[k]][home[v]] = None
                if graph.values[v].kind == "state" and not after[k]:
                    first.setdefault(home[v], k)
    found = {g: n * count // len(first) for n, g in enumerate(sorted(first, key=lambda g: first[g]))}
    front = deque(found)
    while front:
        g = front.popleft()
        for other in near[g]:
            if other not in found:
                found[other] = found[g]
                front.append(other)
    return [found.get(g, 0) for g in range(len(groups))]
