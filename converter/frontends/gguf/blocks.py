"""The types of a GGUF file's tensors, as data: dense ones, and blocks of integers with scales.

A blocked weight is (q - zero_point) * scale + offset, exactly as the file defines it: nothing is rounded. Integers of 5
and 6 bits take 8. The layouts are those of llama.cpp (ggml-common.h), described here by where their bytes are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from lite_runtime.graph import Array

__all__ = ["TYPES", "Blocks", "Type"]

Part = Callable[[Array], Array]
"""Of blocks as bytes (blocks, size): integers (blocks, elements), or scales or offsets (blocks, elements / block)."""


class Blocks(NamedTuple):
    """How blocks hold integers and what these stand for; scales and offsets are float16 (`half`) or float32."""

    bits: int
    block: int
    """Neighbours that share a scale."""
    zero_point: int
    q: Part
    scales: Part
    offsets: Part | None = None
    half: bool = True


class Type(NamedTuple):
    """One type: a block has `elements` elements in `size` bytes. Dense ones have a `dtype` of NumPy or "bfloat16"."""

    name: str
    elements: int
    size: int
    dtype: str = ""
    blocks: Blocks | None = None


def _f16(raw: Array, at: int) -> Array:
    """A float16 of each block, (blocks, 1)."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2")


def _halves(raw: Array) -> Array:
    """Bytes (blocks, n) to the integers in their low halves and then those in their high halves, (blocks, 2 n)."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _fifth_bits(raw: Array) -> Array:
    """Four bytes of bits (blocks, 4) to bytes 0 or 16 (blocks, 32)."""
    return np.unpackbits(raw, axis=1, bitorder="little") << 4


def _k_scales(raw: Array) -> tuple[Array, Array]:
    """The eight scales and eight minima of 6 bits in bytes 4 to 15 of Q4_K and Q5_K, each (blocks, 8)."""
    low, high, mixed = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([low & 63, (mixed & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([high & 63, (mixed >> 4) | (high >> 6 << 4)], axis=1)
    return scales, minima


def _q4_k(raw: Array) -> Array:
    groups = raw[:, 16:144].reshape(-1, 4, 1, 32)
    made: Array = np.concatenate([groups & 15, groups >> 4], axis=2)
    return made.reshape(len(raw), 256)


def _q5_k(raw: Array) -> Array:
    fours = _q4_k(np.concatenate([raw[:, :16], raw[:, 48:176]], axis=1)).reshape(-1, 8, 32)
    fifth = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    made: Array = fours | fifth << 4
    return made.reshape(len(raw), 256)


def _q6_k(raw: Array) -> Array:
    low = raw[:, :128].reshape(-1, 2, 1, 64)
    fours = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    twos = raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    made: Array = fours | twos << 4
    return made.reshape(len(raw), 256)


def _k_scale(raw: Array) -> Array:
    made: Array = _f16(raw, 0).astype(np.float32) * _k_scales(raw)[0]
    return made


def _k_offset(raw: Array) -> Array:
    made: Array = _f16(raw, 2).astype(np.float32) * _k_scales(raw)[1]
    return -made


def _q6_k_scale(raw: Array) -> Array:
    made: Array = _f16(raw, 208).astype(np.float32) * raw[:, 192:208].view(np.int8)
    return made


def _first(raw: Array) -> Array:
    return _f16(raw, 0)


def _second(raw: Array) -> Array:
    return _f16(raw, 2)


TYPES: Mapping[int, Type] = {
    0: Type("F32", 1, 4, "<f4"),
    1: Type("F16", 1, 2, "<f2"),
    30: Type("BF16", 1, 2, "bfloat16"),
    2: Type("Q4_0", 32, 18, blocks=Blocks(4, 32, 8, lambda raw: _halves(raw[:, 2:]), _first)),
    3: Type("Q4_1", 32, 20, blocks=Blocks(4, 32, 0, lambda raw: _halves(raw[:, 4:]), _first, _second)),
    6: Type("Q5_0", 32, 22, blocks=Blocks(
        8, 32, 16, lambda raw: _halves(raw[:, 6:]) | _fifth_bits(raw[:, 2:6]), _first)),
    7: Type("Q5_1", 32, 24, blocks=Blocks(
        8, 32, 0, lambda raw: _halves(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _first, _second)),
    8: Type("Q8_0", 32, 34, blocks=Blocks(8, 32, 128, lambda raw: raw[:, 2:] ^ 128, _first)),
    12: Type("Q4_K", 256, 144, blocks=Blocks(4, 32, 0, _q4_k, _k_scale, _k_offset, half=False)),
    13: Type("Q5_K", 256, 176, blocks=Blocks(8, 32, 0, _q5_k, _k_scale, _k_offset, half=False)),
    14: Type("Q6_K", 256, 210, blocks=Blocks(8, 16, 32, _q6_k, _q6_k_scale, half=False)),
}  # fmt: skip
"""By the number that files give them."""
