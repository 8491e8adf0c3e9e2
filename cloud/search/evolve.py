"""Evolution of choices: NSGA-II (Deb et al. 2002) with limits, over accuracy by shared weights and cost on the device.

Of two choices within the limits that one dominates which is no worse in anything and better in something; a choice
within the limits dominates those beyond, and of these the one that exceeds them less dominates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cloud.search.cost import Cost
from cloud.search.space import Choice, Space

__all__ = ["Candidate", "beyond", "evolve", "front", "ranked"]

LIMITS = ("seconds", "file_bytes", "arena_bytes")
"""Fields of `Cost` that may be limited."""
_TRIES = 20
"""Draws of a child that no one has seen yet."""


class Candidate(NamedTuple):
    """A choice that was evaluated: the accuracy, or another figure, on the validation part with shared weights, and its
    cost."""

    choice: Choice
    accuracy: float
    cost: Cost


def beyond(cost: Cost, limits: Mapping[str, float]) -> dict[str, float]:
    """The limits that a cost exceeds, and how many times their value it is."""
    pairs = ((name, float(getattr(cost, name)) / limit) for name, limit in limits.items())
    return {name: share for name, share in pairs if share > 1}


def evolve(
    space: Space, evaluate: Callable[[Choice], Candidate], limits: Mapping[str, float], *, population: int,
    generations: int, seed: int, stop: Callable[[], bool] = lambda: False,
) -> list[Candidate]:  # fmt: skip
    """All candidates that were evaluated, in order. Choices follow from the seed and from what `evaluate` returned.
    `stop()` is asked before each evaluation."""
    draw = np.random.default_rng(seed)
    seen: dict[Choice, Candidate] = {}

    def add(choices: Sequence[Choice]) -> bool:
        for choice in choices:
            if choice not in seen:
                if stop():
                    return False
                seen[choice] = evaluate(choice)
        return True

    first = [space.smallest, space.largest]
    for _ in range(_TRIES * population):
        if len(first) >= population:
            break
        choice = space.random(draw)
        if choice not in first:
            first.append(choice)
    parents = list(first) if add(first) else []
    for _ in range(generations if parents else 0):
        held = [seen[choice] for choice in parents]
        order = {c.choice: place for place, c in enumerate(ranked(held, limits))}
        children: list[Choice] = []
        for _ in range(population):
            child = _child(space, parents, order, draw, {*seen, *children})
            if child is not None:
                children.append(child)
        if not children or not add(children):
            break
        pool = [seen[choice] for choice in (*parents, *children)]
        parents = [c.choice for c in ranked(pool, limits)[:population]]
    return list(seen.values())


def _child(
    space: Space, parents: Sequence[Choice], order: Mapping[Choice, int], draw: np.random.Generator, taken: set[Choice]
) -> Choice | None:
    """A new choice of two parents, each the better of two; None if none that is new was found."""
    for _ in range(_TRIES):
        pair = [min((parents[int(i)] for i in draw.integers(0, len(parents), 2)), key=order.__getitem__) for _ in "ab"]
        child = space.mutated(space.crossed(pair[0], pair[1], draw), draw)
        if child not in taken:
            return child
    return None


def _aims(candidate: Candidate, limits: Mapping[str, float]) -> tuple[float, ...]:
    """What is to be small: the error, the latency, and what else is limited."""
    more = [float(getattr(candidate.cost, name)) for name in LIMITS[1:] if name in limits]
    return (1 - candidate.accuracy, candidate.cost.seconds, *more)


def _excess(candidate: Candidate, limits: Mapping[str, float]) -> float:
    return sum(share - 1 for share in beyond(candidate.cost, limits).values())


def _dominates(one: Candidate, other: Candidate, limits: Mapping[str, float]) -> bool:
    mine, theirs = _excess(one, limits), _excess(other, limits)
    if mine or theirs:
        return mine < theirs
    a, b = _aims(one, limits), _aims(other, limits)
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def front(candidates: Sequence[Candidate], limits: Mapping[str, float]) -> list[Candidate]:
    """Those that no other dominates, fastest first."""
    best = [c for c in candidates if not any(_dominates(other, c, limits) for other in candidates)]
    return sorted(best, key=lambda c: c.cost.seconds)


def ranked(candidates: Sequence[Candidate], limits: Mapping[str, float]) -> list[Candidate]:
    """Front by front, within a front those first that are far from others."""
    left, made = list(candidates), []
    while left:
        best = front(left, limits)
        far = _crowding(best, limits)
        made += sorted(best, key=lambda c: far[c.choice], reverse=True)
        chosen = {c.choice for c in best}
        left = [c for c in left if c.choice not in chosen]
    return made


def _crowding(members: Sequence[Candidate], limits: Mapping[str, float]) -> dict[Choice, float]:
    """By choice: the distance between its neighbours in each aim, relative to the whole range; infinite at the ends."""
    far = {c.choice: 0.0 for c in members}
    for k in range(len(_aims(members[0], limits))):
        line = sorted(members, key=lambda c: _aims(c, limits)[k])
        low, high = (_aims(c, limits)[k] for c in (line[0], line[-1]))
        far[line[0].choice] = far[line[-1].choice] = float("inf")
        for before, own, after in zip(line, line[1:], line[2:], strict=False):
            far[own.choice] += (_aims(after, limits)[k] - _aims(before, limits)[k]) / ((high - low) or 1.0)
    return far
