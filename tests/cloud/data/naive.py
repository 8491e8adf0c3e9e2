"""The meaning of data pipelines, defined with lists: every element of an epoch in order. Slow and obvious."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import count
from typing import Any

import numpy as np

from cloud.data import ir
from cloud.data.columns import one, stack, tree_map
from cloud.data.draws import Draws

Keyed = list[tuple[tuple[int, ...], Any]]


def meaning(node: ir.Node, *path: int) -> Keyed:
    """Pairs of where an element comes from and the element, in the epoch `path` = (seed, epoch, repetition, …)."""
    match node:
        case ir.Arrays(arrays):
            size = len(next(iter(arrays.values())))
            return [((i,), {name: a[i] for name, a in arrays.items()}) for i in range(size)]
        case ir.Items(make) | ir.Iterable(make):
            made = make.call()
            each = made if isinstance(node, ir.Iterable) else (made[i] for i in range(len(made)))
            return [((i,), e) for i, e in enumerate(each)]
        case ir.Map(of, steps):
            found = meaning(of, *path)
            for step in steps:
                found = [(key, mapped(step, key, e, path)) for key, e in found]
            return found
        case ir.Blend(of, function, salt):
            found, blended = meaning(of, *path), []
            for key, e in found:
                state = state_of((*path, 2**31 + salt, *key))
                other = found[int(next(numbers(fold(state, 1))) * len(found))][1]
                draws = Draws(np.array([fold(state, 2)], np.uint64))
                blended.append((key, one(function.call(column(e), column(other), draws), 0)))
            return blended
        case ir.Filter(of, function, on, rows):
            step = ir.Step(function, "", rows)
            return [(k, e) for k, e in meaning(of, *path) if mapped(step, k, e[on] if on else e, path)]
        case ir.Shuffle(of, seed, salt):
            found = meaning(of, *path)
            entropy = (path[0] if seed is None else seed, *path[1:], *([2**30 + salt] if salt else []))
            return [found[i] for i in np.random.default_rng(entropy).permutation(len(found))]
        case ir.Repeat(of, times):
            return [((k, *key), e) for k in range(times) for key, e in meaning(of, *path, k)]
        case ir.Slice(of, start, stop, step):
            return meaning(of, *path)[start:stop:step]
        case ir.Batch(of, size, last):
            found = meaning(of, *path)
            return [
                batch(found, start, size, last)
                for start in range(0, len(found), size)
                if last == "pad" or start + size <= len(found)
            ]
        case ir.Zip(of):
            rows = zip(*(meaning(n, *path) for n in of), strict=False)
            return [(sum((k for k, _ in row), ()), {n: v for _, e in row for n, v in e.items()}) for row in rows]
        case ir.Mix(of, weights):
            return mixed([meaning(n, *path) for n in of], weights)
        case ir.Prefetch(of):
            return meaning(of, *path)
    raise AssertionError(node)


def mapped(step: ir.Step, key: tuple[int, ...], element: Any, path: tuple[int, ...]) -> Any:
    value = element[step.on] if step.on else element
    if step.rows:
        state = state_of((*path, 2**31 + step.salt, *key))
        extra = (Draws(np.array([state], np.uint64)),) if step.seeded else ()
        result = one(step.function.call(column(value), *extra), 0)
    elif step.seeded:
        result = step.function.call(value, np.random.default_rng((*path, 2**31 + step.salt, *key)))
    else:
        result = step.function.call(value)
    return {**element, step.on: result} if step.on else result


def column(value: Any) -> Any:
    return tree_map(lambda leaf: np.asarray(leaf)[None], value)


# -- the streams of `cloud.data.draws`, with Python's integers ---------------------------------------------------------

MASK, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def fold(state: int, value: int) -> int:
    return mix((state + GOLDEN & MASK) ^ mix(value + GOLDEN & MASK))


def state_of(parts: tuple[int, ...]) -> int:
    return reduce(fold, parts, 0)


def numbers(state: int) -> Iterator[float]:
    """Uniform numbers of a stream."""
    return ((mix(state + k * GOLDEN & MASK) >> 11) / 2**53 for k in count(1))


def batch(found: Keyed, start: int, size: int, last: str) -> tuple[tuple[int, ...], Any]:
    there = found[start : start + size]
    filled = [*there, *(found[i % len(found)] for i in range(size - len(there)))]
    columns = stack([e for _, e in filled])
    mask = {"mask": (np.arange(size) < len(there)).astype(np.float32)} if last == "pad" else {}
    return there[0][0], {**columns, **mask}


def mixed(of: list[Keyed], weights: tuple[float, ...]) -> Keyed:
    """Whose next element is due the earliest, element j of a share w at (j + ½)/w, comes next."""
    taken, out = [0] * len(of), []
    for _ in count():
        which = min(range(len(of)), key=lambda k: ((taken[k] + 0.5) / weights[k], k))
        if taken[which] == len(of[which]):
            return out
        key, element = of[which][taken[which]]
        out.append(((which, *key), element))
        taken[which] += 1
    raise AssertionError
