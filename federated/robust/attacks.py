"""Malicious devices, for tests and benchmarks of robust rules."""

from __future__ import annotations

from collections.abc import Collection

from federated import tree
from federated.server.rounds import seed_of
from federated.tree import Tree

__all__ = ["flipped", "liars"]


def liars(names: Collection[str], share: float, seed: int) -> set[str]:
    """The malicious `share` of devices, rounded to the nearest number; the same ones in every round."""
    ordered = sorted(names, key=lambda name: (seed_of(seed, "liar", name), name))
    return set(ordered[: round(share * len(ordered))])


def flipped(update: Tree, factor: float = 10.0) -> Tree:
    """The update that undoes `factor` such updates: its sign inverted and its length multiplied."""
    return tree.scale(update, -factor)
