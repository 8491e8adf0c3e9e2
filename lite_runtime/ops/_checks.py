"""Checks shared by the infer rules of several families; each raises ShapeError through the inference."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import dtype_name
from lite_runtime.ops.registry import Inference, Spec
from lite_runtime.reference.support import dtype_of

__all__ = [
    "INDEX_TYPES",
    "SCALE_TYPES",
    "axes_of",
    "axis_of",
    "broadcast",
    "choice",
    "dense_strides",
    "element_type",
    "one_of",
    "one_or",
    "scalar_int",
    "sizes_of",
]

INDEX_TYPES = ("int32", "int64")
SCALE_TYPES = ("float32", "float16", "bfloat16")


def axis_of(n: Inference, axis: object, rank: int, what: str = "axis") -> int:
    """The axis as a non-negative index."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise n.error(f"expected {what} in [{-rank}, {rank - 1}] for rank {rank}, got {axis}")
    return axis % rank


def axes_of(n: Inference, axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Distinct axes as non-negative indices, in the given order; all axes for None."""
    if axes is None:
        return tuple(range(rank))
    found = tuple(axis_of(n, int(a), rank, "axes") for a in axes)
    if len(set(found)) != len(found):
        raise n.error(f"expected distinct axes, got {tuple(axes)}")
    return found


def one_of(n: Inference, i: int, dtypes: Sequence[str]) -> Spec:
    """The type of input `i`, whose element type must be one of `dtypes`."""
    spec = n.spec(i)
    if spec.dtype not in dtypes:
        raise n.error(f"expected input {i} to be one of {', '.join(dtypes)}, got {spec.dtype}")
    return spec


def one_or(n: Inference, i: int, what: str, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> Spec:
    """The type of input `i`, a scale or zero point: one of `dtypes`, one element or a tensor of one of `shapes`."""
    spec = n.spec(i)
    if spec.dtype not in dtypes:
        raise n.error(f"{what}: expected {', '.join(dtypes)}, got {spec.dtype}")
    if spec.size != 1 and spec.shape not in shapes:
        others = "".join(f" or shape {list(shape)}" for shape in dict.fromkeys(shapes))
        raise n.error(f"{what}: expected one element{others}, got shape {list(spec.shape)}")
    return spec


def choice(n: Inference, name: str, default: str, choices: Sequence[str]) -> str:
    """A string attribute that must be one of `choices`."""
    value = n.attr(name, default)
    if value not in choices:
        raise n.error(f"expected {name} to be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def element_type(n: Inference, code: int | str) -> str:
    """The element type that an attribute specifies by ONNX number or lite name."""
    try:
        return dtype_name(dtype_of(code))
    except MsedgeError as error:
        raise n.error(str(error)) from None


def scalar_int(n: Inference, i: int) -> int:
    """The only element of input `i`."""
    if n.spec(i).size != 1:
        raise n.error(f"expected input {i} to hold one element, got shape {n.spec(i).shape}")
    return n.ints(i)[0]


def sizes_of(n: Inference, i: int) -> tuple[int, ...]:
    """Input `i`, a vector of sizes."""
    if len(n.spec(i).shape) != 1:
        raise n.error(f"expected input {i} to be a vector of sizes, got shape {n.spec(i).shape}")
    sizes = n.ints(i)
    if any(s < 0 for s in sizes):
        raise n.error(f"expected sizes of 0 or more, got {sizes}")
    return sizes


def broadcast(n: Inference, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all of `shapes` broadcast to."""
    rank = max(len(s) for s in shapes)
    wide = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result = []
    for sizes in zip(*wide, strict=True):
        others = {s for s in sizes if s != 1}
        if len(others) > 1:
            raise n.error(f"expected shapes that broadcast, got {', '.join(str(tuple(s)) for s in shapes)}")
        result.append(others.pop() if others else 1)
    return tuple(result)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Distance in elements between consecutive indices along each axis of a row-major tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
