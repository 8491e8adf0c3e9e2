"""The encoder of what `lite_runtime.updates.delta.coding` decodes: the same steps, coded from the last to the first."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.updates.delta.coding import BITS, LEAST, MAX_LANES, MAX_WORDS, SCALE, Model
from lite_runtime.updates.delta.elements import extra_bits, inexact

__all__ = ["Encoder"]

_LANE = 256
"""Bytes of a frame for each lane, which costs two bytes."""
_SLOW = 1 << 13
"""Most elements for each lane, where they need few bits: a device takes about 30 microseconds for each."""


class Encoder:
    """Frames of differences. A frame is closed by `close`, and holds the chunks that were added since the last."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._steps: list[tuple[Array, Array]] = []
        self._chunks = 0
        self._lanes = 1

    def open(self, size: float, elements: int) -> None:
        """A frame begins whose chunks have so many elements, and will take about `size` bytes."""
        self._lanes = int(np.clip(max(size / _LANE, elements / _SLOW), 1, MAX_LANES))

    def chunk(self, model: Model, contexts: Array, symbols: Array, rests: Array) -> None:
        """Add a chunk: symbols in their contexts, and the bits that follow them; all int64 [n]."""
        self._chunks += 1
        for at in range(0, len(symbols), self._lanes):
            part = slice(at, at + self._lanes)
            cells = contexts[part] * model.symbols + symbols[part]
            starts = model.starts[cells] - contexts[part] * SCALE
            self._steps.append((starts.astype(np.uint16), model.frequencies[cells].astype(np.uint16)))
            model.learn(cells)
            large = inexact(symbols[part])
            self._steps += _bits(rests[part][large], extra_bits(symbols[part][large]))

    def close(self) -> None:
        """Finish the frame."""
        states = np.full(self._lanes, LEAST, np.int64)
        words = []
        for starts, frequencies in reversed(self._steps):
            of, own = frequencies.astype(np.int64), states[: len(starts)]
            full = np.flatnonzero(own >= of << 32 - BITS)
            words.append((own[full] & 0xFFFF).astype("<u2"))
            own[full] >>= 16
            own[:] = (own // of << BITS) + own % of + starts
        stream = np.concatenate(words[::-1]) if words else np.zeros(0, "<u2")
        if len(stream) > MAX_WORDS:
            raise AssertionError(f"a frame of {len(stream)} words: the estimate of its size was wrong")
        head = struct.pack("<III", self._lanes, len(stream), self._chunks)
        self.frames.append(head + states.astype("<u4").tobytes() + stream.tobytes())
        self._steps, self._chunks = [], 0


def _bits(rests: Array, widths: Array) -> Iterator[tuple[Array, Array]]:
    """Steps that code numbers of so many bits, from the highest."""
    while widths.any():
        now = np.minimum(widths, BITS)
        value = rests >> widths - now & (1 << now) - 1
        yield (value << BITS - now).astype(np.uint16), (1 << BITS - now).astype(np.uint16)
        widths = widths - now
