"""Sequences are Python lists; an optional is its value, or None if it is empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, integers, require, scalar

__all__: list[str] = []


def _place(sequence: list[Any], position: Array, end: int) -> int:
    """A position in [-n, end) as a non-negative index."""
    at, n = int(scalar(position, "position")), len(sequence)
    if not -n <= at < end:
        raise InputError(f"expected a position in [{-n}, {end - 1}] of a sequence of {n}, got {at}")
    return at + n if at < 0 else at


@define("SequenceEmpty")
def _sequence_empty(dtype: int | str = 1) -> list[Any]:
    return []


@define("SequenceConstruct")
def _sequence_construct(*inputs: Array) -> list[Any]:
    return list(inputs)


@define("SequenceInsert")
def _sequence_insert(sequence: list[Any], tensor: Any, position: Array | None = None, /) -> list[Any]:
    at = len(sequence) if position is None else _place(sequence, position, len(sequence) + 1)
    return [*sequence[:at], tensor, *sequence[at:]]


@define("SequenceErase")
def _sequence_erase(sequence: list[Any], position: Array | None = None, /) -> list[Any]:
    at = _place(sequence, np.array(-1) if position is None else position, len(sequence))
    return [*sequence[:at], *sequence[at + 1 :]]


@define("SequenceAt")
def _sequence_at(sequence: list[Any], position: Array, /) -> Any:
    return sequence[_place(sequence, position, len(sequence))]


@define("SequenceLength")
def _sequence_length(sequence: list[Any], /) -> Array:
    return np.array(len(sequence), np.int64)


@define("SplitToSequence")
def _split_to_sequence(x: Array, split: Array | None = None, /, axis: int = 0, keepdims: int = 1) -> list[Any]:
    """`split` is one chunk size or a list of sizes; if left out, slices of one, which keep the axis only if
    `keepdims`."""
    axis = axis_of(axis, x.ndim)
    size = x.shape[axis]
    if split is None:
        slices = np.split(x, size, axis) if size else []
        return slices if keepdims else [np.squeeze(s, axis) for s in slices]
    if split.ndim == 0:
        chunk = int(split)
        require(chunk > 0, f"expected a chunk size above 0, got {chunk}")
        sizes = [min(chunk, size - start) for start in range(0, size, chunk)]
    else:
        sizes = list(integers(split))
    require(sum(sizes) == size, f"expected sizes that add up to {size} along axis {axis}, got {sizes}")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@define("ConcatFromSequence")
def _concat_from_sequence(sequence: list[Any], /, axis: int, new_axis: int = 0) -> Array:
    require(len(sequence) > 0, "expected a sequence with elements, got an empty one")
    return np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis)


@define("Optional")
def _optional(x: Any = None, /, type: object = None) -> Any:
    return x


@define("OptionalHasElement")
def _optional_has_element(x: Any = None, /) -> Array:
    return np.array(x is not None)


@define("OptionalGetElement")
def _optional_get_element(x: Any, /) -> Any:
    if x is None:
        raise InputError("expected an optional with an element, got an empty one")
    return x
