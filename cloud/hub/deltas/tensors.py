"""How a changed tensor is predicted from the old one: whatever gives the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.updates.delta.elements import (
    CLASSES,
    KINDS,
    ONE,
    Kind,
    Layout,
    extra_bits,
    integers,
    predicted,
    symbols_of,
)
from lite_runtime.updates.delta.layout import MAX_FACTORS

__all__ = ["Coded", "coded", "symbols_in"]

_KINDS: Mapping[str, tuple[int, ...]] = {
    "int8": (1,),
    "int4": (1,),
    "uint8": (0, 2),
    "uint4": (0, 2),
    "bool": (2,),
    "int16": (3,),
    "uint16": (3,),
    "float16": (4,),
    "bfloat16": (4,),
    "int32": (5,),
    "uint32": (5,),
    "float32": (6,),
}
"""By dtype of a bundle the kinds to try. Bytes may hold two elements of 4 bits each."""
_SAMPLE = 1 << 20
"""Elements at most that an estimate looks at."""
_ROUNDS = 8


class Coded(NamedTuple):
    """A tensor's layout, and about how many bytes it takes."""

    layout: Layout
    size: float


def coded(old: bytes, new: bytes, dtype: str, shape: tuple[int, ...]) -> Coded | None:
    """The best of the ways to code `new`, of as many bytes as `old`; None if there is none for this dtype."""
    found = [_of_kind(old, new, KINDS[number], shape) for number in _KINDS.get(dtype, ())]
    return min(found, key=lambda one: one.size, default=None)


def _of_kind(old: bytes, new: bytes, kind: Kind, shape: tuple[int, ...]) -> Coded:
    rows, columns = shape if len(shape) == 2 else shape[:2] if len(shape) > 2 else (1, shape[0] if shape else 1)
    sides = rows, columns, 8 * len(old) // (kind.bits * rows * columns)
    zero = 128 if kind == KINDS[2] else 0
    sample = _Sample.of(old, new, kind, sides)
    options = []
    for axes in _axes(kind, sides):
        factors = _fitted(old, new, kind, zero, sides, axes) if any(axes) else (None, None)
        options.append(_classed(sample, Layout(kind, sides, zero, *factors)))
    return min(options, key=lambda one: one.size)


