"""The rules of a round: who is asked, how many must answer, who is kept for evaluation. Pure functions of a seed.

Devices go by their names, never by the order in which they appeared or answered: the same seed gives the same rounds
in the simulator and over a network, and after a restart. Who is asked does not depend on how fast a device is. A round
waits for everybody it asked until its deadline; it does not close early when enough have answered, which would leave
the slow out every time (Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019, close early; over-selection
here only makes up for devices that fail). What still leaves slow devices out is the deadline; `reliability` lets those
who answer rarely count more when they do (inverse propensity weights; Horvitz and Thompson 1952).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence

import numpy as np

__all__ = ["asked", "choose", "held_out", "reliability", "seed_of", "toss", "wanted"]


def seed_of(seed: str | int, *words: str | int) -> int:
    """A seed of 64 bits for what `words` name."""
    text = "\0".join(f"{type(word).__name__} {word}" for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


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
    """Each name with probability `fraction`, by a toss of its own that only who knows the secret can repeat (Poisson
    sampling), sorted."""
    return sorted(name for name in names if seed_of(secret, "toss", number, attempt, name) < fraction * 2**64)


def held_out(names: Sequence[str], share: float, seed: int) -> set[str]:
    """The devices that never train: each by a draw of its own, so that one that joins later changes no other's lot."""
    return {name for name in names if seed_of(seed, "held out", name) < share * 2**64}


def reliability(times_asked: int, times_answered: int) -> float:
    """How likely a device answers, from what it did so far (Laplace's rule); dividing by it makes up for silence."""
    return (times_answered + 1) / (times_asked + 1)
