"""Folding of repeated blocks, so that each is decided once.

The groups of a deep network are mostly copies of one another. Colour refinement (Weisfeiler and Lehman, 1968) gives
every group a colour from its own structure and, round by round, from its neighbours'; groups of one colour form one
*class*. After `ROUNDS` rounds, two groups of a class have the same neighbourhood up to that distance; with more rounds
every layer would finally differ by its distance from the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from cloud.parallel.graph import Graph
from cloud.parallel.searching.grouping.groups import Group

__all__ = ["ROUNDS", "Flow", "Folded", "Place", "folded"]

ROUNDS = 1

Place = tuple[int, int, int]
"""Where a value is made or read: (class, position in its group's `ops`, result or operand). Inputs are made at position
-1; carried values are read there."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that other groups read. `readers`: the places in those groups. `value`: one of the `weight` similar
    values that this flow represents."""

    value: int
    maker: Place
    readers: tuple[Place, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class Folded:
    """`classes[c]`: the groups of a class; the first represents all. `of[g]`: the class of group g. `made_at[v]`: where
    value v is made. `flows`: similar ones merged. `flow_of`: (value, far) -> index in `flows`; `far` numbers the
    reading times of a value that is copied again for each of them (`Plan.regather`)."""

    classes: tuple[tuple[int, ...], ...]
    of: tuple[int, ...]
    made_at: Mapping[int, Place]
    flows: tuple[Flow, ...]
    flow_of: Mapping[tuple[int, int], int]


def folded(graph: Graph, groups: Sequence[Group], marks: Sequence[Hashable], far: Mapping[tuple[int, int], int],
           rounds: int = ROUNDS) -> Folded:  # fmt: skip
    """`marks[g]`: a further key of group g (its constraints). `far[k, i]`: the reading time of operand i of operator k,
    0 if absent. `rounds` < 0: nothing is folded."""
    links = _links(graph, groups)
    each = range(len(groups))
    colours = list(each) if rounds < 0 else _refined(_own(graph, groups, marks, links), links, rounds)
    classes: dict[int, list[int]] = {}
    for g, colour in enumerate(colours):
        classes.setdefault(colour, []).append(g)
    number = {colour: c for c, colour in enumerate(classes)}
    of = tuple(number[colour] for colour in colours)
    made_at = {v: (of[g], at, j) for v, (g, at, j) in links.made.items()}
    counted: Counter[tuple[Place, tuple[Place, ...]]] = Counter()
    first: dict[tuple[Place, tuple[Place, ...]], int] = {}
    keys: dict[tuple[int, int], tuple[Place, tuple[Place, ...]]] = {}
    for value, readers in links.readers.items():
        by_time: dict[int, set[Place]] = {}
        for g, at, i in readers:
            time = far.get((groups[g].ops[at], i), 0) if at >= 0 else 0
            by_time.setdefault(time, set()).add((of[g], at, i))
        for time, places in by_time.items():
            key = made_at[value], tuple(sorted(places))
            counted[key] += 1
            first.setdefault(key, value)
            keys[value, time] = key
    index = {key: n for n, key in enumerate(counted)}
    flows = tuple(Flow(first[key], *key, weight) for key, weight in counted.items())
    return Folded(tuple(map(tuple, classes.values())), of, made_at, flows, {at: index[key] for at, key in keys.items()})


@dataclass(frozen=True, slots=True)
class _Links:
    """As `Place`, but with groups instead of classes: where a value is made, and where other groups read it."""

    made: dict[int, Place]
    readers: dict[int, list[Place]]
    inside: dict[Place, Place]


def _links(graph: Graph, groups: Sequence[Group]) -> _Links:
    made: dict[int, Place] = {}
    for g, group in enumerate(groups):
        if group.value >= 0:
            made[group.value] = (g, -1, 0)
        for at, k in enumerate(group.ops):
            made.update({v: (g, at, j) for j, v in enumerate(graph.ops[k].outputs)})
    readers: dict[int, list[Place]] = {}
    inside: dict[Place, Place] = {}
    for g, group in enumerate(groups):
        for at, k in enumerate(group.ops):
            for i, v in enumerate(graph.ops[k].inputs):
                if v in made and made[v][0] == g:
                    inside[g, at, i] = made[v]
                elif v in made:
                    readers.setdefault(v, []).append((g, at, i))
    entry = {group.value: g for g, group in enumerate(groups) if group.value >= 0}
    for value, argument in zip(graph.leaving, graph.carried, strict=True):
        if argument is not None and value in made and value != graph.entering[argument]:
            readers.setdefault(value, []).append((entry[graph.entering[argument]], -1, 0))
    return _Links(made, readers, inside)


def _own(graph: Graph, groups: Sequence[Group], marks: Sequence[Hashable], links: _Links) -> list[Hashable]:
    """The structure of each group by itself."""
    results = {value for value, argument in zip(graph.leaving, graph.carried, strict=True) if argument is None}

    def described(g: int, group: Group) -> Hashable:
        entering = graph.values[group.value] if group.value >= 0 else None
        position = {k: at for at, k in enumerate(group.ops)}
        deciders = {m.op: (m.operand, position.get(m.reader[0], -1), m.reader[1]) for m in group.members}
        ops = tuple(
            (
                op.primitive, op.loops, op.reads, op.writes, op.edges, op.follows, op.times, deciders.get(k),
                tuple((graph.values[v].shape, graph.values[v].dtype.str) if v >= 0 else None for v in op.inputs),
                tuple((graph.values[v].shape, graph.values[v].dtype.str, v in results) for v in op.outputs),
                tuple(links.inside.get((g, at, i), (0, -2, 0))[1:] for i in range(len(op.inputs))),
            )
            for at, k in enumerate(group.ops) for op in (graph.ops[k],)
        )  # fmt: skip
        return marks[g], entering and (entering.shape, entering.dtype.str, entering.kind), ops

    return [described(g, group) for g, group in enumerate(groups)]


def _refined(own: Sequence[Hashable], links: _Links, rounds: int) -> list[int]:
    colours = _numbered(own)
    for _ in range(rounds):
        seen: list[list[Hashable]] = [[] for _ in own]
        for value, readers in links.readers.items():
            maker, at, j = links.made[value]
            for reader, r_at, i in readers:
                seen[maker].append((0, at, j, colours[reader], r_at, i))
                seen[reader].append((1, r_at, i, colours[maker], at, j))
        colours = _numbered([(colour, tuple(sorted(set(near)))) for colour, near in zip(colours, seen, strict=True)])  # type: ignore[type-var]
    return colours


def _numbered(things: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(thing, len(numbers)) for thing in things]
