"""Sequences of tensors, as Python lists of a length known while the model is traced."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cloud.engine.lowering.movement import split
from cloud.engine.lowering.registry import Context, Tensor, lowering, namespace, static_int

__all__: list[str] = []


@lowering("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> list[Tensor]:
    return []


@lowering("SequenceConstruct")
def sequence_construct(*xs: Tensor) -> list[Tensor]:
    return list(xs)


@lowering("SequenceAt")
def sequence_at(xs: list[Tensor], position: Tensor) -> Tensor:
    return xs[static_int(position, "the position")]


@lowering("SequenceLength")
def sequence_length(xs: list[Tensor]) -> npt.NDArray[np.int64]:
    return np.array(len(xs), np.int64)


@lowering("SequenceInsert")
def sequence_insert(xs: list[Tensor], x: Tensor, position: Tensor | None = None) -> list[Tensor]:
    place = len(xs) if position is None else static_int(position, "the position")
    return [*xs[:place], x, *xs[place:]]


@lowering("SequenceErase")
def sequence_erase(xs: list[Tensor], position: Tensor | None = None) -> list[Tensor]:
    place = (len(xs) - 1 if position is None else static_int(position, "the position")) % len(xs)
    return [*xs[:place], *xs[place + 1 :]]


@lowering("SplitToSequence")
def split_to_sequence(
    x: Tensor, sizes: Tensor | None = None, *, context: Context, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    length = x.shape[axis]
    if sizes is None:
        parts = split(x, np.ones(length, np.int64), context=context, axis=axis)
        return list(parts) if keepdims else [namespace(part).squeeze(part, axis=axis) for part in parts]
    if np.ndim(sizes) == 0:
        each = static_int(sizes, "the split")
        rest = length % each
        sizes = np.array([each] * (length // each) + [rest] * bool(rest), np.int64)
    return list(split(x, sizes, context=context, axis=axis))


@lowering("ConcatFromSequence")
def concat_from_sequence(xs: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    xp = namespace(*xs)
    return xp.stack(xs, axis=axis) if new_axis else xp.concatenate(xs, axis=axis)
