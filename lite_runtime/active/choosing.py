"""Which rows of a pool are worth a label, by a strategy's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lite_runtime.active.diversity import badge, k_center
from lite_runtime.active.uncertainty import bald, entropy, least_confident, margin
from lite_runtime.errors import InputError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["STRATEGIES", "Seen", "choose"]


class Seen(NamedTuple):
    """What is known of the n rows of a pool; a strategy needs some of it.

    probabilities: (n, classes). draws: (draws, n, classes), probabilities under random dropout. features: (n, size),
    what the last layer reads; labelled: (m, size), those of rows that have labels.
    """

    probabilities: Array | None = None
    draws: Array | None = None
    features: Array | None = None
    labelled: Array | None = None


class Strategy(NamedTuple):
    """needs: the fields of `Seen`. pick: what is seen, how many and a seed, to indices, the most worthy first."""

    needs: tuple[str, ...]
    pick: Callable[[Seen, int, int], Array]


def _best(score: Callable[[Array], Array], of: str) -> Strategy:
    """The rows with the highest scores; of equal ones the first."""
    return Strategy((of,), lambda seen, count, seed: np.argsort(-score(getattr(seen, of)), kind="stable")[:count])


def _random(seen: Seen, count: int, seed: int) -> Array:
    rows = len(seen.probabilities)  # type: ignore[arg-type]  # choose() has checked it
    return np.random.default_rng(seed).permutation(rows)[:count]


STRATEGIES: Mapping[str, Strategy] = {
    "least_confident": _best(least_confident, "probabilities"),
    "margin": _best(margin, "probabilities"),
    "entropy": _best(entropy, "probabilities"),
    "bald": _best(bald, "draws"),
    "coreset": Strategy(("features",), lambda seen, count, seed: k_center(seen.features, seen.labelled, count)),  # type: ignore[arg-type]
    "badge": Strategy(
        ("probabilities", "features"),
        lambda seen, count, seed: badge(seen.probabilities, seen.features, count, seed),  # type: ignore[arg-type]
    ),
    "random": Strategy(("probabilities",), _random),
}
"""Strategies by name; random is what others are compared with."""


def choose(strategy: str, count: int, seen: Seen, seed: int = 0) -> Array:
    """The indices (at most count,) of the rows to label, the most worthy first.

    Raises InputError for an unknown strategy, a count below 1, what the strategy needs and is not there, and values of
    wrong shapes.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}")
    if count < 1:
        raise InputError(f"expected to ask for at least 1 label, got {count}")
    needs, pick = STRATEGIES[strategy]
    if missing := [name for name in needs if getattr(seen, name) is None]:
        raise InputError(f"strategy {strategy!r}: it needs {' and '.join(missing)}, which are not there")
    return np.asarray(pick(seen, count, seed), np.int64)
