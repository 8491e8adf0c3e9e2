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
exceeded, the updates and weights are returned unchanged. Medians have no order, so several servers that share their
norms and weights find the same limits as one server would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np

from federated import tree
from federated.config import Limits
from federated.server.replies import Received, Refused
from federated.tree import Array

__all__ = ["Bounds", "Limited", "bounds", "capped", "limit", "most"]

Weighted = tuple[Received, float]


class Bounds(NamedTuple):
    """The most that an update of a round may have: norm, weight, weight times norm. Infinite: no limit."""

    norm: float = inf
    weight: float = inf
    pull: float = inf


@dataclass(frozen=True)
class Limited:
    """Updates with weights; the devices whose update is refused, and those whose weight was cut or whose update was
    scaled down."""

    updates: list[Weighted]
    refused: dict[str, Refused] = field(default_factory=dict)
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


def bounds(norms: Array, weights: Array, limits: Limits, earlier: float = 0.0) -> Bounds:
    """What a round allows, from the norms and weights (float64 [n]) of all its updates, in any order. `earlier`: the
    largest median norm of the rounds before."""
    norm = max(most(norms, limits.outlier), limits.outlier * earlier)
    kept = norms <= norm
    weight = most(weights[kept], limits.influence)
    return Bounds(norm, weight, most(np.minimum(weights[kept], weight) * norms[kept], limits.influence))


def limit(updates: Sequence[Weighted], allowed: Bounds) -> Limited:
    """Updates and weights within these bounds."""
    made, refused, heavy, large = [], {}, [], []
    for each, claimed in updates:
        if each.norm > allowed.norm:
            refused[each.device] = Refused("outlier", f"expected a norm of at most {allowed.norm:g}, which is "
                                           f"limits.outlier times the median, got {each.norm:g}")  # fmt: skip
            continue
        weight = min(claimed, allowed.weight)
        pull = weight * each.norm
        if weight < claimed:
            heavy.append(each.device)
        if pull > allowed.pull:
            large.append(each.device)
            each = replace(each, payload=tree.scale(each.payload, np.float32(allowed.pull / pull)))
        made.append((each, weight))
    return Limited(made, refused, tuple(heavy), tuple(large))


def capped(weights: Sequence[float], influence: float) -> list[float]:
    """Weights of at most `influence` times their median."""
    highest = most(np.array(weights), influence)
    return [min(weight, highest) for weight in weights]


def most(values: Array, times: float) -> float:
    """`times` the median of the values above 0; infinity without such values, or if `times` is 0 (no limit)."""
    positive = values[values > 0]
    return times * float(np.median(positive)) if times and len(positive) else inf
