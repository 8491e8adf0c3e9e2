"""`Policy` and `Apply`: transforms that change rows at random by the operations of `table`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cloud.data.augment.sampling import Array, Values
from cloud.data.augment.table import KINDS, LEVELS, Kind, Operation
from cloud.data.draws import Draws
from cloud.data.transforms import Transform
from cloud.errors import DataError
from federated.tables import closest

__all__ = ["Apply", "Policy", "as_floats", "canonical", "check_axes", "check_share", "restored"]


@dataclass(frozen=True)
class _Augmentation(Transform):
    """What both have: they take columns of numbers and keep their shape and dtype. Integers are rounded and clipped at
    the end."""

    rows: ClassVar[bool] = True
    seeded: ClassVar[bool] = True

    def _changed(self, value: Array, draws: Draws, said: Any, change: Any) -> Array:
        x = np.asarray(value)
        if x.dtype.kind not in "iuf" and x.dtype.name != "bfloat16":
            raise ValueError(f"expected an array of numbers, got {x.dtype}")
        work = canonical(x, said.kind, said.axes).astype(np.result_type(x.dtype, np.float32), order="C")
        low, high = said.range or (0.0, 255.0 if x.dtype == np.uint8 else 1.0)
        change(work, (low, high, said.fill))
        return restored(_as(work, x.dtype), x.shape, said.kind, said.axes)


@dataclass(frozen=True)
class Policy(_Augmentation):
    """`choose` operations, one after the other, drawn anew for each element from `operations` (none: the usual ones of
    the kind, see `table.KINDS`); 0: all of them, in this order.

    kind: "image", "spectrum" or "series". magnitude: 0 to 30, where 30 is the end of an operation's range; 9 as in
    torchvision's RandAugment. uniform: each use has a magnitude of its own, uniform between 0 and that. wide: the wider
    ranges of TrivialAugment. chance: the probability of each use. axes: the axes of an element, a letter each, "1" for
    one of size 1: image "hwc", "chw" or "hw", spectrum "ft", "tf", "1ft", …, series "ct", "tc", "c1t", "t", …; "": the
    kind's first. range: lowest and highest value of an image; (): 0 to 255 for uint8, else 0 to 1. fill: what fills
    empty places. Raises DataError.

    Sources: Cubuk et al., "RandAugment", CVPR workshops 2020: `Policy("image")`; Müller and Hutter, "TrivialAugment",
    ICCV 2021: `Policy("image", choose=1, magnitude=30, uniform=True, wide=True)`.
    """

    kind: str
    operations: tuple[str, ...] = ()
    choose: int = 2
    magnitude: float = 9.0
    uniform: bool = False
    wide: bool = False
    chance: float = 1.0
    axes: str = ""
    range: tuple[float, ...] = ()
    fill: float = 0.0

    def __post_init__(self) -> None:
        kind = _checked(self)
        if not isinstance(self.operations, tuple | list):
            raise DataError(f"operations: expected a tuple of names, got {self.operations!r}")
        object.__setattr__(self, "operations", tuple(self.operations))
        for name in self.operations:
            _operation(kind, self.kind, name)
        if isinstance(self.choose, bool) or not isinstance(self.choose, int) or not 0 <= self.choose <= 100:
            raise DataError(f"choose: expected a whole number from 0 (every operation) to 100, got {self.choose!r}")
        if not _finite(self.magnitude) or not 0 <= self.magnitude <= LEVELS:
            raise DataError(f"magnitude: expected a number from 0 to {LEVELS}, got {self.magnitude!r}")
        check_share("chance", self.chance)
        as_floats(self, "magnitude", "chance", "fill")

    @property
    def shown(self) -> str:
        """Its name in profiles and messages."""
        count = len(self.operations or KINDS[self.kind].usual)
        used = f"{self.choose} of {count}" if self.choose else f"all {count}"
        return f"policy {self.kind} ({used}, magnitude {'0 to ' if self.uniform else ''}{self.magnitude:g})"

    def __call__(self, value: Array, draws: Draws) -> Array:
        """Columns, and the streams of their rows."""

        def change(x: Array, values: Values) -> None:
            kind = KINDS[self.kind]
            names = self.operations or kind.usual
            for turn in range(self.choose or len(names)):
                part = draws.part(turn)
                level, chance, pick = part.uniform(3).T
                levels = self.magnitude / LEVELS * (level if self.uniform else np.ones(len(x)))
                which = (pick * len(names)).astype(np.intp) if self.choose else np.full(len(x), turn)
                which[chance >= self.chance] = -1
                for number in np.unique(which[which >= 0]):
                    operation = kind.operations[names[number]]
                    most = operation.widest if self.wide else operation.most
                    _used(operation, x, which == number, levels * most, part.part(1), values)

        return self._changed(value, draws, self, change)


@dataclass(frozen=True)
class Apply(_Augmentation):
    """One operation in its own unit: by an amount that is uniform between 0 and `amount` (both signs where it has
    signs), with the probability `chance`; `amount` is 0 for operations without one. The rest is as in `Policy`."""

    kind: str
    operation: str
    amount: float = 0.0
    chance: float = 1.0
    axes: str = ""
    range: tuple[float, ...] = ()
    fill: float = 0.0

    def __post_init__(self) -> None:
        operation = _operation(_checked(self), self.kind, self.operation)
        has = operation.most > 0
        if not _finite(self.amount) or self.amount < 0 or (self.amount > 0) != has:
            wanted = f"a number above 0 ({operation.unit})" if has else "0, as this operation has no amount"
            raise DataError(f"amount of {self.operation!r}: expected {wanted}, got {self.amount!r}")
        if operation.unit.startswith(("share", "probability", "bits")) and self.amount > max(operation.widest, 1.0):
            most = max(operation.widest, 1.0)
            raise DataError(
                f"amount of {self.operation!r}: expected at most {most:g} ({operation.unit}), got {self.amount}"
            )
        check_share("chance", self.chance)
        as_floats(self, "amount", "chance", "fill")

    @property
    def shown(self) -> str:
        """Its name in profiles and messages."""
        return f"{self.operation} of {self.kind}" + (f" (up to {self.amount:g})" if self.amount else "")

    def __call__(self, value: Array, draws: Draws) -> Array:
        """Columns, and the streams of their rows."""

        def change(x: Array, values: Values) -> None:
            level, chance = draws.uniform(2).T
            operation = KINDS[self.kind].operations[self.operation]
            _used(operation, x, chance < self.chance, level * self.amount, draws.part(1), values)

        return self._changed(value, draws, self, change)


def _used(operation: Operation, x: Array, where: Array, amount: Array, draws: Draws, values: Values) -> None:
    """Change rows of x by an operation; those with the amount 0 stay as they are."""
    rows = np.flatnonzero(where & (amount > 0) if operation.most else where)
    if not len(rows):
        return
    part, chosen = draws.rows(rows), amount[rows]
    if operation.signed:
        chosen = np.where(part.part(0).uniform() < 0.5, -chosen, chosen)
    x[rows] = operation.change(x[rows], chosen, part, values)


def canonical(x: Array, kind: str, axes: str) -> Array:
    """Columns (n, …) with the axes in the kind's order, channels among them. Raises ValueError for others, and for
    images of more than 4 channels if `axes` does not say so: their channels may come first."""
    letters, told, axes = KINDS[kind].letters, bool(axes), axes or KINDS[kind].axes
    sizes = list(zip(axes, x.shape[1:], strict=False))
    most = {"1": 1} if told or kind != "image" else {"c": 4}
    if x.ndim != len(axes) + 1 or any(size > most.get(axis, size) for axis, size in sizes):
        raise ValueError(
            f"expected elements with the axes {axes!r}, got the shape {list(x.shape[1:])}; say which axes they have "
            f"with axes=, a letter of {letters!r} or 1 for each, and augment before .batch(…)"
        )
    kept = [axis for axis in axes if axis != "1"]
    x = x.reshape(len(x), *(size for axis, size in sizes if axis != "1"))
    x = x.transpose(0, *(1 + kept.index(axis) for axis in letters if axis in kept))
    return x if "c" in kept else np.expand_dims(x, 1 + letters.index("c"))


def restored(x: Array, shape: tuple[int, ...], kind: str, axes: str) -> Array:
    """The reverse of `canonical`."""
    letters, axes = KINDS[kind].letters, axes or KINDS[kind].axes
    there = [axis for axis in letters if axis in axes]
    x = x if "c" in there else x.squeeze(1 + letters.index("c"))
    return x.transpose(0, *(1 + there.index(axis) for axis in axes if axis != "1")).reshape(shape)


def _as(x: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = np.clip(np.rint(x), limits.min, limits.max)
    return x.astype(dtype, copy=False)


def _checked(said: Any) -> Kind:
    """The kind; what both transforms have is checked."""
    if said.kind not in KINDS:
        raise DataError(f"kind: expected one of {', '.join(KINDS)}, got {said.kind!r}")
    kind = KINDS[said.kind]
    check_axes(said.kind, said.axes)
    values = tuple(said.range) if isinstance(said.range, tuple | list) else None
    if values is None or (values and not (len(values) == 2 and all(map(_finite, values)) and values[0] < values[1])):
        raise DataError(f"range: expected the lowest and the highest value, such as (0.0, 1.0), got {said.range!r}")
    if values and not kind.ranged:
        raise DataError(f"range: expected none for kind {said.kind!r}, whose operations need none, got {said.range!r}")
    object.__setattr__(said, "range", tuple(map(float, values)))
    if not _finite(said.fill):
        raise DataError(f"fill: expected a number, got {said.fill!r}")
    return kind


def check_axes(kind: str, axes: str) -> None:
    """Raise DataError unless they are a letter each, with all that operations need."""
    letters = KINDS[kind].letters
    needed = letters.replace("c", "")
    named = isinstance(axes, str) and all(axes.count(letter) == 1 for letter in needed)
    if axes and not (named and axes.count("c") <= 1 and set(axes) <= {*letters, "1"}):
        raise DataError(
            f"axes: expected {needed!r} in any order, with c for channels and 1 for axes of size 1, such as "
            f"{KINDS[kind].axes!r}, for kind {kind!r}; got {axes!r}"
        )


def as_floats(said: Any, *names: str) -> None:
    """Fields of a frozen dataclass as floats, as they are in files."""
    for name in names:
        object.__setattr__(said, name, float(getattr(said, name)))


def check_share(name: str, value: Any) -> None:
    """Raise DataError unless it is a number from 0 to 1."""
    if not _finite(value) or not 0 <= value <= 1:
        raise DataError(f"{name}: expected a number from 0 to 1, got {value!r}")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _operation(kind: Kind, name: str, wanted: Any) -> Operation:
    if not isinstance(wanted, str) or wanted not in kind.operations:
        raise DataError(f"operations: {name!r} has no operation {wanted!r}{closest(str(wanted), kind.operations)}")
    return kind.operations[wanted]
