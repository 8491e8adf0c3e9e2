"""Indices of extremes, and the k largest or smallest elements, along the middle of [outer, n, inner]."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Arg", "TopK"]


_INTEGERS = ("int8", "uint8", "int16", "int32")


class _Ordered(Step):
    """Fields that both steps share."""

    x: In
    outer: int
    n: int
    inner: int


@step(
    *(f"order.f32_arg__{tile}" for tile in ("columns", "strips")),
    "order.f32_arg_max__rows",
    *(f"order.{dtype}_arg__{tile}" for dtype in _INTEGERS for tile in ("rows", "strips")),
)
class Arg(_Ordered):
    """Indices of extremes, int64."""

    y: Out
    sign: int  # 1: of the largest, -1: of the smallest element
    last: int  # 1: the last of equal elements, not the first


@step(*(f"order.{dtype}_top_k" for dtype in ("f32", *_INTEGERS)))
class TopK(_Ordered):
    """The first k elements in sorted order, and their indices."""

    values: Out
    places: Out  # int64
    k: int
    sign: int  # 1: the largest, -1: the smallest
