"""How a rule describes the loops of an operator: a label for every dimension, like the letters of an einsum."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloud.parallel.graph import Loop

__all__ = ["Labels", "Nest", "elements", "shapes", "weave", "whole"]

Labels = Sequence[Hashable | None]
"""For one operand or result: the loop of each dimension; None if it must be whole."""


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops, reads, writes, the sliding loop and its edges as in `graph.Op`."""

    loops: tuple[Loop, ...]
    reads: tuple[tuple[int | None, ...], ...]
    writes: tuple[tuple[int | None, ...], ...]
    flops: float = 0.0
    follows: bool = False
    slides: int = -1
    edges: tuple[int, int] = (0, 0)


def shapes(atoms: Iterable[Any]) -> list[tuple[int, ...]]:
    """Shapes of operands or results; () for values that are not arrays (tokens)."""
    return [tuple(getattr(atom.aval, "shape", ())) for atom in atoms]


def elements(atoms: Iterable[Any]) -> int:
    """Elements of all together."""
    return sum(math.prod(shape) for shape in shapes(atoms))


def weave(eqn: Any, reads: Sequence[Labels], writes: Sequence[Labels], *, sizes: Mapping[Any, int] | None = None,
          reduces: Mapping[Any, str] | None = None, flops: float = 0.0, follows: bool = False,
          slides: Hashable = None, edges: tuple[int, int] = (0, 0)) -> Nest:  # fmt: skip
    """The nest whose loops are the labels. The trips of a loop are given by `sizes`, else the greatest common
    divisor of its dimensions; loops of one trip are omitted, because they cannot be split."""
    given, trips = dict(sizes or {}), dict[Hashable, int]()
    every = [*zip(reads, shapes(eqn.invars), strict=True), *zip(writes, shapes(eqn.outvars), strict=True)]
    for labels, shape in every:
        for label, size in zip(labels, shape, strict=True):
            if label is not None:
                trips[label] = math.gcd(trips.get(label, 0), given.get(label, size))
    names = [label for label, size in trips.items() if size > 1]
    numbers = {label: number for number, label in enumerate(names)}
    loops = tuple(Loop(trips[name], (reduces or {}).get(name, "")) for name in names)

    def numbered(all_labels: Sequence[Labels]) -> tuple[tuple[int | None, ...], ...]:
        return tuple(tuple(numbers.get(label) for label in labels) for labels in all_labels)

    return Nest(loops, numbered(reads), numbered(writes), flops, follows, numbers.get(slides, -1), edges)


def whole(eqn: Any, flops: float = 0.0) -> Nest:
    """No dimension may be split: correct for any operator."""
    reads = tuple((None,) * len(shape) for shape in shapes(eqn.invars))
    writes = tuple((None,) * len(shape) for shape in shapes(eqn.outvars))
    return Nest((), reads, writes, flops)
