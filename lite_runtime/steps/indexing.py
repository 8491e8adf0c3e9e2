"""Gathering, scattering, one-hot vectors and cumulative sums."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, InOut, Out, Picks, Row, Step, step

__all__ = ["Accumulate", "Gather", "GatherElements", "GatherND", "OneHot", "Pair", "ScatterElements", "ScatterND"]


class Pair(Row):
    """An index of a tuple: the extent of its axis, and the byte distance between its positions."""

    extent: int
    stride: int


@step("indexing.gather")
class Gather(Step):
    """target[o, i, :] = data[o, indices[i], :]."""

    data: In
    indices: In
    target: Out
    width: int  # bytes of an index
    outer: int
    count: int  # indices
    extent: int  # of data's axis
    run: int  # bytes

    picks = Picks("data", like="target")


class _Elements(Step):
    """Elements along the middle of [outer, count, inner]."""

    size: int  # bytes of an element
    width: int  # bytes of an index
    outer: int
    count: int  # of indices
    inner: int
    extent: int  # of data


@step("indexing.gather_elements")
class GatherElements(_Elements):
    """target[o, i, j] = data[o, indices[o, i, j], j]."""

    data: In
    indices: In
    target: Out

    picks = Picks("data", like="target")


@step("indexing.scatter_elements")
class ScatterElements(_Elements):
    """target[o, indices[o, i, j], j] = or += … updates[o, i, j]."""

    indices: In
    updates: In
    target: InOut
    how: int  # how to combine values: `kernels/indexing.py`


@step("indexing.gather_nd")
class GatherND(Step):
    """Runs of bytes by int64 index tuples."""

    data: In
    indices: In
    target: Out
    rows: int  # tuples
    batch_rows: int  # tuples of a batch
    batch_bytes: int  # of data
    run: int  # bytes
    depth: int  # indices of a tuple
    pairs: tuple[Pair, ...]

    picks = Picks("data", like="target")
    counts = (("pairs", "depth"),)


@step("indexing.scatter_nd")
class ScatterND(Step):
    """Writes runs of bytes to the positions given by int64 index tuples, in order."""

    indices: In
    updates: In
    target: InOut
    rows: int  # tuples
    run: int  # bytes
    how: int  # to combine
    depth: int  # indices of a tuple
    pairs: tuple[Pair, ...]

    counts = (("pairs", "depth"),)


@step("indexing.one_hot")
class OneHot(Step):
    """target[o, d, i] = values[indices[o, i] == d]; an index outside the range sets none."""

    indices: In
    values: In  # off, on
    target: Out
    size: int  # bytes of an element
    width: int  # bytes of an index
    outer: int
    depth: int
    inner: int


@step(*(f"indexing.cum{what}_{dtype}" for what in ("sum", "prod") for dtype in ("float32", "int32", "int64")))
class Accumulate(Step):
    """Cumulative sums or products along the middle of [outer, count, inner]."""

    source: In
    target: Out
    outer: int
    count: int
    inner: int
    exclusive: int  # 1: an element's own value is excluded
    backwards: int  # 1: from the end
