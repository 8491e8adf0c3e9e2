"""How much one device may change the mean: limits relative to what the other devices of the round sent.

A device's number of examples, which is its weight, and the size of its update are claims that nobody can check. What
can be checked is how far they are from the others', by medians, which fewer than half of the devices cannot move far:

1. An update more than `limits.outlier` times as large as the median of this round and of every earlier one is refused.
   Earlier rounds count because a device may be one of the last that have something to learn: on 30 devices with easy
   examples an honest update was 174 times as large as the round's median, but a third of the first round's.
2. A weight counts as at most `limits.influence` times the round's median weight (as McMahan et al., "Learning
   Differentially Private Recurrent Language Models", ICLR 2018, bound weights).
3. An update is scaled down until weight times norm is at most `limits.influence` times its median (Sun et al., "Can
   You Really Backdoor Federated Learning?", 2019, for norms alone).

A share h of liars then moves the mean at most h / (1 - h) * influence times as far as typical honest devices do: with
the default of 3, one of 16 a fifth as far, and a quarter of the devices as far as all the others. Where no limit is
exceeded, the updates and weights are returned unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from federated import tree
from federated.config import Limits
from federated.server.replies import Received, Refused

__all__ = ["Limited", "capped", "limit", "outliers"]

Weighted = tuple[Received, float]


@dataclass(frozen=True)
class Limited:
    """Updates with weights, and the names of devices whose weight was cut or whose update was scaled down."""

    updates: list[Weighted]
    heavy: tuple[str, ...] = ()
    large: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """How many devices were limited, for the report."""
        found = {"weight": len(self.heavy), "norm": len(self.large)}
        return {what: count for what, count in found.items() if count}

    def details(self) -> list[str]:
        """Which devices were limited, for the report."""
        words = {"weight": self.heavy, "norm": self.large}
        return [f"{name}: {what} cut to limits.influence" for what, names in words.items() for name in names]


def outliers(updates: Sequence[Received], limits: Limits, earlier: float = 0.0) -> dict[str, Refused]:
    """The devices whose update is too large. `earlier`: the largest median norm of the rounds before."""
    norms = np.array([each.norm for each in updates])
    bound = max(_bound(norms, limits.outlier), limits.outlier * earlier)
    return {
        each.device: Refused("outlier", f"expected a norm of at most {bound:g}, {limits.outlier:g} times the median, "
                             f"got {each.norm:g}")
        for each in updates
        if each.norm > bound
    }  # fmt: skip


def capped(weights: Sequence[float], influence: float) -> list[float]:
    """Weights of at most `influence` times their median."""
    most = _bound(np.array(weights), influence)
    return [min(weight, most) for weight in weights]


def limit(updates: Sequence[Weighted], limits: Limits) -> Limited:
    """Weights and updates within `limits.influence`."""
    weights = capped([weight for _, weight in updates], limits.influence)
    pulls = [weight * each.norm for (each, _), weight in zip(updates, weights, strict=True)]
    bound = _bound(np.array(pulls), limits.influence)
    made, heavy, large = [], [], []
    for (each, claimed), weight, pull in zip(updates, weights, pulls, strict=True):
        if weight < claimed:
            heavy.append(each.device)
        if pull > bound:
            large.append(each.device)
            each = replace(each, payload=tree.scale(each.payload, np.float32(bound / pull)))
        made.append((each, weight))
    return Limited(made, tuple(heavy), tuple(large))


def _bound(values: np.ndarray, times: float) -> float:
    """`times` the median of the values above 0; infinity without such values, or if `times` is 0 (no limit)."""
    positive = values[values > 0]
    return times * float(np.median(positive)) if times and len(positive) else float("inf")
