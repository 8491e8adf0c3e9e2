"""Checks and folding of axes, attributes and shapes, shared by the families that reduce."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod

from lite_runtime.frozen import NamedTuple
from lite_runtime.ops.registry import Inference, Spec

__all__ = [
    "FLOATS",
    "Fold",
    "attr_float",
    "attr_int",
    "axis_of",
    "expect",
    "float_operand",
    "fold",
    "groups",
    "unique_axes",
]

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


class Fold(NamedTuple):
    """A tensor seen as [outer, n, inner]; an operator works along n."""

    outer: int
    n: int
    inner: int


def fold(shape: Sequence[int], axis: int, end: int | None = None) -> Fold:
    """`shape` split around axes [axis, end); one axis unless `end` is given."""
    end = axis + 1 if end is None else end
    return Fold(prod(shape[:axis]), prod(shape[axis:end]), prod(shape[end:]))


def groups(shape: Sequence[int], axes: Collection[int]) -> list[tuple[int, bool]]:
    """(size, whether reduced) of runs of neighbouring axes that are treated alike; axes of size 1 are dropped."""
    runs: list[tuple[int, bool]] = []
    for i, size in enumerate(shape):
        reduced = i in axes
        if size == 1:
            continue
        if runs and runs[-1][1] == reduced:
            runs[-1] = (runs[-1][0] * size, reduced)
        else:
            runs.append((size, reduced))
    return runs


def attr_int(n: Inference, name: str, default: int, allowed: Collection[int] | None = None) -> int:
    """A validated integer attribute."""
    value = n.attr(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise n.error(f"expected attribute {name} to be an integer, got {value!r}")
    if allowed is not None and value not in allowed:
        if isinstance(allowed, range) and len(allowed) > 16:
            raise n.error(f"expected attribute {name} in [{allowed[0]}, {allowed[-1]}], got {value}")
        raise n.error(f"expected attribute {name} to be one of {sorted(allowed)}, got {value}")
    return value


def attr_float(n: Inference, name: str, default: float) -> float:
    """A validated float attribute."""
    value = n.attr(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise n.error(f"expected attribute {name} to be a number, got {value!r}")
    return float(value)


def axis_of(n: Inference, rank: int, default: int, name: str = "axis") -> int:
    """Attribute `axis` as a non-negative index."""
    axis = attr_int(n, name, default)
    if not -rank <= axis < rank:
        raise n.error(f"expected {name} within [{-rank}, {rank}), got {axis}")
    return axis % rank


def unique_axes(n: Inference, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes as non-negative indices in order; each may occur only once."""
    found: set[int] = set()
    for axis in axes:
        if not -rank <= axis < rank:
            raise n.error(f"expected axes within [{-rank}, {rank}), got {axis}")
        if axis % rank in found:
            raise n.error(f"expected every axis once, got {axis % rank} twice")
        found.add(axis % rank)
    return tuple(sorted(found))


def expect(n: Inference, i: int, dtypes: Collection[str], what: str = "") -> Spec:
    """The type of input `i`, which must have one of `dtypes`."""
    spec = n.spec(i)
    if spec.dtype not in dtypes:
        raise n.error(f"expected {what or f'input {i}'} of dtype {', '.join(sorted(dtypes))}, got {spec.dtype}")
    return spec


def float_operand(n: Inference, i: int = 0) -> Spec:
    """The type of input `i`, which must be floating-point."""
    return expect(n, i, FLOATS)
