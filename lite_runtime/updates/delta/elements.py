"""How a changed tensor follows from the old one: elements as integers, predictions, and differences as symbols.

Elements of a kind are integers of so many bits, and differences wrap around. What floating-point numbers differ by is
counted in units in the last place: of two numbers that are near, few bits differ then.

A tensor is seen as [rows, columns, inner]. Converters that balance channels, or choose the scale of a channel anew,
multiply rows and columns by some factors; a prediction is the old element times the two factors of its row and column,
in fixed point. Its fraction says to which side the new element was probably rounded, so it is part of the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.updates.delta.coding import BITS, Decoder, Model

__all__ = ["CLASSES", "KINDS", "ONE", "Kind", "Layout", "decoded", "extra_bits", "inexact", "integers", "model"]
__all__ += ["predicted", "stored", "symbols_of"]

ONE = 1 << 10
"""The factor one."""
CLASSES = 16
"""Classes of how large differences are, by which a tensor's columns are coded apart."""
_EXACT = 8
"""The largest difference that has a symbol of its own; the others share symbols by magnitude, followed by bits."""
_FRACTIONS = 6


class Kind(NamedTuple):
    """A kind of element. bits: of an element. stored: dtype of the bytes. ordered: bits of floating-point numbers,
    which become integers in the order of the numbers. signed: whether integers are. places: contexts a class, of which
    there is one for each value of the old element, or for each part of a prediction's fraction."""

    bits: int
    stored: str
    signed: bool = False
    ordered: bool = False
    places: int = 1

    @property
    def symbols(self) -> int:
        """How many symbols differences have."""
        return 1 + 2 * _EXACT + (2 * (self.bits - 1) if self.bits > 4 else 0)


KINDS: Mapping[int, Kind] = MappingProxyType(
    {
        0: Kind(4, "<u1", places=16),  # two elements a byte, the first in its low half
        1: Kind(8, "<i1", signed=True, places=_FRACTIONS),
        2: Kind(8, "<u1", places=_FRACTIONS),
        3: Kind(16, "<i2", signed=True, places=_FRACTIONS),
        4: Kind(16, "<i2", ordered=True, signed=True),
        5: Kind(32, "<i4", signed=True),
        6: Kind(32, "<i4", ordered=True, signed=True),
    }
)
"""By the number that deltas name it by."""


class Layout(NamedTuple):
    """How a tensor is predicted. zero: the element that stands for zero. rows, columns: factors, int64, of ONE; None:
    all ONE. classes: of each column, int64; `base` is the class where None."""

    kind: Kind
    shape: tuple[int, int, int]
    zero: int = 0
    rows: Array | None = None
    columns: Array | None = None
    base: int = 0
    classes: Array | None = None


def integers(raw: bytes, kind: Kind) -> Array:
    """Elements as int64 [n]."""
    held = np.frombuffer(raw, kind.stored)
    if kind.bits == 4:
        return np.stack([held & 15, held >> 4], 1).reshape(-1).astype(np.int64)
    values = held.astype(np.int64)
    return values ^ (values >> 63 & (1 << kind.bits - 1) - 1) if kind.ordered else values


def stored(values: Array, kind: Kind) -> bytes:
    """What `integers` makes these values of; they are taken modulo 2 ** bits."""
    if kind.bits == 4:
        low, high = (values & 15).astype(np.uint8).reshape(-1, 2).T
        return bytes(low | high << 4)
    wrapped = _wrapped(values, kind.bits)
    if kind.ordered:
        wrapped = wrapped ^ (wrapped >> 63 & (1 << kind.bits - 1) - 1)
    return wrapped.astype(kind.stored).tobytes()


def _wrapped(values: Array, bits: int) -> Array:
    """Modulo 2 ** bits, from -2 ** (bits - 1)."""
    half = 1 << bits - 1
    made: Array = (values + half & (1 << bits) - 1) - half
    return made


