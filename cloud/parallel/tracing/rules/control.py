"""Conditionals, closed loops, and what ties an opened loop's body to its surroundings (`tracing.bodies`).

The possible splits of a conditional or closed loop follow from its bodies.

Every dimension of every value inside, and every loop of every operator inside, is a point; a loop is joined with its
dimensions, and a carried value with itself in the next trip. A joined set is a loop of the whole equation if no
operator inside needs one of its dimensions whole or combines its partial results, and no value or operator has it
twice: splitting it then needs no communication inside. All others stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

from jax.extend import core

from cloud.parallel.tracing.inline import flat
from cloud.parallel.tracing.rules.nest import Nest, shapes, weave

__all__ = ["conditional", "repeated", "scan", "sliced", "stacked", "tied"]

Point = Hashable


Describe: TypeAlias = Callable[[Any], Nest]
"""An equation to its loops."""


class _Sets:
    """Disjoint sets of points, and which of them must not be split."""

    def __init__(self) -> None:
        self.parent: dict[Point, Point] = {}
        self.size: dict[Point, int] = {}
        self.blocked: set[Point] = set()

    def find(self, point: Point) -> Point:
        self.parent.setdefault(point, point)
        while self.parent[point] != point:
            self.parent[point] = self.parent[self.parent[point]]
            point = self.parent[point]
        return point

    def sized(self, point: Point, size: int) -> None:
        root = self.find(point)
        self.size[root] = math.gcd(self.size.get(root, 0), size)

    def join(self, one: Point, other: Point) -> None:
        a, b = self.find(one), self.find(other)
        if a != b:
            self.parent[b] = a
            self.size[a] = math.gcd(self.size.get(a, 0), self.size.pop(b, 0))

    def apart(self, points: Iterable[Point]) -> None:
        """If two of these are in one set, block it."""
        roots = [self.find(point) for point in points]
        self.blocked.update(root for root in roots if roots.count(root) > 1)

    def free(self) -> Callable[[Point], Point | None]:
        """The name of a point's set, None if it must not be split; valid after all joins."""
        whole = {self.find(point) for point in self.blocked}
        return lambda point: None if (root := self.find(point)) in whole else root


class _Inside:
    """The analysed bodies of one equation. describe: the loops of an equation inside (`rules.describe`)."""

    def __init__(self, describe: Describe) -> None:
        self.describe = describe
        self.sets = _Sets()
        self.sides: list[list[Point]] = []
        self.flops: list[float] = []

    def body(self, closed: Any) -> tuple[list[Any], list[Any]]:
        """Analyses a body; returns its arguments and results, to be joined with the outer values."""
        jaxpr = flat(closed).jaxpr
        flops = 0.0
        for var in (*jaxpr.constvars, *jaxpr.invars):
            self.value(var)
        for eqn in jaxpr.eqns:
            for var in eqn.outvars:
                self.value(var)
            nest = self.describe(eqn)
            flops += nest.flops
            self.operator(eqn, nest)
        self.flops.append(flops)
        return jaxpr.invars, jaxpr.outvars

    def value(self, atom: Any) -> None:
        (shape,) = shapes([atom])
        for d, size in enumerate(shape):
            self.sets.sized((atom, d), size)
        self.sides.append([(atom, d) for d in range(len(shape))])

    def operator(self, eqn: Any, nest: Nest) -> None:
        loops: list[Point] = [(len(self.sides), number) for number in range(len(nest.loops))]
        for point, loop in zip(loops, nest.loops, strict=True):
            self.sets.sized(point, loop.size)
            if loop.reduces:
                self.sets.blocked.add(point)
        self.sides.append(list(loops))
        for atom, labels in zip((*eqn.invars, *eqn.outvars), (*nest.reads, *nest.writes), strict=True):
            if isinstance(atom, core.Literal):
                continue
            for d, number in enumerate(labels):
                if number is None:
                    self.sets.blocked.add((atom, d))
                else:
                    self.sets.join(loops[number], (atom, d))

    def same(self, one: Any, other: Any, skip: int = 0) -> None:
        """Joins two equal values, without `skip` leading dimensions of `other`. A literal is the same everywhere."""
        if isinstance(one, core.Literal) or isinstance(other, core.Literal):
            return
        for d in range(len(shapes([one])[0])):
            self.sets.join((one, d), (other, d + skip))

    def nest(self, eqn: Any, flops: float, stacked: Sequence[Any] = ()) -> Nest:
        """The loops of the equation itself; the leading dimension of `stacked` values is whole."""
        for side in self.sides:
            self.sets.apart(side)
        for atom in (*eqn.invars, *eqn.outvars):
            if not isinstance(atom, core.Literal):
                self.sets.apart((atom, d) for d in range(len(shapes([atom])[0])))
        self.sets.blocked.update((atom, 0) for atom in stacked if not isinstance(atom, core.Literal))
        free = self.sets.free()

        def labels(atom: Any) -> list[Point | None]:
            rank = len(shapes([atom])[0])
            return [None] * rank if isinstance(atom, core.Literal) else [free((atom, d)) for d in range(rank)]

        reads, writes = [labels(atom) for atom in eqn.invars], [labels(atom) for atom in eqn.outvars]
        sizes = {label: self.sets.size[label] for each in (*reads, *writes) for label in each if label is not None}
        return weave(eqn, reads, writes, sizes=sizes, flops=flops)

    def outside(self, eqn: Any) -> None:
        for atom in {id(atom): atom for atom in (*eqn.invars, *eqn.outvars) if isinstance(atom, core.Var)}.values():
            self.value(atom)


