"""The planner's question without any JAX in it: choose one option a node so that the sum of costs is least.

    cost = sum of node costs + sum over transfers of the copies they need

A *transfer* is one value on its way from the node that makes it to those that read it. The maker's option says in
which *form* the value comes to be, a reader's in which form it is wanted; a form that several readers want is made
once. A *row* is a moment of the step: what lives then must fit.
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
    seconds, 0 where nothing is to be done, inf where it cannot be; paid once for each wanted form, `weight` times.
    `bytes[made, wanted]`: what the copy holds on a device, 0 where it is the value itself."""

    source: int
    maker: tuple[int, ...]
    readers: tuple[tuple[int, tuple[int, ...]], ...]
    cost: Floats
    bytes: Floats
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Row:
    """One moment: `nodes[i][option]` bytes of what node i made and is still alive, `copies[t]` how many copies (of each
    wanted form, of transfer t) are alive; `fixed` bytes whatever is chosen. The sum may not pass `limit`."""

    limit: float
    nodes: Mapping[int, Floats]
    copies: Mapping[int, float]
    fixed: float = 0.0
    label: str = ""


@dataclass(frozen=True, eq=False)
class Problem:
    """`nodes[i][option]`: seconds; inf where an option is not to be had."""

    nodes: tuple[Floats, ...]
    transfers: tuple[Transfer, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, eq=False)
class Solution:
    """`options[i]` of every node, the cost in seconds as `evaluate` counts it, what is proven (`bound` <= least cost),
    and the bytes of every row."""

    options: tuple[int, ...]
    cost: float
    bound: float
    rows: Floats
    seconds: float
    facts: Mapping[str, Any]


def evaluate(problem: Problem, options: Sequence[int]) -> tuple[float, Floats]:
    """Seconds of a choice (inf where it cannot be) and the bytes of every row: the one truth of what a choice costs."""
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
