"""Operations for processors whose vectors are loaded and stored as a whole: a branch for each part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lite_runtime.native.codegen.operations import F32, I32, Emit

__all__ = ["bodies"]


def bodies(*lanes: int) -> dict[tuple[str, int], Emit]:
    """The functions for vectors of so many lanes, by operation and lanes."""
    return {(emit.__name__, count): emit for emit in (load_first, store_first) for count in lanes}


def load_first(builder, lanes, where, mask, other):
    """All lanes at once, or one after the other up to the first that the mask leaves out."""
    found = builder.alloca(other.type)
    builder.store(other, found)

    def one(i):
        element = builder.load(_element(builder, where, i), align=4, typ=F32)
        builder.store(element, _element(builder, found, i), align=4)

    with builder.if_else(_in(builder, mask, lanes - 1)) as (whole, part):
        with whole:
            builder.store(builder.load(where, align=4, typ=other.type), found)
        with part:
            _each(builder, lanes, mask, one)
    return builder.load(found)


def store_first(builder, lanes, value, where, mask):
    """As `load_first`."""

    def one(i):
        builder.store(builder.extract_element(value, I32(i)), _element(builder, where, i), align=4)

    with builder.if_else(_in(builder, mask, lanes - 1)) as (whole, part):
        with whole:
            builder.store(value, where, align=4)
        with part:
            _each(builder, lanes, mask, one)


def _element(builder: Any, where: Any, i: int) -> Any:
    return builder.gep(builder.bitcast(where, F32.as_pointer()), [I32(i)])


def _in(builder: Any, mask: Any, i: int) -> Any:
    return builder.extract_element(mask, I32(i))


def _each(builder: Any, lanes: int, mask: Any, one: Callable[[int], None], i: int = 0) -> None:
    """Do `one` for every lane up to the first that is not in the mask, which the last never is."""
    if i < lanes - 1:
        with builder.if_then(_in(builder, mask, i)):
            one(i)
            _each(builder, lanes, mask, one, i + 1)
