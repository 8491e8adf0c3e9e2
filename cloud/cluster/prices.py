"""What a unit of each pool is worth at present, and what each long job's time is: the duals of a linear program.

The program is Gavel's (Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads",
OSDI 2020) with Sia's configurations (Jayaram Subramanya et al., SOSP 2023): seconds of every job in every
configuration, as if jobs could be cut at will. Jobs with the same options are one class, so that its size does not grow
with the number of jobs; those that would take longest have rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from cloud.cluster.jobs import Option

__all__ = ["Ask", "Prices", "makespan_prices", "speed_prices"]

LONG = 48
"""Jobs with rows of their own."""
NEAR = 1.02
"""A job that decides the makespan may take so many times as long as on its fastest slice."""
LEAST = 1e-12
"""Smaller prices are rounding."""
BASE = 1e-3
"""Every price is higher by about this share of the highest one, so that of free pools smaller slices win, and pools
that others gain less by."""


TIME = 0.02
"""Part of the objective that is jobs' mean time instead of the makespan: of equal makespans, prices lead to the one in
which others are done sooner."""


@dataclass
class Ask:
    """What one job still needs. `remaining`: steps; `weight`; `options` that it may have."""

    number: int
    options: tuple[Option, ...]
    remaining: float
    weight: float = 1.0

    @property
    def least(self) -> float:
        """Seconds that are left on its fastest slice."""
        return self.remaining / self.options[-1].speed if len(self.options) == 1 else self.remaining / max(
            option.speed for option in self.options
        )  # fmt: skip


@dataclass(frozen=True)
class Prices:
    """`pools`: of a unit's second; `jobs`: of a second of long jobs; `time`: of a second of every job; `value`: the
    program's: seconds, or speed."""

    pools: NDArray[np.float64]
    jobs: dict[int, float] = field(default_factory=dict)
    time: float = 0.0
    value: float = 0.0


@dataclass
class _Rows:
    """A sparse matrix under construction."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def array(self, shape: tuple[int, int]) -> Any:
        return coo_array((self.values, (self.rows, self.columns)), shape=shape).tocsr()


Class = tuple[tuple[Option, ...], list[Ask]]


def _classes(asks: Sequence[Ask], alone: Sequence[Ask]) -> list[Class]:
    """Jobs of equal options together, but each of `alone` by itself."""
    numbers = {ask.number for ask in alone}
    found: dict[tuple[Option, ...], list[Ask]] = {}
    for ask in asks:
        if ask.number not in numbers:
            found.setdefault(ask.options, []).append(ask)
    return [*found.items(), *((ask.options, [ask]) for ask in alone)]


def makespan_prices(asks: Sequence[Ask], capacity: Sequence[int]) -> Prices:
    """Prices by which every job's cheapest options lead to the least makespan. `capacity`: units.

    Two programs. The first: minimise T such that every class does its work, none of its jobs takes more than T seconds
    on average, and no pool has more than its units for T seconds. The second: the same, but the longest jobs may each
    take no more than that T, or than they take on their fastest slice, if that is more: such jobs decide the makespan,
    and devices are worth what all others make of them meanwhile. `value`: the larger of T and of the least time of a
    job, which no schedule beats."""
    asks = [ask for ask in asks if ask.remaining > 0]
    even = 1.0 / max(sum(capacity), 1)
    if not asks:
        return Prices(np.full(len(capacity), even))
    first = _program(_classes(asks, ()), capacity, {})
    if first is None:
        return Prices(np.full(len(capacity), even))
    long = sorted(asks, key=lambda ask: (-ask.least, ask.number))[:LONG]
    limits = {ask.number: max(first.value, NEAR * ask.least) for ask in long}
    second = _program(_classes(asks, long), capacity, limits) or first
    return Prices(_based(second.pools, asks), second.jobs, TIME / len(asks), max(first.value, long[0].least))


def _program(classes: list[Class], capacity: Sequence[int], limits: Mapping[int, float]) -> Prices | None:
    """The linear program: seconds of classes in their options, and T. `limits`: seconds of jobs that are alone in their
    class, instead of T."""
    rows, count, total = _Rows(), 1, sum(len(group) for _, group in classes)
    work = [sum(ask.remaining for ask in group) for _, group in classes]
    right = [-1.0] * len(classes) + [0.0] * (len(classes) + len(capacity))
    for k, (options, group) in enumerate(classes):
        for option in options:
            rows.add(k, count, -option.speed / work[k])  # scaled: a class's work is 1
            rows.add(len(classes) + k, count, 1.0)
            rows.add(2 * len(classes) + option.pool, count, option.size)
            count += 1
        if limits and len(group) == 1 and group[0].number in limits:
            right[len(classes) + k] = limits[group[0].number]
        else:
            rows.add(len(classes) + k, 0, -float(len(group)))
    for pool, units in enumerate(capacity):
        rows.add(2 * len(classes) + pool, 0, -float(units))
    objective = np.full(count, TIME / total)
    objective[0] = 1.0
    matrix = rows.array((len(right), count))
    found = linprog(objective, A_ub=matrix, b_ub=np.array(right), bounds=(0, None), method="highs")
    if found.status != 0:
        return None
    duals = -np.asarray(found.ineqlin.marginals)
    own = duals[len(classes) : 2 * len(classes)]
    jobs = {
        group[0].number: float(price)
        for (_, group), price in zip(classes, own, strict=True)
        if len(group) == 1 and group[0].number in limits and price > LEAST
    }
    return Prices(duals[2 * len(classes) :], jobs, value=float(found.x[0]))


def speed_prices(asks: Sequence[Ask], capacity: Sequence[int]) -> Prices:
    """Prices by which every job's best options lead to the largest sum of weighted speeds, each as a share of the job's
    speed on its fastest slice."""
    asks = [ask for ask in asks if ask.remaining > 0]
    if not asks:
        return Prices(np.zeros(len(capacity)))
    groups: dict[tuple[tuple[Option, ...], float], int] = {}
    for ask in asks:
        groups[ask.options, ask.weight] = groups.get((ask.options, ask.weight), 0) + 1
    rows, count, gains = _Rows(), 0, []
    for k, (options, weight) in enumerate(groups):
        most = max(option.speed for option in options)
        for option in options:
            rows.add(k, count, 1.0)
            rows.add(len(groups) + option.pool, count, option.size)
            gains.append(-weight * option.speed / most)
            count += 1
    right = np.array([*groups.values(), *capacity], float)
    matrix = rows.array((len(right), count))
    found = linprog(np.array(gains), A_ub=matrix, b_ub=right, bounds=(0, None), method="highs")
    if found.status != 0:
        return Prices(np.zeros(len(capacity)))
    return Prices(_based(-np.asarray(found.ineqlin.marginals)[len(groups) :], asks), value=-float(found.fun))


def _based(prices: NDArray[np.float64], asks: Sequence[Ask]) -> NDArray[np.float64]:
    """Prices, higher by a little in proportion to what jobs gain by a unit of the pool."""
    worth = np.zeros(len(prices))
    for options in {id(ask.options): ask.options for ask in asks}.values():
        best = max(option.speed / option.size for option in options)
        own = np.zeros(len(prices))
        for option in options:
            own[option.pool] = max(own[option.pool], option.speed / option.size / best)
        worth += own
    floor = BASE * np.maximum(worth, 1e-6) / max(float(worth.sum()), 1e-6)
    least: NDArray[np.float64] = np.maximum(prices, 0.0) + floor * max(float(prices.max()), BASE)
    return least
