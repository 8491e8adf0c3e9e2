"""Cast, CastLike and BitCast, with ONNX's rules for narrow types (tables in the documentation of Cast)."""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import NARROW_FLOATS, NARROW_INTS, dtype_of, is_integer, require

__all__ = ["cast"]

_FLOAT8_MAX = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
}
_FLOAT4_MAX = 6.0
_E8M0_BIAS, _E8M0_NAN = 127, 255


def cast(x: Array, dtype: np.dtype, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """`x` as `dtype` (object for strings)."""
    if x.dtype.kind in "OUT":
        return _from_strings(x, dtype)
    if dtype.kind == "O":
        return _to_strings(x)
    if dtype.name == "bool":
        return np.asarray(x.astype(np.float32 if x.dtype.name in NARROW_FLOATS else x.dtype) != 0)
    if dtype.name in NARROW_INTS:
        return _to_narrow_integer(x, dtype)
    if dtype.name in _FLOAT8_MAX:
        return _to_float8(x, dtype, saturate)
    if dtype.name == "float4_e2m1fn":
        return np.asarray(np.clip(_real(x), -_FLOAT4_MAX, _FLOAT4_MAX).astype(dtype))
    if dtype.name == "float8_e8m0fnu":
        return _to_e8m0(_real(x).astype(np.float64), dtype, saturate, round_mode)
    if dtype.kind in "iu" and x.dtype.name in NARROW_FLOATS:
        x = x.astype(np.float32)
    return x.astype(dtype)


def _real(x: Array) -> Array:
    """A float32 or float64 array with the values of `x`."""
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _to_narrow_integer(x: Array, dtype: np.dtype) -> Array:
    """High bits are dropped, as in conversions between wider integers; fractions are truncated."""
    low, high = NARROW_INTS[dtype.name]
    whole = x.astype(np.int64) if is_integer(x.dtype) or x.dtype.kind == "b" else np.trunc(_real(x)).astype(np.int64)
    return ((whole - low) % (high - low + 1) + low).astype(np.int8).astype(dtype)


def _to_float8(x: Array, dtype: np.dtype, saturate: bool) -> Array:
    """Round to nearest, ties to even. Values above the largest become the largest (saturate), otherwise infinity or
    NaN."""
    values = _real(x)
    if saturate:
        values = np.clip(values, -_FLOAT8_MAX[dtype.name], _FLOAT8_MAX[dtype.name])
    return values.astype(dtype)


def _to_e8m0(x: Array, dtype: np.dtype, saturate: bool, round_mode: str) -> Array:
    """A power of two stored as its exponent plus 127. The value itself is rounded; `nearest` rounds ties up."""
    require(round_mode in ("up", "down", "nearest"), f"expected round_mode up, down or nearest, got {round_mode!r}")
    fraction, exponent = np.frexp(np.abs(x))  # |x| = fraction * 2**exponent, fraction in [0.5, 1)
    floor = exponent.astype(np.int64) - 1
    up = {"up": fraction > 0.5, "down": np.zeros(x.shape, bool), "nearest": fraction >= 0.75}[round_mode]
    code = floor + up + _E8M0_BIAS
    code = np.where(x == 0, -1, np.where(np.isinf(x), _E8M0_NAN, code))
    outside = (code < 0) | (code >= _E8M0_NAN)
    code = np.clip(code, 0, _E8M0_NAN - 1) if saturate else np.where(outside, _E8M0_NAN, code)
    return np.where(np.isnan(x), _E8M0_NAN, code).astype(np.uint8).view(dtype)


def _to_strings(x: Array) -> Array:
    """The shortest decimal text that parses to the same number."""
    if x.dtype.name in NARROW_FLOATS and x.dtype != np.float16:
        x = x.astype(np.float32)
    out = np.empty(x.size, object)
    out[:] = [_text(v) for v in x.ravel()]
    return out.reshape(x.shape)


def _text(value: np.generic) -> str:
    if value.dtype.kind == "f":
        return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(str(value), str(value))
    if value.dtype.kind == "b":
        return "1" if value else "0"
    return str(int(value)) if value.dtype.kind in "iu" else str(value)


def _from_strings(x: Array, dtype: np.dtype) -> Array:
    if dtype.kind == "O":
        return x.astype(object)
    texts = [t.decode() if isinstance(t, bytes) else str(t) for t in x.ravel()]
    try:
        if is_integer(dtype):
            whole = [int(t) if t.strip().lstrip("+-").isdigit() else int(float(t)) for t in texts]
            return cast(np.array(whole, np.int64 if dtype != np.uint64 else dtype), dtype).reshape(x.shape)
        return cast(np.array([float(t) for t in texts], np.float64), dtype).reshape(x.shape)
    except (ValueError, OverflowError) as error:
        raise InputError(f"expected strings that are numbers: {error}") from error


@define("Cast")
def _cast(x: Array, /, to: int | str, saturate: int = 1, round_mode: str = "up") -> Array:
    return cast(x, dtype_of(to), saturate=bool(saturate), round_mode=round_mode)


@define("CastLike")
def _cast_like(x: Array, like: Array, /, saturate: int = 1, round_mode: str = "up") -> Array:
    dtype = np.dtype(object) if like.dtype.kind in "OUT" else like.dtype
    return cast(x, dtype, saturate=bool(saturate), round_mode=round_mode)


@define("BitCast")
def _bit_cast(x: Array, /, to: int | str) -> Array:
    """The same bits as another type of the same width."""
    dtype = dtype_of(to)
    require(_bits(x.dtype) == _bits(dtype), f"expected types of the same width, got {x.dtype} and {dtype}")
    return np.ascontiguousarray(x).view(dtype).reshape(x.shape)


def _bits(dtype: np.dtype) -> int:
    if dtype.name in NARROW_INTS or dtype.name == "float4_e2m1fn":
        return 2 if dtype.name.endswith("int2") else 4
    return 8 * dtype.itemsize
