"""What each option of a large `Problem` is worth, without solving it: messages along its transfers.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent tree-reweighted message passing for energy
minimization", 2006) on the pairs of nodes that transfers join; what several readers share, each bears a part of. Rows
are bought: bytes cost seconds. It takes a second where the linear relaxation takes minutes, and knows the same bound
where the pairs form a tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cloud.parallel.problem import Floats, Problem, evaluate

__all__ = ["Belief", "believed", "bids"]

NEVER = 1e6
"""Seconds of what cannot be: finite, so that messages can be subtracted."""

ROUNDS = 40
"""Passes there and back; of a transformer's 97 classes on two mesh axes, more than 25 change nothing."""

BARGAINS, FINER = 12, 4
"""Times that the price of memory is doubled, at most, and that it is then looked for between the last two."""


@dataclass(frozen=True, eq=False)
class Belief:
    """`options`: a choice read off the messages. `worth[i][option]`: what the whole would cost with it, up to a number
    the same for all of a node's options, as far as messages know; inf of those that cannot be had."""

    options: tuple[int, ...]
    worth: tuple[Floats, ...]


def believed(problem: Problem, prices: Mapping[int, float], rounds: int = ROUNDS) -> Belief:
    """`prices`: row to the seconds that a byte in it costs."""
    alone, pairs = _pairwise(problem, prices)
    count = range(len(alone))
    near: list[list[int]] = [[] for _ in count]
    for i, j in pairs:
        near[i].append(j)
        near[j].append(i)
    between = {**pairs, **{(j, i): matrix.T for (i, j), matrix in pairs.items()}}
    sent = {(i, j): np.zeros(len(alone[j])) for i, j in between}

    def belief(i: int) -> Floats:
        return np.asarray(alone[i] + sum(sent[k, i] for k in near[i]))

    share = [1 / max(sum(j < i for j in near[i]), sum(j > i for j in near[i]), 1) for i in count]
    for step in [1, -1] * rounds:
        for i in count[::step]:
            now = share[i] * belief(i)
            for j in near[i]:
                if (j - i) * step > 0:
                    message = (between[i, j] + (now - sent[j, i])[:, None]).min(0)
                    sent[i, j] = message - message.min()
    options: list[int] = []
    for i in count:
        cost = alone[i].copy()
        for j in near[i]:
            cost += between[j, i][options[j]] if j < i else sent[j, i]
        options.append(int(cost.argmin()))
    worth = tuple(np.where(np.isfinite(costs), belief(i), np.inf) for i, costs in enumerate(problem.nodes))
    return Belief(tuple(options), worth)


def bids(problem: Problem) -> list[tuple[int, ...]]:
    """Choices to begin from: the one believed best whatever it holds, and, where that breaks rows, those believed best
    as the bytes in broken rows get dearer, until none is broken, and then a little cheaper again."""
    prices: dict[int, float] = {}
    found = [believed(problem, prices).options]
    first = evaluate(problem, found[0])[0]
    while (broken := _broken(problem, found[-1])) and len(found) <= BARGAINS:
        for k in broken:  # at first all that fits is worth a fortieth of the whole cost
            prices[k] = 2 * prices.get(k, first / problem.rows[k].limit / 80 / len(broken))
        found.append(believed(problem, prices).options)
    low, high = 0.5, 1.0
    for _ in range(FINER if prices and not broken else 0):
        share = (low * high) ** 0.5
        found.append(believed(problem, {k: share * price for k, price in prices.items()}).options)
        low, high = (share, high) if _broken(problem, found[-1]) else (low, share)
    return found


def _broken(problem: Problem, options: tuple[int, ...]) -> list[int]:
    held = evaluate(problem, options)[1]
    return [k for k, row in enumerate(problem.rows) if held[k] > row.limit]


def _pairwise(problem: Problem, prices: Mapping[int, float]) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    """Costs of each node's options, and of each pair of nodes' options, lower number first."""
    alone = [np.where(np.isfinite(costs), costs, NEVER) for costs in problem.nodes]
    charges = np.zeros(len(problem.transfers))
    for row, price in prices.items():
        for node, sizes in problem.rows[row].nodes.items():
            alone[node] = alone[node] + price * sizes
        for t, alive in problem.rows[row].copies.items():
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
    return alone, pairs
