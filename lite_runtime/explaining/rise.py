"""RISE: random masks, each counted by the score of what it leaves.

Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.explaining.layout import Layout
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["rise"]

_ROWS = 64


def rise(
    subject: Subject, x: Array, target: int, *, baseline: Array, layout: Layout, masks: int = 1000, cells: int = 7,
    kept: float = 0.5, seed: int = 0,
) -> Explanation:  # fmt: skip
    """The mean score of the sample under masks that keep an element, less the mean over all masks.

    masks: rows asked for. cells: of a mask along each place, enlarged linearly with a random shift; elements of tables
    and texts are kept or not each for itself. kept: the share that a mask keeps. Raises ExplainError for settings out
    of range.
    """
    x = subject.checked(x)
    if masks < 2 or cells < 1 or not 0 < kept < 1:
        raise ExplainError(f"expected 2 masks, 1 cell and 0 < kept < 1 at least, got {masks}, {cells} and {kept}")
    subject.needs(masks + 1, f"rise with {masks} masks", "use fewer masks")
    with Making(subject, "rise", target) as making:
        weighed, scores, weight = np.zeros(x.shape), 0.0, np.zeros(x.shape)
        for shown in _masks(layout, masks, cells, kept, np.random.default_rng(seed)):
            mixed = shown * x + (1 - shown) * baseline if x.dtype.kind == "f" else np.where(shown > 0.5, x, baseline)
            found = subject.scores(mixed)[:, target]
            weighed += np.tensordot(found, shown, 1)
            weight += shown.sum(0)
            scores += found.sum()
        # an element's mean minus the mean of all: masks have as many rows, so that scores need not be near 0
        found = np.divide(weighed, weight, out=np.full(x.shape, scores / masks), where=weight > 0) - scores / masks
        whole = subject.scores(x[None])[0, target]
        return making.done(found, whole, masks=masks, cells=cells, kept=kept, seed=seed)


def _masks(layout: Layout, count: int, cells: int, kept: float, random: np.random.Generator) -> Iterator[Array]:
    """Masks (rows, *shape) with values from 0 to 1."""
    single = layout.kind in ("table", "text")
    for start in range(0, count, _ROWS):
        rows = min(_ROWS, count - start)
        if single:
            sizes = [n if axis in layout.places else 1 for axis, n in enumerate(layout.shape)]
            yield np.broadcast_to(random.random((rows, *sizes)) < kept, (rows, *layout.shape)).astype(np.float64)
        else:
            yield np.stack([_enlarged(layout, cells, kept, random) for _ in range(rows)])


def _enlarged(layout: Layout, cells: int, kept: float, random: np.random.Generator) -> Array:
    extents = [layout.shape[axis] for axis in layout.places]
    counts = [min(cells, extent) for extent in extents]
    mask = (random.random([count + 1 for count in counts]) < kept).astype(np.float64)
    for axis, (extent, count) in enumerate(zip(extents, counts, strict=True)):
        at = (np.arange(extent) + random.random() * extent / count) * count / extent
        low = np.minimum(at.astype(np.int64), count - 1)
        share = np.clip(at - low, 0, 1).reshape([-1 if a == axis else 1 for a in range(mask.ndim)])
        mask = np.take(mask, low, axis) * (1 - share) + np.take(mask, low + 1, axis) * share
    wanted = [n if axis in layout.places else 1 for axis, n in enumerate(layout.shape)]
    return np.broadcast_to(mask.reshape(wanted), layout.shape)
