"""The parts of a codec, and a reader that trusts no length in a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["Choice", "Part", "Reader", "Selection", "Values"]



class Reader:
    """A message's bytes, taken from the front."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._rest = memoryview(data)

    def take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes. Raises FederatedError if fewer are left."""
        if count > len(self._rest):
            raise FederatedError(f"payload cut short: expected {count} bytes of {what}, got {len(self._rest)}")
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def array(self, count: int, dtype: str, what: str) -> Array:
        """The next `count` elements, read-only."""
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize, what), dtype)

    def done(self) -> None:
        """Raises FederatedError if bytes are left over."""
        if len(self._rest):
            raise FederatedError(f"payload too long: {len(self._rest)} bytes follow its end")


class Choice(NamedTuple):
    """Which elements are sent: a header for the receiver, sorted int64 positions, and their float32 values."""

    header: bytes
    positions: Array
    values: Array


class Part(ABC):
    """One stage of a codec. Frozen dataclasses whose fields are the stage's parameters."""

    name: ClassVar[str]


class Selection(Part):
    """Selects which elements of a vector are sent; the others arrive as zero."""

    unbiased: ClassVar[bool]
    """Whether the expectation of what is received is the vector, without error feedback."""

    @abstractmethod
    def choose(self, vector: Array, rng: np.random.Generator, feedback: bool) -> Choice:
        """The elements of a finite float32 vector that are sent; `feedback`: what is lost now is sent later, so plain
        values are wanted rather than unbiased ones."""

    @abstractmethod
    def positions(self, reader: Reader, size: int) -> Array:
        """The positions in a header, sorted, each once, below `size`. Raises FederatedError for any other header."""


class Values(Part):
    """Writes numbers in few bytes."""

    unbiased: ClassVar[bool] = True

    @abstractmethod
    def pack(self, values: Array, counts: Array, rng: np.random.Generator) -> bytes:
        """float32 values of magnitude up to LIMIT as bytes. `counts`, int64, is the number of values of each array."""

    @abstractmethod
    def unpack(self, reader: Reader, counts: Array) -> Array:
        """The values as float32, finite. Raises FederatedError for bytes that `pack` does not write."""
