"""`Blend`: two elements made one, with labels in proportion.

Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018; Yun et al., "CutMix: Regularization strategy to
train strong classifiers with localizable features", ICCV 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cloud.data.augment.policy import as_floats, canonical, check_axes, check_share, restored
from cloud.data.augment.sampling import Array
from cloud.data.augment.table import KINDS
from cloud.data.draws import Draws
from cloud.data.transforms import Transform
from cloud.errors import DataError

__all__ = ["HOW", "Blend"]

HOW = ("mixup", "cutmix", "either")


@dataclass(frozen=True)
class Blend(Transform):
    """how: "mixup", the weighted mean of both; "cutmix", a part of the first replaced by that of the other: a rectangle
    of images, some of the time of spectra and series; "either": one of these, drawn for each element.

    The first one's share is drawn from Beta(alpha, alpha); with probability 1 - `chance` it is 1. `labels`: whole
    numbers, which become float32 [classes], or probabilities of that shape already. kind and axes: as in `Policy`;
    kind "" for mixup of anything. Raises DataError.
    """

    how: str
    on: str
    labels: str
    classes: int
    alpha: float = 1.0
    chance: float = 1.0
    kind: str = ""
    axes: str = ""
    rows: ClassVar[bool] = True
    seeded: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise DataError(f"how: expected one of {', '.join(HOW)}, got {self.how!r}")
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 2:
            raise DataError(f"classes: expected a whole number of at least 2, got {self.classes!r}")
        number = isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool)
        if not number or not math.isfinite(self.alpha) or not 0 < self.alpha <= 1000:
            raise DataError(f"alpha: expected a number above 0 and up to 1000, got {self.alpha!r}")
        check_share("chance", self.chance)
        if self.kind not in ("", *KINDS) or (self.how != "mixup" and not self.kind):
            raise DataError(f"kind: expected one of {', '.join(KINDS)} for {self.how}, got {self.kind!r}")
        if self.axes and not self.kind:
            raise DataError(f"axes: expected none without a kind, got {self.axes!r}")
        if self.kind:
            check_axes(self.kind, self.axes)
        if self.on == self.labels:
            raise DataError(f"on and labels: expected two values of an element, got {self.on!r} for both")
        as_floats(self, "alpha", "chance")

    @property
    def shown(self) -> str:
        """Its name in profiles and messages."""
        return f"{'mixup or cutmix' if self.how == 'either' else self.how} (alpha {self.alpha:g})"

    def __call__(self, columns: Mapping[str, Any], others: Mapping[str, Any], draws: Draws) -> dict[str, Any]:
        """Columns of elements and of the other one for each."""
        from scipy.special import betaincinv

        for name in (self.on, self.labels):
            if name not in columns:
                raise ValueError(f"expected elements with {name!r}, got {sorted(columns)}")
        share, chance, way, *corner = draws.uniform(5).T
        kept = np.clip(betaincinv(self.alpha, self.alpha, share), 0, 1)
        kept[chance >= self.chance] = 1.0
        x, other = np.asarray(columns[self.on]), np.asarray(others[self.on])
        cut = np.full(len(x), self.how == "cutmix") | ((self.how == "either") & (way < 0.5))
        made = x.copy()
        if not cut.all():
            made[~cut] = _mean(x[~cut], other[~cut], kept[~cut])
        if cut.any():
            made[cut], kept[cut] = self._cut(x[cut], other[cut], kept[cut], np.stack(corner)[:, cut])
        ours, theirs = (self._probabilities(np.asarray(part[self.labels])) for part in (columns, others))
        return {**columns, self.on: made, self.labels: _mean(ours, theirs, kept)}

    def _cut(self, x: Array, other: Array, kept: Array, centre: Array) -> tuple[Array, Array]:
        """Rows with parts of others, and what share of each is still its own."""
        ours, theirs = (canonical(part, self.kind, self.axes) for part in (x, other))
        length = {axis: ours.shape[1 + k] for k, axis in enumerate(KINDS[self.kind].letters)}
        sides = ("h", "w") if self.kind == "image" else ("t",)
        taken = np.ones((len(x), *(1,) * (ours.ndim - 1)), bool)
        for number, side in enumerate(sides):
            size, place = length[side], KINDS[self.kind].letters.index(side)
            width = np.sqrt(1 - kept) * size if len(sides) == 2 else (1 - kept) * size
            middle = centre[number] * size
            begin, end = (np.clip(np.rint(middle + sign * width / 2), 0, size)[:, None] for sign in (-1, 1))
            inside = (np.arange(size) >= begin) & (np.arange(size) < end)
            taken = taken & inside.reshape(len(x), *(size if k == place else 1 for k in range(ours.ndim - 1)))
        share = 1 - taken.reshape(len(x), -1).sum(1) / math.prod(length[side] for side in sides)
        return restored(np.where(taken, theirs, ours), x.shape, self.kind, self.axes), share

    def _probabilities(self, labels: Array) -> Array:
        if labels.ndim == 2 and labels.shape[1] == self.classes and labels.dtype.kind == "f":
            return labels.astype(np.float32)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ValueError(
                f"expected {self.labels!r} to be whole numbers or probabilities of {self.classes} classes, got "
                f"{labels.dtype}{list(labels.shape[1:])} in each element"
            )
        if labels.min() < 0 or labels.max() >= self.classes:
            raise ValueError(
                f"expected {self.labels!r} from 0 to {self.classes - 1}, got {labels.min()} to {labels.max()}"
            )
        hot = np.zeros((len(labels), self.classes), np.float32)
        hot[np.arange(len(labels)), labels] = 1
        return hot


def _mean(first: Array, second: Array, share: Array) -> Array:
    """share * first + (1 - share) * second by row, in their dtype."""
    if first.dtype.kind not in "iuf" and first.dtype.name != "bfloat16":
        raise ValueError(f"expected an array of numbers, got {first.dtype}")
    wide = np.result_type(first.dtype, np.float32)
    part = share.astype(wide).reshape(-1, *(1,) * (first.ndim - 1))
    made = second.astype(wide) + (first.astype(wide) - second.astype(wide)) * part
    made = np.where(part == 1, first.astype(wide), made)
    return (np.rint(made) if first.dtype.kind in "iu" else made).astype(first.dtype)
