"""The entropy coder of deltas: range asymmetric numeral systems (Duda, 2013) with adaptive tables, in whole vectors.

A frame is decoded by lanes: states that take turns with one stream of 16-bit words (Giesen, 2014). A step decodes up to
one symbol in each lane by a few operations on vectors, so that it is fast without a compiler. All arithmetic is on
integers: every machine gets the same symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lite_runtime.bundle.refusal import refuse
from lite_runtime.graph import Array

__all__ = ["BITS", "LEAST", "MAX_LANES", "MAX_WORDS", "SCALE", "Decoder", "Model"]

BITS = 14
SCALE = 1 << BITS
"""Frequencies of a context's symbols add up to it."""
LEAST = 1 << 16
"""States are from LEAST to LEAST << 16 between steps; each begins as LEAST in the encoder, and must end so here."""
MAX_LANES = 1 << 14
MAX_WORDS = 1 << 20
"""Most 16-bit words of a frame."""
_COUNT = 16
"""What one symbol adds to its count; a model's first counts are in the same unit."""
_FORGET = 1 << 20
"""Sum of a context's counts at which all are halved."""


class Model:
    """Frequencies of symbols by context, learned from what was coded: the encoder's and the decoder's stay the same.

    first: the counts before anything was coded, int64 [contexts, symbols], at least 1 each.
    """

    def __init__(self, first: Array) -> None:
        self.contexts, self.symbols = first.shape
        self._counts = first.copy()
        self._base = np.arange(self.contexts, dtype=np.int64)[:, None] * SCALE
        self._seen = self._due = 0
        self._refresh()

    def learn(self, cells: Array) -> None:
        """Count symbols. cells: context * symbols + symbol, int64 [n]."""
        counts = self._counts.reshape(-1)
        if 8 * len(cells) > len(counts):
            counts += np.bincount(cells, minlength=len(counts)) * _COUNT
        else:
            np.add.at(counts, cells, _COUNT)
        self._seen += len(cells)
        if self._seen >= self._due:
            self._refresh()

    def _refresh(self) -> None:
        """Make `starts` and `ends`, of all cells in a row: where a symbol's range of `SCALE` begins and ends, plus
        SCALE * context."""
        totals = self._counts.sum(1, keepdims=True)
        if totals.max() > _FORGET:
            self._counts = np.where(totals > _FORGET, (self._counts + 1) >> 1, self._counts)
            totals = self._counts.sum(1, keepdims=True)
        ends = np.cumsum(self._counts, 1) * (SCALE - self.symbols) // totals + np.arange(1, self.symbols + 1)
        ends += self._base
        starts = np.concatenate([self._base, ends[:, :-1]], 1)
        self.starts, self.frequencies = starts.reshape(-1), (ends - starts).reshape(-1)
        self._due = self._seen + min(max(self._seen >> 4, 32), 1 << 15)


class Decoder:
    """Symbols of one delta. read: gives the next n bytes of its frames, or raises BundleError. most: steps that they
    may take: a hostile delta has few lanes, and needs a step of NumPy for every few symbols."""

    def __init__(self, read: Callable[[int], bytes], most: int = 1 << 62) -> None:
        self._read, self._steps = read, most
        self._left = 0
        self.lanes = 0

    def begin(self) -> None:
        """A chunk of a tensor begins: read a frame unless the one before has more chunks."""
        if not self._left:
            lanes, words, self._left = (int(n) for n in np.frombuffer(self._read(12), "<u4"))
            if not 1 <= lanes <= MAX_LANES or words > MAX_WORDS or not self._left:
                refuse("delta, frame", f"up to {MAX_LANES} lanes, {MAX_WORDS} words", f"{lanes} lanes, {words} words")
            self.lanes = lanes
            self._states = np.frombuffer(self._read(4 * lanes), "<u4").astype(np.int64)
            if self._states.min() < LEAST:
                refuse("delta, frame", f"states of at least {LEAST}", str(int(self._states.min())))
            self._words = np.frombuffer(self._read(2 * words), "<u2")
            self._at = 0

    def end(self) -> None:
        """The chunk has ended; with the frame's last, its states must be those that its encoder began with."""
        self._left -= 1
        if not self._left and (self._at != len(self._words) or (self._states != LEAST).any()):
            refuse("delta, frame", "a stream that ends with its symbols", "one that was changed")

    def symbols(self, model: Model, contexts: Array) -> Array:
        """The next symbols, one for each context; both int64 [n], n at most `lanes`."""
        states = self._states[: len(contexts)]
        slots = states & (SCALE - 1)
        cells = np.searchsorted(model.starts, slots + contexts * SCALE, "right") - 1
        slots -= model.starts[cells] - contexts * SCALE
        self._advance(model.frequencies[cells] * (states >> BITS) + slots)
        model.learn(cells)
        found: Array = cells - contexts * model.symbols
        return found

    def bits(self, widths: Array) -> Array:
        """The next numbers of these widths in bits, from 0 to BITS, each value equally likely; int64 [n]."""
        states = self._states[: len(widths)]
        shifts = BITS - widths
        slots = states & (SCALE - 1)
        found: Array = slots >> shifts
        self._advance(((states >> BITS) << shifts) + slots - (found << shifts))
        return found

    def _advance(self, states: Array) -> None:
        """Take the states of a step; those that are too small take one word each."""
        self._steps -= 1
        if self._steps < 0:
            refuse("delta, frame", "as many lanes as its symbols need", "fewer: it would keep this device busy")
        low: Any = np.flatnonzero(states < LEAST)
        if len(low):
            words = self._words[self._at : self._at + len(low)]
            if len(words) < len(low):
                refuse("delta, frame", f"{self._at + len(low)} words", f"{len(self._words)}: it is cut short")
            states[low] = states[low] << 16 | words
            self._at += len(low)
        self._states[: len(states)] = states
