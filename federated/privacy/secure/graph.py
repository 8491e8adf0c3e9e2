"""Which devices of a secure sum share secrets and masks with which: all pairs, or a sparse graph of many devices.

Bell, Bonawitz, Gascon, Lepoint, Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020:
a Harary graph of k neighbours over a random order of the devices (section 3.4). Devices within k / 2 places of each
other in the circular order are neighbours. `degree` computes k from the tails of the hypergeometric distribution
(section 3.5), in integers, so that both ends get the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from federated.privacy.secure import crypto
from federated.privacy.secure.messages import NUMBER, Terms

__all__ = ["ALL_PAIRS", "CORRUPT", "Degree", "Graph", "degree", "graph_of"]

ALL_PAIRS = 200
"""Up to so many devices every pair are neighbours: 14 ms of key agreements for each device."""
CORRUPT = 0.1
"""In a sparse graph, the share of a sum's devices that may collude with the server. Without one: all of fewer than the
threshold (honest but curious), or a third (malicious)."""
_SECURITY, _GRINDING, _FAILURE = 40, 60, 20
"""Exponents of 2: the probability that colluding devices learn more than the sum; how many graphs a malicious server
may try by changing the keys of devices that collude with it; the probability that a sum fails by chance."""
_ONE = 1 << 320


class Degree(NamedTuple):
    """Neighbours of each device; how many of a device's holders (its neighbours and itself) give back its secrets; how
    many devices of every neighbours / 2 in succession must send their input (0: not checked)."""

    neighbours: int
    threshold: int
    window: int


def degree(devices: int, corrupt: int, lost: int, *, chosen: bool, security: int, failure: int = _FAILURE) -> Degree:
    """The smallest degree for which, but for a probability of 2^-security, no device has `threshold` or more corrupt
    holders besides itself and the honest devices that stay are connected; and, but for 2^-failure, every device has
    that many holders that stay when any `lost` devices drop out at random.

    chosen: a server chooses who drops out when it knows the graph. Then `window` devices of every k / 2 in succession
    must stay, more than may be corrupt in any: one of them is honest, and the next honest one is its neighbour.
    All pairs, with a majority of the devices as threshold, if no sparse graph is enough.
    """
    found = None
    low, high = 1, (devices - 1) // 2
    while low <= high:
        half = (low + high) // 2
        trial = _trial(devices, corrupt, lost, half, chosen, security, failure)
        found = trial or found
        low, high = (low, half - 1) if trial else (half + 1, high)
    return found or Degree(devices - 1, devices // 2 + 1, 0)


def _trial(n: int, corrupt: int, lost: int, half: int, chosen: bool, security: int, failure: int) -> Degree | None:
    """The degree with 2 * half neighbours, or None. Each bound is a union over devices, and of two events."""
    each, by_chance = 2 * n << security, 2 * n << failure
    threshold = _above(n - 1, corrupt, 2 * half, each) + 1  # of the holders one is the device itself
    if not chosen:
        window = 1
        connected = _above(n, corrupt + lost, half, each) <= half
    else:
        window = _above(n, corrupt, half, each)
        # At most half - window of them may be lost.
        connected = window <= half and _above(n, lost, half, by_chance) <= half - window + 1
    # threshold - 1 neighbours or more must stay.
    stays = _above(n - 1, lost, 2 * half, by_chance) <= 2 * half - threshold + 2
    return Degree(2 * half, threshold, window) if connected and stays else None


def _above(total: int, marked: int, drawn: int, inverse: int) -> int:
    """The smallest t with P[X >= t] <= 1 / inverse, X the marked ones among `drawn` of `total` without replacement."""
    weights = _weights(total, min(marked, total), drawn)
    whole, tail, at = sum(weights.values()), 0, max(weights) + 1
    while at - 1 in weights and (tail + weights[at - 1]) * inverse <= whole:
        at -= 1
        tail += weights[at]
    return at


def _weights(total: int, marked: int, drawn: int) -> dict[int, int]:
    """Hypergeometric probabilities by count, up to a common factor, from the mode outwards by their ratios."""
    low, high = max(0, drawn + marked - total), min(marked, drawn)
    mode = min(max((drawn + 1) * (marked + 1) // (total + 2), low), high)
    weights = {mode: _ONE}
    for at in range(mode, high):
        up, down = (marked - at) * (drawn - at), (at + 1) * (total - marked - drawn + at + 1)
        weights[at + 1] = weights[at] * up // down
    for at in range(mode, low, -1):
        up, down = at * (total - marked - drawn + at), (marked - at + 1) * (drawn - at + 1)
        weights[at - 1] = weights[at] * up // down
    return weights


class Graph:
    """The neighbours of devices that sent keys, in an order that `seed` (32 bytes) determines."""

    def __init__(self, seed: bytes, devices: Sequence[int], of: Degree) -> None:
        self.degree = of
        self._complete = of.neighbours >= len(devices) - 1
        random = np.frombuffer(crypto.key_stream(seed, 8 * len(devices)), "<u8")
        self._order = [devices[at] for at in np.argsort(random, kind="stable")]
        self._place: Mapping[int, int] = {one: at for at, one in enumerate(self._order)}

    def neighbours(self, one: int) -> tuple[int, ...]:
        """Of one device, sorted."""
        if self._complete:
            return tuple(sorted(other for other in self._order if other != one))
        at, half, n = self._place[one], self.degree.neighbours // 2, len(self._order)
        return tuple(sorted(self._order[(at + step) % n] for step in range(-half, half + 1) if step))

    def connects(self, survivors: Collection[int]) -> bool:
        """Whether enough of every neighbours / 2 devices in succession are among these."""
        if self._complete:
            return True
        there = np.fromiter((one in survivors for one in self._order), np.int64, len(self._order))
        half = self.degree.neighbours // 2
        running = np.cumsum(np.concatenate([[0], there, there[: half - 1]]))
        return bool((running[half:] - running[:-half]).min() >= self.degree.window)


@lru_cache(maxsize=8)
def _degree(devices: int, terms: Terms) -> Degree:
    """For the devices that sent keys. Those that were asked and sent none may all be honest."""
    asked = len(terms.devices)
    if asked <= ALL_PAIRS:
        return Degree(devices - 1, terms.threshold, 0)
    security = _SECURITY + _GRINDING * terms.malicious
    lost = max(0, devices - terms.threshold)
    corrupt = int(np.ceil(CORRUPT * asked))
    found = degree(devices, corrupt, lost, chosen=terms.malicious, security=security)
    return found if found.window else Degree(devices - 1, terms.threshold, 0)


@lru_cache(maxsize=2)
def graph_of(terms: Terms, keys: bytes) -> Graph:
    """The graph of a sum. Its seed is a digest of the terms and of all devices' keys (rows of numbers and keys), which
    no device and no server can choose alone."""
    numbers = [NUMBER.unpack_from(keys, at)[0] for at in range(0, len(keys), NUMBER.size + terms.row)]
    return Graph(crypto.derive(terms.digest + keys, b"graph"), numbers, _degree(len(numbers), terms))
