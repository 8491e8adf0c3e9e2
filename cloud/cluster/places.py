"""Which units of a cluster belong to whom, and where a slice fits: aligned blocks, as few broken ones as possible.

A slice of n units begins at a multiple of n within its machine, or at a multiple of n machines within its switch, so
that its devices have the fastest links that n devices can have, and slices that end leave blocks that slices of other
sizes fit in (buddy allocation; Knowlton, "A fast storage allocator", 1965).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud.cluster.cluster import Cluster, Pool

__all__ = ["Board", "Place", "starts"]

FREE, DOWN = -1, -2


class Place(NamedTuple):
    """A slice: the pool's index, the first unit, the number of units."""

    pool: int
    first: int
    size: int


def starts(pool: Pool, size: int) -> NDArray[np.int64]:
    """Units at which slices of `size` may begin."""
    if size <= pool.units:
        return np.arange(0, pool.total, size)
    count = size // pool.units
    groups = range(0, pool.machines, pool.switch)
    firsts = [np.arange(at, min(at + pool.switch, pool.machines) - count + 1, count) for at in groups]
    return np.concatenate(firsts).astype(np.int64) * pool.units


class Board:
    """Holders of all units: numbers from 0; each unit may also be claimed by one that comes next."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.holders = [np.full(pool.total, FREE) for pool in cluster.pools]
        self.claims = [np.full(pool.total, FREE) for pool in cluster.pools]
        self._starts = [{size: starts(pool, size) for size in pool.sizes} for pool in cluster.pools]
        for index, pool in enumerate(cluster.pools):
            for machine in pool.down:
                self.lose(index, machine)

    def up(self, pool: int) -> int:
        """Units of machines that are there."""
        return int((self.holders[pool] != DOWN).sum())

    def free(self, pool: int) -> int:
        """Units without holder and claim."""
        return int(((self.holders[pool] == FREE) & (self.claims[pool] == FREE)).sum())

    def room(self, pool: int, size: int) -> int:
        """Slices of `size` that would fit if nobody held anything."""
        return int((_sums(self.holders[pool] == DOWN, self._starts[pool][size], size) == 0).sum())

    def find(self, pool: int, size: int) -> Place | None:
        """The free block whose surroundings are fullest, so that larger blocks stay whole; None if there is none."""
        busy = (self.holders[pool] != FREE) | (self.claims[pool] != FREE)
        at = self._starts[pool][size]
        at = at[_sums(busy, at, size) == 0]
        for larger in self._starts[pool]:
            if len(at) > 1 and larger > size and larger % size == 0:
                homes = self._starts[pool][larger]
                home = np.searchsorted(homes, at, "right") - 1
                full = np.append(_sums(busy, homes, larger), 0)
                inside = (home >= 0) & (at < homes[home] + larger) if len(homes) else np.zeros(len(at), bool)
                score = np.where(inside, full[home], larger)  # what is in no larger block costs none
                at = at[score == score.max()]
        return Place(pool, int(at[0]), size) if len(at) else None

    def cheapest(self, pool: int, size: int, cost: Callable[[int], float]) -> Place | None:
        """The block without claims whose holders cost least to move, by `cost` of a holder for each unit, infinite if
        it must not; None if there is none."""
        numbers, where = np.unique(self.holders[pool], return_inverse=True)
        known = {FREE: 0.0, DOWN: np.inf}
        costs = np.array([known[n] if n in known else cost(n) for n in numbers.tolist()])[where]
        costs[self.claims[pool] != FREE] = np.inf
        at = self._starts[pool][size]
        at = at[_sums(~np.isfinite(costs), at, size) == 0]
        if not len(at):
            return None
        total = _sums(np.where(np.isfinite(costs), costs, 0.0), at, size)
        return Place(pool, int(at[np.argmin(np.round(total, 9))]), size)

    def take(self, place: Place, number: int) -> None:
        """`number` holds it from now on, and the claim is gone."""
        self._of(self.holders, place)[:] = number
        self._of(self.claims, place)[:] = FREE

    def leave(self, place: Place) -> None:
        """Nobody holds it; units of machines that are down stay so."""
        units = self._of(self.holders, place)
        units[units != DOWN] = FREE

    def claim(self, place: Place, number: int) -> None:
        """`number` comes next."""
        self._of(self.claims, place)[:] = number

    def drop(self, place: Place) -> None:
        """Nobody comes next."""
        self._of(self.claims, place)[:] = FREE

    def held(self, place: Place) -> set[int]:
        """Who holds units of it."""
        return {*self._of(self.holders, place).tolist()} - {FREE}

    def lose(self, pool: int, machine: int) -> set[int]:
        """A machine is gone; whose units it had."""
        place = self.machine(pool, machine)
        found = self.held(place) - {DOWN}
        self._of(self.holders, place)[:] = DOWN
        return found

    def restore(self, pool: int, machine: int) -> None:
        """A machine is back."""
        units = self._of(self.holders, self.machine(pool, machine))
        units[units == DOWN] = FREE

    def machine(self, pool: int, machine: int) -> Place:
        """All of a machine."""
        units = self.cluster.pools[pool].units
        return Place(pool, machine * units, units)

    def _of(self, arrays: list[NDArray[np.int64]], place: Place) -> NDArray[np.int64]:
        return arrays[place.pool][place.first : place.first + place.size]


def _sums(values: NDArray[np.generic], at: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Sums of `size` values from each of `at` on."""
    running = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    sums: NDArray[np.float64] = running[at + size] - running[at]
    return sums
