"""Values as floating-point numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from federated.codec.base import Reader, Values
from federated.codec.spec import LIMIT, in_range
from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["Float16", "Float32"]


@dataclass(frozen=True)
class Float32(Values):
    """4 bytes a value, exact."""

    name = "float32"

    def pack(self, values: Array, counts: Array, rng: np.random.Generator) -> bytes:
        """Little-endian."""
        return bytes(values.astype("<f4", copy=False).tobytes())

    def unpack(self, reader: Reader, counts: Array) -> Array:
        """Refuses NaN and infinity."""
        return _finite(reader.array(int(counts.sum()), "<f4", "values"))


@dataclass(frozen=True)
class Float16(Values):
    """2 bytes a value, rounded to nearest. FederatedError for values beyond 65504."""

    name = "float16"

    def pack(self, values: Array, counts: Array, rng: np.random.Generator) -> bytes:
        """Little-endian."""
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        if np.isinf(halves).any():
            raise FederatedError(
                f'codec "float16" holds values up to 65504, got {np.abs(values).max():g}; '
                'use "int8", which scales them, or lower the learning rate'
            )
        return bytes(halves.tobytes())

    def unpack(self, reader: Reader, counts: Array) -> Array:
        """Refuses NaN and infinity."""
        return _finite(reader.array(int(counts.sum()), "<f2", "values"))


def _finite(values: Array) -> Array:
    values = values.astype(np.float32)
    if not in_range(values):
        raise FederatedError(f"payload damaged: expected finite values up to {LIMIT:g}")
    return values
