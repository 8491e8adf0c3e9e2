"""The planner's optimisation problem, independent of JAX: choose one option per node with the least sum of costs.

    cost = sum of node costs + sum over transfers of the copies they need

A *transfer* is one value sent from the node that makes it to those that read it. The maker's option determines the
*form* in which the value is made, a reader's option the form it needs; a form that several readers need is made once. A
*row* is the memory constraint of one moment of the step: all that is alive then must fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Problem", "Row", "Solution", "Transfer", "evaluate"]

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Transfer:
    """`maker[option]` and `readers[k] = (node, forms)` with `forms[option]`: form numbers. `cost[made, wanted]` in
    seconds, 0 where nothing has to be done, inf if impossible; paid once for each wanted form, `weight` times.
    `bytes[made, wanted]`: the bytes of the copy on a device, 0 if it is the value itself."""

    source: int
    maker: tuple[int, ...]
    readers: tuple[tuple[int, tuple[int, ...]], ...]
    cost: Floats
    bytes: Floats
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Row:
    """The memory constraint of one moment: `nodes[i][option]` bytes of live values made by node i, `copies[t]` the
    number of live copies (of each wanted form, of transfer t); `fixed` bytes for any choice. The sum must not exceed
    `limit`."""

    limit: float
    nodes: Mapping[int, Floats]
    copies: Mapping[int, float]
    fixed: float = 0.0
    label: str = ""


@dataclass(frozen=True, eq=False)
class Problem:
    """`nodes[i][option]`: seconds; inf for an unavailable option."""

    nodes: tuple[Floats, ...]
    transfers: tuple[Transfer, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, eq=False)
class Solution:
    """`options[i]` of every node, the cost in seconds as `evaluate` computes it, the proven bound (`bound` <= least
    cost), and the bytes of every row."""

    options: tuple[int, ...]
    cost: float
    bound: float
    rows: Floats
    seconds: float
    facts: Mapping[str, Any]


def evaluate(problem: Problem, options: Sequence[int]) -> tuple[float, Floats]:
    """Seconds of a choice (inf if impossible) and the bytes of every row: the definition of what a choice costs."""
    cost = sum(float(costs[option]) for costs, option in zip(problem.nodes, options, strict=True))
    held = []
    for transfer in problem.transfers:
        made = transfer.maker[options[transfer.source]]
        wanted = sorted({forms[options[node]] for node, forms in transfer.readers})
        cost += transfer.weight * float(transfer.cost[made, wanted].sum())
        held.append(float(transfer.bytes[made, wanted].sum()))
    rows = [
        row.fixed
        + sum(float(sizes[options[node]]) for node, sizes in row.nodes.items())
        + sum(alive * held[transfer] for transfer, alive in row.copies.items())
        for row in problem.rows
    ]
    return cost, np.array(rows, np.float64)
