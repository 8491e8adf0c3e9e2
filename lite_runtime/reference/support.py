"""Helpers of all families: types, axes, and the rule that narrow floats are computed in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from lite_runtime.errors import InputError, ShapeError
from lite_runtime.graph import Array, numpy_dtype

__all__ = [
    "NARROW_FLOATS",
    "NARROW_INTS",
    "ONNX_TYPES",
    "axes_of",
    "axis_of",
    "dtype_of",
    "in_float32",
    "integers",
    "is_float",
    "is_integer",
    "optional_scalar",
    "require",
    "scalar",
    "widen",
]

Function = TypeVar("Function", bound=Callable[..., Any])

ONNX_TYPES: tuple[str, ...] = (
    *(
        "undefined",
        "float32",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "float64",
    ),
    *("uint32", "uint64", "complex64", "complex128", "bfloat16"),
    *("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"),
    *("uint4", "int4", "float4e2m1", "float8e8m0", "uint2", "int2"),
)
"""Lite names indexed by ONNX's numbers (`TensorProto.DataType`)."""

NARROW_FLOATS = frozenset(
    {
        *("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    }
)
"""NumPy names of the floating types that are computed in float32."""

NARROW_INTS = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
"""NumPy names and ranges of the integers narrower than a byte."""


def require(condition: bool, what: str) -> None:
    """Raise ShapeError(what) unless the condition holds; the caller adds the node's name."""
    if not condition:
        raise ShapeError(what)


def dtype_of(code: int | str) -> np.dtype:
    """The NumPy dtype for an ONNX type number or a lite dtype name."""
    if isinstance(code, str):
        return numpy_dtype(code)
    if not 0 < code < len(ONNX_TYPES):
        raise InputError(f"expected an ONNX type number of 1 to {len(ONNX_TYPES) - 1}, got {code}")
    return numpy_dtype(ONNX_TYPES[code])


def is_float(dtype: np.dtype) -> bool:
    """Whether it is a floating-point type."""
    return dtype.kind == "f" or dtype.name in NARROW_FLOATS


def is_integer(dtype: np.dtype) -> bool:
    """Whether it is an integer type, including those narrower than a byte."""
    return dtype.kind in "iu" or dtype.name in NARROW_INTS


def widen(x: Array) -> Array:
    """`x`, converted to float32 if its float type is narrower."""
    return x.astype(np.float32) if x.dtype.name in NARROW_FLOATS else x


def in_float32(fn: Function) -> Function:
    """Pass narrow floats to `fn` as float32 and round its float32 results to the type of the first narrow one."""

    @wraps(fn)
    def call(*inputs: Any, **attrs: Any) -> Any:
        narrow = next((x.dtype for x in inputs if isinstance(x, np.ndarray) and x.dtype.name in NARROW_FLOATS), None)
        if narrow is None:
            return fn(*inputs, **attrs)
        results = fn(*(widen(x) if isinstance(x, np.ndarray) else x for x in inputs), **attrs)
        if isinstance(results, tuple):
            return tuple(_round(y, narrow) for y in results)
        return _round(results, narrow)

    return call  # type: ignore[return-value]


def _round(y: Any, dtype: np.dtype) -> Any:
    return y.astype(dtype) if getattr(y, "dtype", None) == np.float32 else y


def integers(x: Array | Iterable[int]) -> tuple[int, ...]:
    """The contents as Python integers, flattened."""
    return tuple(int(v) for v in np.ravel(np.asarray(x)))


def scalar(x: Array, what: str) -> Any:
    """The only element of `x`."""
    x = np.asarray(x)
    require(x.size == 1, f"expected {what} to hold one element, got shape {x.shape}")
    return x.reshape(())[()]


def optional_scalar(x: Array | None, default: Any, what: str) -> Any:
    """The only element of `x`, or `default` if it is left out."""
    return default if x is None or x.size == 0 else scalar(x, what)


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """The axis as a non-negative index; raises ShapeError outside [-rank, rank)."""
    require(-rank <= axis < rank, f"expected {what} in [{-rank}, {rank - 1}] for rank {rank}, got {axis}")
    return int(axis) % rank


def axes_of(axes: Array | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Distinct axes as non-negative indices, in the given order; all of them for None."""
    if axes is None:
        return tuple(range(rank))
    found = tuple(axis_of(a, rank) for a in integers(axes))
    require(len(set(found)) == len(found), f"expected distinct axes, got {found}")
    return found
