"""Sorted numbers in few bits: Elias (1974) and Fano (1971).

The low bits of k numbers below n are written as they are; the high parts as a bit string, in which the i-th 1 is at
position high + i. That takes about 2 + log2(n / k) bits per number, within half a bit of what any code needs.
"""

from __future__ import annotations

import numpy as np

from federated.codec.base import Reader
from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["pack_indices", "unpack_indices"]


def pack_indices(indices: Array, size: int) -> bytes:
    """Strictly increasing int64 numbers below `size` as bytes; the receiver knows their count and `size`."""
    low_bits, high_size = _sizes(len(indices), size)
    low = (indices[:, None] >> np.arange(low_bits)) & 1
    high = np.zeros(high_size, np.uint8)
    high[(indices >> low_bits) + np.arange(len(indices))] = 1
    return np.packbits(low.astype(np.uint8).reshape(-1)).tobytes() + np.packbits(high).tobytes()


def unpack_indices(reader: Reader, count: int, size: int) -> Array:
    """The numbers, int64 [count]. FederatedError unless they are strictly increasing and below `size`."""
    low_bits, high_size = _sizes(count, size)
    low = _bits(reader, count * low_bits).reshape(count, low_bits) @ (1 << np.arange(low_bits, dtype=np.int64))
    ones = np.flatnonzero(_bits(reader, high_size))
    if len(ones) != count:
        raise FederatedError(f"payload damaged: expected {count} positions, got {len(ones)}")
    indices = ((ones - np.arange(count)) << low_bits) + low
    if count and (indices[-1] >= size or (np.diff(indices) <= 0).any()):
        raise FederatedError(f"payload damaged: expected sorted positions below {size}, each once")
    return indices


def _sizes(count: int, size: int) -> tuple[int, int]:
    """Low bits per number; length of the bit string of high parts."""
    low_bits = max(0, (size // max(count, 1)).bit_length() - 1)
    return low_bits, count + (size >> low_bits) + 1


def _bits(reader: Reader, count: int) -> Array:
    packed = reader.array((count + 7) // 8, "u1", "positions")
    bits = np.unpackbits(packed)
    if bits[count:].any():
        raise FederatedError("payload damaged: bits are set after its positions")
    return bits[:count]
