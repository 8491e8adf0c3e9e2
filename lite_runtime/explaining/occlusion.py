"""Occlusion: how much the score falls when a window of the sample is covered.

Zeiler and Fergus 2014, "Visualizing and Understanding Convolutional Networks".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["occlusion", "windows_of"]

_ROWS = 64


def occlusion(
    subject: Subject,
    x: Array,
    target: int,
    *,
    baseline: Array,
    window: Sequence[int],
    stride: Sequence[int] | None = None,
) -> Explanation:
    """The fall of the score for each window at the baseline's values, averaged over the windows that cover an element.

    window, stride: elements along each axis of the sample; stride by default half a window, rounded up. Raises
    ExplainError for sizes that do not fit, and if a stride would leave elements out.
    """
    x = subject.checked(x)
    window = tuple(window)
    stride = tuple(-(-size // 2) for size in window) if stride is None else tuple(stride)
    places = list(windows_of(x.shape, window, stride))
    subject.needs(len(places) + 1, f"occlusion with {len(places)} windows", "use larger windows or strides")
    with Making(subject, "occlusion", target) as making:
        whole = subject.scores(x[None])[0, target]
        total, covered = np.zeros(x.shape), np.zeros(x.shape)
        for start in range(0, len(places), _ROWS):
            part = places[start : start + _ROWS]
            changed = np.repeat(x[None], len(part), axis=0)
            for row, place in zip(changed, part, strict=True):
                row[place] = baseline[place]
            for fall, place in zip(whole - subject.scores(changed)[:, target], part, strict=True):
                total[place] += fall
                covered[place] += 1
        return making.done(total / covered, whole, window=window, stride=stride)


def windows_of(shape: Sequence[int], window: Sequence[int], stride: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """The windows along all axes, the last ones cut off at the end."""
    sizes = list(zip(shape, window, stride, strict=False))
    if not len(shape) == len(window) == len(stride) or any(not 1 <= s <= w <= n for n, w, s in sizes):
        raise ExplainError(
            f"expected a window and a stride for each axis of {list(shape)}, with 1 <= stride <= window <= size, got "
            f"{list(window)} and {list(stride)}"
        )
    starts = (range(0, n - w + s, s) for n, w, s in sizes)
    for corner in product(*starts):
        yield tuple(slice(at, min(at + w, n)) for at, (n, w, _) in zip(corner, sizes, strict=True))