class _Sample(NamedTuple):
    """Some rows of a tensor, whose elements are estimated in place of all. share: how many times as many there are."""

    rows: Array
    before: Array
    after: Array
    share: float

    @classmethod
    def of(cls, old: bytes, new: bytes, kind: Kind, sides: tuple[int, int, int]) -> _Sample:
        """Rows at equal distances; all of a small tensor."""
        rows, columns, inner = sides
        width = columns * inner * kind.bits
        step = 1 if width % 8 else max(1, rows * columns * inner // _SAMPLE)
        if step == 1:
            return cls(np.arange(rows), integers(old, kind), integers(new, kind), 1.0)
        chosen = np.arange(0, rows, step)
        tables = [np.frombuffer(side, np.uint8).reshape(rows, width // 8) for side in (old, new)]
        before, after = (integers(table[chosen].tobytes(), kind) for table in tables)
        return cls(chosen, before, after, rows / len(chosen))

    def layout(self, layout: Layout) -> Layout:
        """The layout of these rows alone."""
        factors = None if layout.rows is None else layout.rows[self.rows]
        return layout._replace(shape=(len(self.rows), *layout.shape[1:]), rows=factors)


def _axes(kind: Kind, sides: tuple[int, int, int]) -> Iterator[tuple[bool, bool]]:
    """Whether rows and columns have factors, all ways worth trying."""
    able = kind.places > 1 and kind.bits > 4
    for axes in ((False, False), (True, False), (False, True), (True, True)):
        if not any(axes) or (able and all(2 <= n <= MAX_FACTORS for n, on in zip(sides, axes, strict=False) if on)):
            yield axes


def _fitted(
    old: bytes, new: bytes, kind: Kind, zero: int, sides: tuple[int, int, int], axes: tuple[bool, bool]
) -> tuple[Array | None, Array | None]:
    """Factors of rows and columns by alternating least squares, in fixed point."""
    before, after = ((np.frombuffer(side, kind.stored).astype(np.float32) - zero).reshape(sides) for side in (old, new))
    cross, square = (np.einsum("ijk,ijk->ij", before, each).astype(np.float64) for each in (after, before))
    factors = [np.ones(sides[0]), np.ones(sides[1])]
    for _ in range(_ROUNDS if all(axes) else 1):
        for axis in (0, 1):
            if axes[axis]:
                other = factors[1 - axis]
                top, bottom = (cross, square) if axis == 0 else (cross.T, square.T)
                bottom = bottom @ (other * other)
                factors[axis] = np.where(bottom > 0, (top @ other) / np.maximum(bottom, 1e-9), 1.0)
    whole = [np.clip(np.rint(ONE * one), -8 * ONE, 8 * ONE).astype(np.int64) for one in factors]
    return (whole[0] if axes[0] else None), (whole[1] if axes[1] else None)


def _classed(sample: _Sample, layout: Layout) -> Coded:
    """A layout with the classes of its differences, for all columns or each by itself."""
    kind, (rows, columns, inner) = layout.kind, layout.shape
    own = sample.layout(layout)
    predictions, _ = predicted(sample.before, own, 0)
    half = 1 << kind.bits - 1
    sizes = np.abs((sample.after - predictions + half & 2 * half - 1) - half).reshape(own.shape)
    given = [one for one in (layout.rows, layout.columns) if one is not None]
    side = sum(np.log2(1 + np.abs(one - ONE)).sum() / 8 + len(one) / 8 for one in given)
    options: list[tuple[Array, Array | None, float]] = [(_class(sizes.mean(), kind), None, side)]
    if rows * inner >= 16 and 2 <= columns <= MAX_FACTORS:
        classes = _class(sizes.mean((0, 2)), kind)
        options.append((np.zeros((), np.int64), classes, side + _entropy(np.unique(classes, return_counts=True)[1])))
    found = []
    for base, each, extra in options:
        size = _estimate(sample, own._replace(base=int(base), classes=each)) + extra
        found.append(Coded(layout._replace(base=int(base), classes=each), size))
    return min(found, key=lambda one: one.size)


def _class(mean: Array, kind: Kind) -> Array:
    """The class whose first counts suit differences of this mean magnitude."""
    exact = np.log2(np.maximum(mean, 1e-9))
    classes = 8 + 2 * exact if kind.bits <= 8 else 2 + exact / 2
    made: Array = np.clip(np.rint(classes), 0, CLASSES - 1).astype(np.int64)
    return made


def _estimate(sample: _Sample, layout: Layout) -> float:
    """About the bytes that the differences take."""
    symbols, contexts, _ = symbols_in(sample.before, sample.after, layout, 0)
    count = layout.kind.symbols
    cells = np.bincount(contexts * count + symbols, minlength=CLASSES * layout.kind.places * count)
    table = cells.reshape(-1, count)
    table = table[table.any(1)]
    learning = sum(np.log2(row.sum()) * np.count_nonzero(row) / 16 for row in table)
    return float(sample.share * (sum(map(_entropy, table)) + extra_bits(symbols).sum() / 8) + learning)


def _entropy(counts: Array) -> float:
    """Bytes of symbols that occur so often."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum() / 8)


def symbols_in(before: Array, after: Array, layout: Layout, first: int) -> tuple[Array, Array, Array]:
    """Symbols, contexts and the bits that follow, of elements from the tensor's `first` on; all int64 [n]."""
    predictions, contexts = predicted(before, layout, first)
    symbols, rests = symbols_of(after, predictions, layout.kind)
    return symbols, contexts, rests
