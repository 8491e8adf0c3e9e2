"""A good choice of options in seconds, where proving the best would take minutes: exact moves over trees.

A move frees a set of nodes between which the transfers form a forest, holds all others, and takes the best options of
all free nodes at once by dynamic programming from the leaves to the roots. Sets are drawn at random, so that nodes
which only pay together (a chain of operators that should all be split another way) sooner or later move together.

Where several readers want one form of a value, only the first pays. Between a free maker and its free readers that is
left out of account, so that a move is only kept where it turns out to be cheaper. Memory is charged at prices a byte
and row, which rise while a row is too full.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloud.parallel.solving.problem import Floats, Problem

__all__ = ["Choice", "Options", "descents"]

HUGE = 1e30
"""Stands for what cannot be, in sums that an infinity would spoil."""

PATIENCE = 12
"""Moves without gain after which a descent ends: of the first dozen that fail the next seldom succeeds."""

Options = tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """Options of every node, what they cost in seconds, and the bytes by which the fullest row is over its limit."""

    options: Options
    cost: float
    over: float

    @property
    def rank(self) -> tuple[float, float]:
        """What fits comes first, then what is cheap."""
        return max(self.over, 0.0), self.cost


def descents(problem: Problem, starts: Sequence[Options], seeds: Iterable[int], end: float) -> list[Choice]:
    """Where one comes from each of `starts`, and for each seed from options drawn at random (which ends better than
    starting from what is cheapest by itself). Each gets a fair part of the time until `end`, by `time.monotonic`; the
    first is always begun."""
    board = _Board(problem)
    begun = [(start, np.random.default_rng(len(start))) for start in starts]
    for seed in seeds:
        random = np.random.default_rng(seed)
        drawn = tuple(int(random.choice(np.flatnonzero(costs < HUGE))) for costs in board.nodes)
        begun.append((drawn, random))
    found: list[Choice] = []
    for number, (start, random) in enumerate(begun):
        now = time.monotonic()
        if found and now > end:
            break
        found += _from(board, start, random, now + max(end - now, 0.0) / (len(begun) - number))
    return found


def _from(board: _Board, start: Options, random: np.random.Generator, end: float) -> list[Choice]:
    """Downhill, then with ever dearer memory until it fits, then downhill among what fits. Where memory stood in the
    way, also what would be cheapest without: parts of it may fit (see `solve`)."""
    board.prices[:] = 0.0
    free = best = board.choice(_settled(board, list(start), random, end))
    if best.over <= 0:
        return [best]
    dear = max(best.cost, 1e-9) / max(board.limits.max(initial=1.0), 1.0)
    now = list(best.options)
    for _ in range(12):
        over = board.held(now) - board.limits
        board.prices += np.where(over > 0, dear * np.maximum(over / board.limits, 0.02) * 4, 0.0)
        now = _settled(board, now, random, end)
        reached = board.choice(now)
        best = min(best, reached, key=lambda choice: choice.rank)
        if reached.over <= 0 or time.monotonic() > end:
            break
    for _ in range(6 if best.over <= 0 else 0):  # memory at lower prices, while it still fits
        board.prices *= 0.6
        reached = board.choice(_settled(board, list(best.options), random, end))
        if reached.over > 0 or time.monotonic() > end:
            break
        best = min(best, reached, key=lambda choice: choice.rank)
    return [best, free]


def _settled(board: _Board, now: list[int], random: np.random.Generator, end: float) -> list[int]:
    """Moves over trees until several in a row have not helped."""
    cost, idle, patience = board.price(now), 0, PATIENCE
    while idle < patience and time.monotonic() < end:
        moved = board.move(now, random)
        after = board.price(moved)
        if after < cost * (1 - 1e-9) - 1e-18:
            now, cost, idle = moved, after, 0
        else:
            idle += 1
    return now


@dataclass
class _Board:
    """A problem laid out for moves."""

    problem: Problem
    prices: Floats = field(init=False)
    limits: Floats = field(init=False)

    def __post_init__(self) -> None:
        problem = self.problem
        self.prices = np.zeros(len(problem.rows))
        self.limits = np.array([row.limit for row in problem.rows])
        self.nodes = [np.where(np.isfinite(costs), costs, HUGE) for costs in problem.nodes]
        self.sizes = [np.zeros((len(problem.rows), len(costs))) for costs in problem.nodes]
        self.alive = np.zeros((len(problem.rows), len(problem.transfers)))
        for k, row in enumerate(problem.rows):
            for node, bytes_ in row.nodes.items():
                self.sizes[node][k] = bytes_
            for transfer, times in row.copies.items():
                self.alive[k, transfer] = times
        self.fixed = np.array([row.fixed for row in problem.rows])
        self.makers = [np.array(t.maker) for t in problem.transfers]
        self.forms = [[np.array(forms) for _, forms in t.readers] for t in problem.transfers]
        self.costs = [t.weight * np.where(np.isfinite(t.cost), t.cost, HUGE) for t in problem.transfers]
        self.lists = [costs.tolist() for costs in self.costs]
        self.pairs = [
            [(self.costs[k][made][:, forms], t.bytes[made][:, forms]) for forms in self.forms[k]]
            for k, (t, made) in enumerate(zip(problem.transfers, self.makers, strict=True))
        ]
        self.touching: list[list[int]] = [[] for _ in problem.nodes]
        self.neighbours: list[set[int]] = [set() for _ in problem.nodes]
        for k, t in enumerate(problem.transfers):
            for node in {t.source, *(node for node, _ in t.readers)}:
                self.touching[node].append(k)
            for node, _ in t.readers:
                if node != t.source:
                    self.neighbours[node].add(t.source)
                    self.neighbours[t.source].add(node)

    def held(self, now: Sequence[int]) -> Floats:
        """Bytes of every row."""
        bytes_ = self.fixed + sum((s[:, o] for s, o in zip(self.sizes, now, strict=True)), np.zeros(len(self.fixed)))
        copies = np.zeros(len(self.problem.transfers))
        for k, t in enumerate(self.problem.transfers):
            if self.alive[:, k].any():
                copies[k] = t.bytes[self.makers[k][now[t.source]], self._wanted(k, now)].sum()
        held: Floats = bytes_ + self.alive @ copies
        return held

    def choice(self, now: Sequence[int]) -> Choice:
        """What it costs, memory apart."""
        prices, self.prices = self.prices, np.zeros_like(self.prices)
        cost = self.price(now)
        self.prices = prices
        over = (self.held(now) - self.limits).max(initial=-np.inf)
        return Choice(tuple(now), cost, float(over) if cost < HUGE / 2 else np.inf)

    def price(self, now: Sequence[int]) -> float:
        """Seconds, and memory at its prices."""
        cost = sum(float(costs[o]) for costs, o in zip(self.nodes, now, strict=True))
        for k, t in enumerate(self.problem.transfers):
            copies = self.lists[k][t.maker[now[t.source]]]
            for form in {forms[now[node]] for node, forms in t.readers}:
                cost += copies[form]
        return cost + (float(self.prices @ self.held(now)) if self.prices.any() else 0.0)

    def _wanted(self, k: int, now: Sequence[int]) -> list[int]:
        readers = self.problem.transfers[k].readers
        return sorted({int(forms[now[node]]) for (node, _), forms in zip(readers, self.forms[k], strict=True)})

    def move(self, now: Sequence[int], random: np.random.Generator) -> list[int]:
        """The best options of a random forest's nodes, all others staying."""
        order, parent = self._forest(random)
        free = set(order)
        alone = {i: self.nodes[i] + (self.prices @ self.sizes[i] if self.prices.any() else 0.0) for i in order}
        pairs: dict[tuple[int, int], Floats] = {}
        charges = self.prices @ self.alive if self.prices.any() else np.zeros(len(self.costs))
        for k in {k for i in order for k in self.touching[i]}:
            self._laid_out(k, float(charges[k]), now, free, alone, pairs)
        best: dict[int, np.ndarray] = {}
        for i in reversed(order):  # children before their parents
            above = parent[i]
            if above is None:
                continue
            table = alone[i][None, :] + pairs.get((above, i), 0.0)
            best[i] = table.argmin(1)
            alone[above] = alone[above] + table.min(1)
        moved = list(now)
        for i in order:
            above = parent[i]
            moved[i] = int(alone[i].argmin()) if above is None else int(best[i][moved[above]])
        return moved

    def _laid_out(
        self, k: int, price: float, now: Sequence[int], free: set[int], alone: dict[int, Floats],
        pairs: dict[tuple[int, int], Floats],
    ) -> None:  # fmt: skip
        """A transfer's cost, its copies at `price` a byte, as tables of its free nodes' options."""
        t, made = self.problem.transfers[k], self.makers[k]
        settled = sorted({forms[now[node]] for node, forms in t.readers if node not in free})
        paid = np.zeros(t.cost.shape[1], bool)
        paid[settled] = True
        if t.source in free and settled:
            alone[t.source] = alone[t.source] + (self.costs[k] + price * t.bytes)[made][:, settled].sum(1)
        for (node, _), forms, (costs, bytes_) in zip(t.readers, self.forms[k], self.pairs[k], strict=True):
            if node not in free:
                continue
            table = costs + price * bytes_ if price else costs
            if settled:
                table = np.where(paid[forms], 0.0, table)
            if t.source not in free:
                alone[node] = alone[node] + table[now[t.source]]
                continue
            if node == t.source:
                alone[node] = alone[node] + np.diagonal(table)
                continue
            pairs[t.source, node] = pairs.get((t.source, node), 0.0) + table
            pairs[node, t.source] = pairs.get((node, t.source), 0.0) + table.T

    def _forest(self, random: np.random.Generator) -> tuple[list[int], dict[int, int | None]]:
        """Nodes in an order in which parents come first: a random induced forest, grown outwards from one node."""
        taken: dict[int, int] = {}
        barred: set[int] = set()
        tree = iter(range(len(self.nodes)))
        for start in random.permutation(len(self.nodes))[: max(1, len(self.nodes) // 3)]:
            self._grow(int(start), next(tree), taken, barred, random)
        order: list[int] = []
        parent: dict[int, int | None] = {}
        for root in taken:
            if root not in parent:
                parent[root] = None
                self._walk(root, taken, parent, order)
        return order, parent

    def _grow(
        self, start: int, tree: int, taken: dict[int, int], barred: set[int], random: np.random.Generator
    ) -> None:
        front = [start]
        while front:
            node = front.pop(int(random.integers(len(front))))
            if node in taken or node in barred:
                continue
            inside = [other for other in self.neighbours[node] if other in taken]
            trees = [taken[other] for other in inside]
            if len(trees) != len(set(trees)) or any(each != tree for each in trees):
                barred.add(node)
                continue
            taken[node] = tree
            front.extend(other for other in sorted(self.neighbours[node]) if other not in taken)

    def _walk(self, root: int, taken: dict[int, int], parent: dict[int, int | None], order: list[int]) -> None:
        stack = [root]
        while stack:
            node = stack.pop()
            order.append(node)
            for other in sorted(self.neighbours[node]):
                if other in taken and other not in parent:
                    parent[other] = node
                    stack.append(other)