def predicted(old: Array, layout: Layout, first: int) -> tuple[Array, Array]:
    """Predictions of elements and their contexts, both int64 [n]; old: elements, of which the tensor's `first` is the
    first."""
    kind, (_, columns, inner) = layout.kind, layout.shape
    places = np.arange(first, first + len(old), dtype=np.int64) // inner
    contexts = np.full(len(old), layout.base * kind.places)
    if layout.classes is not None:
        contexts = layout.classes[places % columns] * kind.places
    if kind.bits == 4:
        return old, contexts + old
    if layout.rows is None and layout.columns is None:
        return old, contexts
    fixed = (old - layout.zero) * (ONE if layout.rows is None else layout.rows[places // columns])
    fixed = fixed * (ONE if layout.columns is None else layout.columns[places % columns]) + ONE * ONE // 2
    whole = fixed >> 20
    if kind.places > 1:
        contexts = contexts + ((fixed - (whole << 20)) * kind.places >> 20)
    least = -(1 << kind.bits - 1) if kind.signed else 0
    return np.clip(whole + layout.zero, least, least + (1 << kind.bits) - 1), contexts


# -- differences -------------------------------------------------------------------------------------------------------


def symbols_of(new: Array, predictions: Array, kind: Kind) -> tuple[Array, Array]:
    """Differences as symbols, and the magnitudes of those whose symbols need bits (else 0), counted from the least that
    the symbol stands for; both int64 [n]."""
    difference = _wrapped(new - predictions, kind.bits)
    size, negative = np.abs(difference), (difference < 0).astype(np.int64)
    beyond = np.maximum(size - _EXACT, 1)
    power = np.frexp(beyond.astype(np.float64))[1].astype(np.int64) - 1
    exact = np.where(size == 0, 0, 2 * size - 1 + negative)
    large = size > _EXACT
    return np.where(large, 1 + 2 * _EXACT + 2 * power + negative, exact), np.where(large, beyond - (1 << power), 0)


def extra_bits(symbols: Array) -> Array:
    """How many bits follow each symbol; int64 [n]."""
    made: Array = np.maximum(symbols - (1 + 2 * _EXACT), 0) >> 1
    return made


def inexact(symbols: Array) -> Array:
    """The indices of the symbols that stand for several magnitudes, and are followed by bits (perhaps none)."""
    return np.flatnonzero(symbols > 2 * _EXACT)


def decoded(decoder: Decoder, model: Model, contexts: Array) -> Array:
    """The next differences of these contexts; both int64 [n]."""
    found = np.empty(len(contexts), np.int64)
    for at in range(0, len(contexts), decoder.lanes):
        symbols = decoder.symbols(model, contexts[at : at + decoder.lanes])
        sizes = symbols + 1 >> 1
        large = inexact(symbols)
        if len(large):
            sizes[large] = _EXACT + _numbers(decoder, extra_bits(symbols[large]))
        found[at : at + decoder.lanes] = np.where(symbols & 1, sizes, -sizes)
    return found


def _numbers(decoder: Decoder, widths: Array) -> Array:
    """Numbers of which each has this many bits below its first, which is 1."""
    found = np.ones(len(widths), np.int64)
    while widths.any():
        now = np.minimum(widths, BITS)
        found = found << now | decoder.bits(now)
        widths = widths - now
    return found


def model(kind: Kind) -> Model:
    """The model of a kind's differences before anything is coded: magnitudes fall off geometrically in each class.

    Of a kind of up to 8 bits, class c has a mean magnitude of about 2 ** ((c - 8) / 2); of others, of 4 ** c / 16.
    """
    first = np.empty((CLASSES, kind.symbols), np.int64)
    for c in range(CLASSES):
        mean = (1 << max(2 * c, 0)) << 6 if kind.bits > 8 else (724 if c & 1 else 512) << (c >> 1)
        first[c] = _counts(mean, 10 if kind.bits > 8 else 13, kind.symbols)
    return Model(np.repeat(first, kind.places, 0))


def _counts(mean: int, shift: int, symbols: int) -> Array:
    """First counts of a context's symbols, for magnitudes of this mean in units of 2 ** -shift."""
    weights = [_mass(0, 0, mean, shift)]
    weights += [_mass(size, size, mean, shift) for size in range(1, _EXACT + 1) for _ in range(2)]
    powers = (symbols - len(weights)) // 2
    weights += [_mass(_EXACT + (1 << p), _EXACT + (2 << p) - 1, mean, shift) for p in range(powers) for _ in range(2)]
    total = sum(weights)
    return np.array([max(1, 256 * weight // total) for weight in weights], np.int64)


def _mass(low: int, high: int, mean: int, shift: int) -> int:
    """About 2 ** 30 times the probability that a magnitude is from low to high, by a hyperbolic tail: integers alone,
    so that every machine gets the same."""
    unit = 1 << shift

    def beyond(size: int) -> int:
        return (1 << 30) * mean * mean // (mean + size * unit) ** 2

    return beyond(low) - beyond(high + 1)