def scan(eqn: Any, describe: Describe) -> Nest:
    """Carried values keep their split; scanned and stacked values are whole along the trips."""
    inside = _Inside(describe)
    inside.outside(eqn)
    held, kept = eqn.params["num_consts"], eqn.params["num_carry"]
    arguments, results = inside.body(eqn.params["jaxpr"])
    for i, (inner, outer) in enumerate(zip(arguments, eqn.invars, strict=True)):
        inside.same(inner, outer, skip=int(i >= held + kept))
    for i, (inner, outer) in enumerate(zip(results, eqn.outvars, strict=True)):
        inside.same(inner, outer, skip=int(i >= kept))
    for before, after in zip(arguments[held : held + kept], results[:kept], strict=True):
        inside.same(before, after)
    stacked = (*eqn.invars[held + kept :], *eqn.outvars[kept:])
    return inside.nest(eqn, inside.flops[0] * eqn.params["length"], stacked)


def repeated(eqn: Any, describe: Describe) -> Nest:
    """`while`: as a scan without stacked results. The number of trips is unknown; work is counted for one."""
    inside = _Inside(describe)
    inside.outside(eqn)
    asks, held = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carry = eqn.invars[asks + held :]
    asked, _ = inside.body(eqn.params["cond_jaxpr"])
    arguments, results = inside.body(eqn.params["body_jaxpr"])
    for inner, outer in zip(asked, (*eqn.invars[:asks], *carry), strict=True):
        inside.same(inner, outer)
    for inner, outer in zip(arguments, eqn.invars[asks:], strict=True):
        inside.same(inner, outer)
    for before, after, outer in zip(arguments[held:], results, eqn.outvars, strict=True):
        inside.same(before, after)
        inside.same(before, outer)
    return inside.nest(eqn, sum(inside.flops))


def conditional(eqn: Any, describe: Describe) -> Nest:
    """`cond`: operands and results are split in the same way in every branch; the work is that of the costliest
    branch."""
    inside = _Inside(describe)
    inside.outside(eqn)
    for branch in eqn.params["branches"]:
        arguments, results = inside.body(branch)
        for inner, outer in zip((*arguments, *results), (*eqn.invars[1:], *eqn.outvars), strict=True):
            inside.same(inner, outer)
    return inside.nest(eqn, max(inside.flops))


def tied(eqn: Any) -> Nest:
    """`loop_carry` and `loop_close`: one loop for each dimension."""
    dims = range(len(shapes(eqn.outvars)[0]))
    return weave(eqn, [[] if isinstance(atom, core.Literal) else dims for atom in eqn.invars], [dims])


def sliced(eqn: Any) -> Nest:
    """`loop_slice`: the stack is whole along the trips."""
    dims = range(len(shapes(eqn.outvars)[0]))
    return weave(eqn, [[None, *dims]], [dims])


def stacked(eqn: Any) -> Nest:
    """`loop_stack`: as `sliced`."""
    dims = range(len(shapes(eqn.invars)[0]))
    return weave(eqn, [dims], [[None, *dims]])
