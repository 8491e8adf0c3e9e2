"""The worth of each option of a large `Problem`, without solving it: message passing along its transfers.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent tree-reweighted message passing for energy
minimization", 2006) on the pairs of nodes that transfers connect. The cost of what several readers share is divided
among them, so that a bound of the pairs is a bound of the problem. Memory constraints get prices (Lagrangian
relaxation): bytes cost seconds. It takes a tenth of a second where the linear relaxation takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cloud.parallel.solving.problem import Floats, Problem, evaluate

__all__ = ["Belief", "Options", "believed", "bids"]

NEVER = 1e6
"""Seconds of an impossible choice: finite, so that messages can be subtracted."""

ROUNDS, STILL = 60, 1e-4
"""The most forward and backward passes, and the relative gain of the bound over three of them below which they end."""

BARGAINS = 8
"""The number of further memory prices that are tried."""

FAIR = 0.3
"""The initial cost of all memory together, as a share of all seconds."""

Options = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Belief:
    """`options`: a choice derived from the messages. `worth[i][option]`: the cost of the whole with this option as the
    messages estimate it, up to a constant per node; inf for impossible options. `bound`: no choice that fits costs
    less. `sent`: the messages."""

    options: Options
    worth: tuple[Floats, ...]
    bound: float
    sent: dict[tuple[int, int], Floats]


def bids(problem: Problem) -> Iterator[Belief]:
    """The beliefs at price 0 and, if their choice violates memory constraints, at prices around the one from which the
    best choice fits: found by doubling, then by bisection."""
    belief = first = believed(problem, np.zeros(len(problem.rows)))
    yield first
    limits = np.array([row.limit for row in problem.rows])
    over = _over(problem, first.options, limits)
    if not (over > 0).any():
        return
    weights = np.where(over > 0, 1.0, 0.0)
    price, low, high = FAIR * max(first.bound, 1e-12) / max(float(limits.max()), 1.0), 0.0, np.inf
    for _ in range(BARGAINS):
        belief = believed(problem, price * weights / weights.sum(), belief)
        yield belief
        over = _over(problem, belief.options, limits)
        low, high = (price, high) if (over > 0).any() else (low, price)
        price = 2 * price if high == np.inf else (low + high) / 2
        weights = weights / weights.sum() + np.maximum(over, 0.0) / np.maximum(limits, 1.0)


def believed(problem: Problem, prices: Floats, before: Belief | None = None) -> Belief:
    """`prices[k]`: seconds per byte in row k. `before`: the beliefs at other prices, as the starting point."""
    alone, between = _pairwise(problem, prices)
    nodes = range(len(alone))
    near: list[list[int]] = [[j for j in nodes if (i, j) in between] for i in nodes]
    share = [1 / max(sum(j < i for j in near[i]), sum(j > i for j in near[i]), 1) for i in nodes]
    sent = dict(before.sent) if before else {(i, j): np.zeros(len(alone[j])) for i, j in between}

    def worth(i: int) -> Floats:
        return np.asarray(alone[i] + sum(sent[k, i] for k in near[i]))

    def passed(order: Sequence[int], ahead: int) -> float:
        """Send messages from every node to its next neighbours; the bound they prove."""
        proven = 0.0
        for i in order:
            here = worth(i)
            proven += (least := float(here.min()))
            here = share[i] * (here - least)
            for j in near[i]:
                if (j - i) * ahead > 0:
                    message = (between[i, j] + (here - sent[j, i])[:, None]).min(0)
                    proven += (least := float(message.min()))
                    sent[i, j] = message - least
        return proven

    bounds: list[float] = []
    while len(bounds) < ROUNDS and not (len(bounds) > 3 and bounds[-1] - bounds[-4] < STILL * abs(bounds[-1])):
        passed(nodes, 1)
        bounds.append(passed(nodes[::-1], -1))
    options: list[int] = []
    for i in nodes:
        cost = alone[i] + sum(between[j, i][options[j]] if j < i else sent[j, i] for j in near[i])
        options.append(int(cost.argmin()))
    known = tuple(np.where(np.isfinite(costs), worth(i), np.inf) for i, costs in enumerate(problem.nodes))
    paid = sum(price * (row.limit - row.fixed) for price, row in zip(prices, problem.rows, strict=True))
    return Belief(tuple(options), known, max(bounds) - paid, sent)


def _over(problem: Problem, options: Options, limits: Floats) -> Floats:
    return evaluate(problem, options)[1] - limits


def _pairwise(problem: Problem, prices: Floats) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    """Costs of each node's options, and of each pair of nodes' options, in both directions."""
    alone = [np.where(np.isfinite(costs), costs, NEVER) for costs in problem.nodes]
    charges = np.zeros(len(problem.transfers))
    for price, row in zip(prices, problem.rows, strict=True):
        for node, sizes in row.nodes.items() if price else ():
            alone[node] = alone[node] + price * np.broadcast_to(sizes, alone[node].shape)
        for t, alive in row.copies.items() if price else ():
            charges[t] += price * alive
    pairs: dict[tuple[int, int], Floats] = {}
    for transfer, charge in zip(problem.transfers, charges, strict=True):
        cost = transfer.weight * np.where(np.isfinite(transfer.cost), transfer.cost, NEVER) + charge * transfer.bytes
        for node, forms in transfer.readers:
            each = cost[np.ix_(transfer.maker, forms)] / len(transfer.readers)
            if node == transfer.source:
                alone[node] = alone[node] + each.diagonal()
                continue
            ends = (transfer.source, node) if transfer.source < node else (node, transfer.source)
            each = each if transfer.source < node else each.T
            pairs[ends] = pairs[ends] + each if ends in pairs else each
    return alone, pairs | {(j, i): np.ascontiguousarray(matrix.T) for (i, j), matrix in pairs.items()}
