"""Strided copies of raw elements; `kernels/copy.py` defines frames."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Row, Step, step

__all__ = ["Extent", "Segments", "Swap", "Trilu", "Weave"]


_SIZES = (1, 2, 4, 8)
"""Element sizes in bytes that kernels support."""


class Extent(Row):
    """A dimension around the segment: its extent, and the byte distance between its indices on either side (0 repeats,
    negative walks backwards)."""

    extent: int
    source: int
    target: int


class _Frame(Step):
    """A copy's operands, and the offsets at which it starts."""

    source: In
    target: Out
    source_start: int  # bytes
    target_start: int
    outer: int  # number of dimensions


@step("copy.rows", *(f"copy.strided_{size}" for size in _SIZES))
class Segments(_Frame):
    """Rows of runs: dense runs of bytes (`rows`), or runs of elements, strided on either side (`strided_…`)."""

    rows: int
    row_source: int  # stride in bytes over rows
    row_target: int
    run: int  # bytes of a run (`rows`), or its elements
    whole: int  # 0, or the total length if all rows are pieces of one run: the last row may be shorter
    run_source: int  # stride in bytes over elements
    run_target: int
    dims: tuple[Extent, ...]  # outermost first

    counts = (("dims", "outer"),)


@step(*(f"copy.swap_{size}" for size in _SIZES))
class Swap(_Frame):
    """Swaps two dimensions: `a` is dense in the target, `b` in the source."""

    extent_a: int
    extent_b: int
    stride_a: int  # stride in bytes over elements of a in the source
    stride_b: int  # … of b in the target
    block_a: int  # elements that one worker takes at a time
    block_b: int
    dims: tuple[Extent, ...]

    counts = (("dims", "outer"),)


@step(*(f"copy.weave_{size}" for size in _SIZES))
class Weave(_Frame):
    """Transposes with 2 to 4 planes, dense on the side where the planes are interleaved."""

    planes: int
    join: int  # 1: planes are interleaved, 0: deinterleaved
    extent: int  # elements of a plane
    stride: int  # stride in bytes over planes
    block: int  # elements of a plane that one worker takes at a time
    dims: tuple[Extent, ...]

    counts = (("dims", "outer"),)


@step("copy.trilu")
class Trilu(Step):
    """Keeps one triangle of each matrix; the rest becomes zero."""

    source: In
    target: Out
    size: int  # bytes of an element
    lines: int  # rows of all matrices
    height: int
    width: int
    k: int  # the diagonal
    upper: int  # 1: the upper triangle is kept
