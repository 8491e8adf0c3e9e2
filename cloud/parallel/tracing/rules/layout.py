"""Operators that only move elements. A dimension that is moved whole is a loop; one that is cut, padded, joined or
reversed is not, because its parts do not stay on their devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cloud.parallel.tracing.rules.nest import Nest, shapes, weave, whole

__all__ = ["broadcast", "join", "pad", "part", "reshape", "reverse", "separate", "squeeze", "stack", "tile",
           "transpose", "unstack", "update"]  # fmt: skip


def transpose(eqn: Any) -> Nest:
    """`transpose`: every dimension is a loop."""
    order = eqn.params["permutation"]
    return weave(eqn, [range(len(order))], [order], follows=True)


def squeeze(eqn: Any) -> Nest:
    """`squeeze`: every dimension but those of one element is a loop."""
    (shape,) = shapes(eqn.invars)
    kept = [d for d in range(len(shape)) if d not in eqn.params["dimensions"]]
    return weave(eqn, [range(len(shape))], [kept], follows=True)


def broadcast(eqn: Any) -> Nest:
    """Dimensions of the operand with the same length in the result are loops; so are the new ones, which read
    nothing."""
    (own, *_), (shape,) = shapes(eqn.invars), shapes(eqn.outvars)
    labels = [d if own[i] == shape[d] else None for i, d in enumerate(eqn.params["broadcast_dimensions"])]
    return weave(eqn, [labels, *([()] * (len(eqn.invars) - 1))], [range(len(shape))], follows=True)


def reverse(eqn: Any) -> Nest:
    """`rev`: dimensions that are not reversed are loops."""
    (shape,) = shapes(eqn.invars)
    labels = [None if d in eqn.params["dimensions"] else d for d in range(len(shape))]
    return weave(eqn, [labels], [labels], follows=True)


def reshape(eqn: Any) -> Nest:
    """If dimensions are merged or divided, the major ones of both sides form a loop: for (a, b) -> (a·b,) it has a
    trips, each a contiguous run of elements on both sides."""
    if eqn.params.get("dimensions") is not None:
        return whole(eqn)
    (own,), (shape,) = shapes(eqn.invars[:1]), shapes(eqn.outvars)
    if 0 in own:
        return whole(eqn)
    reads, writes = [None] * len(own), [None] * len(shape)  # type: list[int | None], list[int | None]
    sizes = {}
    for label, (left, right) in enumerate(_groups(own, shape)):
        reads[left] = writes[right] = label
        sizes[label] = math.gcd(own[left], shape[right])
    return weave(eqn, [reads, *([()] * (len(eqn.invars) - 1))], [writes], sizes=sizes, follows=True)


def _groups(own: Sequence[int], shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The major dimensions of each minimal run of dimensions with the same number of elements on both sides, without
    dimensions of size 1."""
    left = [d for d, size in enumerate(own) if size > 1]
    right = [d for d, size in enumerate(shape) if size > 1]
    while left and right:
        yield left[0], right[0]
        a, b = own[left.pop(0)], shape[right.pop(0)]
        while a != b:
            if a < b:
                a *= own[left.pop(0)]
            else:
                b *= shape[right.pop(0)]


def part(eqn: Any) -> Nest:
    """`slice`, `dynamic_slice`: dimensions taken whole are loops."""
    (own,), (shape,) = shapes(eqn.invars[:1]), shapes(eqn.outvars)
    labels = [d if size == shape[d] else None for d, size in enumerate(own)]
    return weave(eqn, [labels, *([()] * (len(eqn.invars) - 1))], [labels], follows=True)


def update(eqn: Any) -> Nest:
    """`dynamic_update_slice`: dimensions written whole are loops."""
    own, new, *starts = shapes(eqn.invars)
    labels = [d if size == new[d] else None for d, size in enumerate(own)]
    return weave(eqn, [labels, labels, *starts], [labels], follows=True)


def pad(eqn: Any) -> Nest:
    """`pad`: dimensions that are neither padded nor cut are loops."""
    still = [tuple(config) == (0, 0, 0) for config in eqn.params["padding_config"]]
    labels = [d if rests else None for d, rests in enumerate(still)]
    return weave(eqn, [labels, ()], [labels], follows=True)


def join(eqn: Any) -> Nest:
    """`concatenate`: dimensions along which nothing is joined are loops."""
    (shape,) = shapes(eqn.outvars)
    labels = [None if d == eqn.params["dimension"] else d for d in range(len(shape))]
    return weave(eqn, [labels] * len(eqn.invars), [labels], follows=True)


def separate(eqn: Any) -> Nest:
    """`split`: dimensions that are not divided are loops."""
    (shape,) = shapes(eqn.invars)
    labels = [None if d == eqn.params["axis"] else d for d in range(len(shape))]
    return weave(eqn, [labels], [labels] * len(eqn.outvars), follows=True)


def stack(eqn: Any) -> Nest:
    """`stack`: every dimension but the new one is a loop."""
    (shape,), axis = shapes(eqn.outvars), eqn.params["axis"]
    made = [None if d == axis else d for d in range(len(shape))]
    return weave(eqn, [[d for d in range(len(shape)) if d != axis]] * len(eqn.invars), [made], follows=True)


def unstack(eqn: Any) -> Nest:
    """`unstack`: every dimension but the one taken apart is a loop."""
    (shape,), axis = shapes(eqn.invars), eqn.params["axis"]
    read = [None if d == axis else d for d in range(len(shape))]
    return weave(eqn, [read], [[d for d in range(len(shape)) if d != axis]] * len(eqn.outvars), follows=True)


def tile(eqn: Any) -> Nest:
    """`tile`: dimensions that are not repeated are loops."""
    labels = [d if times == 1 else None for d, times in enumerate(eqn.params["reps"])]
    return weave(eqn, [labels], [labels], follows=True)
