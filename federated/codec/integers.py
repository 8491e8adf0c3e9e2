"""Values as small integers times a scale, with unbiased random rounding.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017, with the
largest magnitude instead of the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from federated.codec.base import Reader, Values
from federated.codec.spec import LIMIT
from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["Int4", "Int8"]

_SMALLEST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class _Integers(Values):
    """Integers in [-top, top] times a float32 scale per array, or per `block` values (0: per array)."""

    top: ClassVar[int]
    block: int = 0

    def __post_init__(self) -> None:
        if self.block < 0:
            raise FederatedError(f'codec "{self.name}": expected 0 or more values a block, got {self.block}')

    def pack(self, values: Array, counts: Array, rng: np.random.Generator) -> bytes:
        """The scales, then the integers. A block whose scale would be subnormal becomes zeros."""
        counts = self._counts(counts)
        if not len(counts):
            return b""
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        scales = (np.maximum.reduceat(np.abs(values), starts) / np.float32(self.top)).astype("<f4")
        scales[scales < _SMALLEST] = 0
        inverse = np.divide(1, scales, where=scales > 0, out=np.zeros_like(scales))
        steps = values * np.repeat(inverse, counts)
        steps += rng.random(len(values), np.float32)
        integers = np.floor(steps, out=steps).clip(-self.top, self.top).astype(np.int8)
        return scales.tobytes() + self._join(integers)

    def unpack(self, reader: Reader, counts: Array) -> Array:
        """Refuses integers that `pack` does not write and scales that would not give finite values."""
        counts = self._counts(counts)
        scales = reader.array(len(counts), "<f4", "scales")
        integers = self._parts(reader, int(counts.sum()))
        if not ((scales >= 0) & (scales <= 1.001 * LIMIT / self.top)).all():
            raise FederatedError(f"payload damaged: expected scales from 0 to {LIMIT / self.top:g}")
        if len(integers) and (integers.min() < -self.top or integers.max() > self.top):
            raise FederatedError(f"payload damaged: expected integers from {-self.top} to {self.top}")
        return integers * np.repeat(scales, counts)

    def _counts(self, counts: Array) -> Array:
        """Values per scale; none is 0."""
        if not self.block:
            return counts[counts > 0]
        full, rest = divmod(int(counts.sum()), self.block)
        return np.array([self.block] * full + [rest] * (rest > 0), np.int64)

    def _join(self, integers: Array) -> bytes:
        raise NotImplementedError

    def _parts(self, reader: Reader, count: int) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class Int8(_Integers):
    """A byte a value: -127 to 127."""

    name = "int8"
    top = 127

    def _join(self, integers: Array) -> bytes:
        return bytes(integers.tobytes())

    def _parts(self, reader: Reader, count: int) -> Array:
        return reader.array(count, "i1", "integers")


@dataclass(frozen=True)
class Int4(_Integers):
    """Two values a byte, the first in its low half: -7 to 7."""

    name = "int4"
    top = 7

    def _join(self, integers: Array) -> bytes:
        nibbles = np.zeros(len(integers) + len(integers) % 2, np.uint8)
        nibbles[: len(integers)] = integers.view(np.uint8) & 15
        return bytes((nibbles[::2] | nibbles[1::2] << 4).tobytes())

    def _parts(self, reader: Reader, count: int) -> Array:
        packed = reader.array((count + 1) // 2, "u1", "integers")
        nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
        if nibbles[count:].any():
            raise FederatedError("payload damaged: bits are set after its integers")
        # Two's complement in 4 bits: flip the sign bit, then subtract it.
        return (nibbles[:count] ^ 8).astype(np.int8) - np.int8(8)
