"""The most worthy examples of a stream, within a budget of rows and bytes: what a device keeps until it may ask."""

from __future__ import annotations

import hashlib
import heapq
import math
import os
from collections.abc import Mapping

import numpy as np

from lite_runtime._arrays import load_arrays, packed_arrays
from lite_runtime._files import write_atomically
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["Example", "Kept", "identity"]

_HEX = 32


class Example(NamedTuple):
    """One row. id: its digest, the same for the same inputs; inputs: by name, without the batch's dimension; score:
    what a strategy gave; guess: the model's class."""

    id: str
    inputs: Mapping[str, Array]
    score: float
    guess: int


class Kept:
    """At most `rows` examples of at most `most_bytes` in all: those with the highest scores so far.

    An example that is there already is not kept twice. Raises InputError for limits below 1.
    """

    def __init__(self, rows: int, most_bytes: int = 1 << 22) -> None:
        if rows < 1 or most_bytes < 1:
            raise InputError(f"expected at least 1 row and 1 byte, got {rows} rows and {most_bytes} bytes")
        self.rows, self.most_bytes = rows, most_bytes
        self.bytes = 0
        self._heap: list[tuple[float, int, str]] = []
        self._examples: dict[str, Example] = {}
        self._offered = 0

    def __len__(self) -> int:
        return len(self._examples)

    def offer(self, inputs: Mapping[str, Array], score: float, guess: int = -1) -> bool:
        """Keep a row if its score is among the highest; whether it was kept. A score that is not finite never is."""
        held = {name: np.array(array) for name, array in inputs.items()}
        size = sum(array.nbytes for array in held.values())
        example = Example(identity(held), held, float(score), int(guess))
        if not math.isfinite(score) or size > self.most_bytes or example.id in self._examples:
            return False
        if (len(self) >= self.rows or self.bytes + size > self.most_bytes) and score <= self._heap[0][0]:
            return False
        self._add(example, size)
        while len(self) > self.rows or self.bytes > self.most_bytes:
            self._drop_worst()
        return example.id in self._examples

    def take(self, count: int) -> list[Example]:
        """Remove the `count` best examples, the best first, and return them."""
        best = sorted(self._examples.values(), key=lambda one: -one.score)[:count]
        for one in best:
            self._remove(one.id)
        self._heap = [entry for entry in self._heap if entry[2] in self._examples]
        heapq.heapify(self._heap)
        return best

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all examples to one .npz file, completely or not at all. Raises MsedgeError."""
        arrays: dict[str, Array] = {}
        for number, one in enumerate(sorted(self._examples.values(), key=lambda one: -one.score)):
            arrays[f"{number}:"] = np.array([one.score, one.guess], np.float64)
            arrays.update({f"{number}:{name}": array for name, array in one.inputs.items()})
        write_atomically(path, packed_arrays(arrays))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Offer the examples of a file that `save` wrote. Raises MsedgeError for one that is damaged."""
        arrays = load_arrays(path)
        rows: dict[int, dict[str, Array]] = {}
        for key, array in arrays.items():
            number, colon, name = key.partition(":")
            if not colon or not number.isdigit():
                raise MsedgeError(f"{os.fspath(path)!r}: expected kept examples, got {key!r}; delete the file")
            rows.setdefault(int(number), {})[name] = array
        for row in rows.values():
            about = row.pop("", None)
            if about is None or about.shape != (2,) or about.dtype != np.float64 or not np.isfinite(about).all():
                raise MsedgeError(f"{os.fspath(path)!r}: an example has no score; delete the file")
            self.offer(row, float(about[0]), int(about[1]))

    def _add(self, example: Example, size: int) -> None:
        self._examples[example.id] = example
        self.bytes += size
        self._offered += 1
        heapq.heappush(self._heap, (example.score, -self._offered, example.id))

    def _drop_worst(self) -> None:
        self._remove(heapq.heappop(self._heap)[2])

    def _remove(self, key: str) -> None:
        self.bytes -= sum(array.nbytes for array in self._examples.pop(key).inputs.values())


def identity(inputs: Mapping[str, Array]) -> str:
    """A digest of a row's names, dtypes, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(inputs):
        array = np.ascontiguousarray(inputs[name])
        found.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode() + array.tobytes())
    return found.hexdigest()[:_HEX]
