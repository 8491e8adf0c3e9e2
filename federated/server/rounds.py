"""The rules of a round: which devices are asked, how many must answer, which are held out. Pure functions of a seed.

Devices are identified by name, never by the order in which they appeared or answered: the same seed gives the same
rounds in the simulator, over a network, and after a restart. Selection does not depend on a device's speed. A round
waits for all devices it asked until its deadline; it does not close early when enough have answered, which would always
exclude the slow ones (Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019, close early; over-selection
here only compensates for devices that fail). The deadline still excludes slow devices; `reliability` gives more weight
to the answers of devices that answer rarely (inverse propensity weights; Horvitz and Thompson 1952).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

__all__ = ["asked", "choose", "held_out", "reliability", "seed_of", "seeds_of", "toss", "wanted"]


def seed_of(seed: str | int, *words: str | int) -> int:
    """A 64-bit seed for the purpose that `words` name."""
    text = "\0".join(f"{type(word).__name__} {word}" for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def seeds_of(names: Iterable[str], seed: str | int, *words: str | int) -> list[int]:
    """`seed_of(seed, *words, name)` of each name; what they have in common is hashed once."""
    same = "\0".join([*(f"{type(word).__name__} {word}" for word in (seed, *words)), "str "])
    begun, found = hashlib.sha256(same.encode()), []
    for name in names:
        one = begun.copy()
        one.update(name.encode())
        found.append(int.from_bytes(one.digest()[:8], "little"))
    return found


def wanted(devices: int, fraction: float, minimum: int) -> int:
    """How many of `devices` a round wants: `fraction` of them, at least `minimum`, at most all."""
    return min(devices, max(minimum, math.ceil(fraction * devices - 1e-9)))


def asked(devices: int, want: int, over_selection: float) -> int:
    """How many are asked so that `want` answer although some fail: `over_selection` 0.3 asks 30 % more."""
    return min(devices, math.ceil(want * (1 + over_selection) - 1e-9))


def choose(names: Collection[str], count: int, seed: int, number: int, attempt: int = 0) -> list[str]:
    """`count` names drawn without replacement for round `number`, sorted."""
    ordered = sorted(names)
    rng = np.random.default_rng(seed_of(seed, "choose", number, attempt))
    return sorted(ordered[i] for i in rng.choice(len(ordered), count, replace=False))


def toss(names: Collection[str], fraction: float, secret: str, number: int, attempt: int = 0) -> list[str]:
    """Each name with probability `fraction`, by an independent draw that only the holder of the secret can repeat
    (Poisson sampling), sorted."""
    return sorted(name for name in names if seed_of(secret, "toss", number, attempt, name) < fraction * 2**64)


def held_out(names: Sequence[str], share: float, seed: int) -> set[str]:
    """The held-out devices, which never train: each is drawn independently, so that a device that joins later does not
    change the others."""
    return {name for name in names if seed_of(seed, "held out", name) < share * 2**64} if share else set()


def reliability(times_asked: int, times_answered: int) -> float:
    """The probability that a device answers, from its history (Laplace's rule); dividing by it compensates for
    silence."""
    return (times_answered + 1) / (times_asked + 1)
