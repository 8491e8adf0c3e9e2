"""Steps that know nothing of pictures or sound: numbers to numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge.gateway.processing.steps import Kind, Payload, Single, Source, need
from lite_runtime.graph import Array, numpy_dtype

__all__ = ["Cast", "ChannelsFirst", "Dequantize", "Expand", "Normalize", "Quantize", "Tensor", "Transpose"]


@dataclass(frozen=True)
class Tensor(Source):
    """Rows of numbers, as a client has them; -1 in `shape`: any size."""

    dtype: str
    shape: list[int]

    def outer(self) -> Kind:
        """See `Source`."""
        return Kind(self.dtype, tuple(None if d < 0 else d for d in self.shape))

    kind = outer

    def open(self, item: Array) -> Payload:
        """See `Source`."""
        return Payload(0, item)

    def decode(self, payload: Payload) -> Array:
        """See `Source`."""
        return np.asarray(payload.data)


@dataclass(frozen=True)
class Normalize(Single):
    """(x * scale - mean) / std in float32; a number, or one for each size of the last axis."""

    scale: float
    mean: list[float]
    std: list[float]

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        count = max(len(self.mean), len(self.std))
        need(kind.dtype != "string", "normalize takes numbers, got bytes: decode them first")
        need(
            count == 1 or (bool(kind.shape) and kind.shape[-1] == count),
            f"normalize: expected one mean and std, or one for each of the last axis of {kind}, got {count}",
        )
        need(1 in (len(self.mean), len(self.std)) or len(self.mean) == len(self.std),
             f"normalize: expected as many means as stds, got {len(self.mean)} and {len(self.std)}")  # fmt: skip
        return kind._replace(dtype="float32")

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        result = array.astype(np.float32, order="C")
        # Whole rows of a picture at once: NumPy's loops are slow over a last axis of three (0.37 ms became 0.08).
        rows = result.reshape(*array.shape[:-2], -1) if array.ndim > 1 else result
        if self.scale != 1.0:
            result *= np.float32(self.scale)
        if any(self.mean):
            rows -= _repeated(self.mean, rows.shape)
        if self.std != [1.0]:
            rows /= _repeated(self.std, rows.shape)
        return result


def _repeated(values: list[float], shape: tuple[int, ...]) -> Array:
    """One value as it is; several over and over along the last axis."""
    return np.array(values if len(values) == 1 else values * (shape[-1] // len(values)), np.float32)


@dataclass(frozen=True)
class Transpose(Single):
    """Axes in another order."""

    axes: list[int]

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(sorted(self.axes) == list(range(len(kind.shape))), f"transpose: axes {self.axes} do not order {kind}")
        return kind._replace(shape=tuple(kind.shape[a] for a in self.axes))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return array.transpose(self.axes)


@dataclass(frozen=True)
class ChannelsFirst(Single):
    """[height, width, channels] to [channels, height, width]."""

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(len(kind.shape) == 3, f"channels_first takes [height, width, channels], got {kind}")
        return kind._replace(shape=(kind.shape[2], *kind.shape[:2]))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return array.transpose(2, 0, 1)


@dataclass(frozen=True)
class Expand(Single):
    """A further axis of size one."""

    axis: int

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(self.axis <= len(kind.shape), f"expand: expected an axis of at most {len(kind.shape)}, got {self.axis}")
        return kind._replace(shape=(*kind.shape[: self.axis], 1, *kind.shape[self.axis :]))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return np.expand_dims(array, self.axis)


@dataclass(frozen=True)
class Cast(Single):
    """Another element type; integers take what is rounded half to even and within their range, and NaN as 0."""

    dtype: str

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(kind.dtype != "string", "cast takes numbers, got bytes: decode them first")
        return kind._replace(dtype=self.dtype)

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        wanted = numpy_dtype(self.dtype)
        if wanted.kind == "f":
            return array.astype(wanted)
        return _saturated(array, wanted)


@dataclass(frozen=True)
class Quantize(Single):
    """round half to even(x / scale) + zero_point within the range of `dtype`, as ONNX's QuantizeLinear."""

    scale: float
    zero_point: int
    dtype: str

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(kind.dtype.startswith("float"), f"quantize takes floats, got {kind}; normalize first")
        return kind._replace(dtype=self.dtype)

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        scaled = np.rint(array.astype(np.float32) / np.float32(self.scale)).astype(np.float64)
        return _saturated(scaled + self.zero_point, numpy_dtype(self.dtype))


@dataclass(frozen=True)
class Dequantize(Single):
    """(x - zero_point) * scale in float32, as ONNX's DequantizeLinear."""

    scale: float
    zero_point: int

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(kind.dtype in ("uint8", "int8", "uint16", "int16"), f"dequantize takes 8 or 16 bits, got {kind}")
        return kind._replace(dtype="float32")

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return (array.astype(np.int32) - self.zero_point).astype(np.float32) * np.float32(self.scale)


def _saturated(array: Array, wanted: np.dtype) -> Array:
    limits = np.iinfo(wanted)
    if array.dtype.kind != "f":
        low, high = max(limits.min, _least(array.dtype)), min(limits.max, _most(array.dtype))
        plain = array.astype(np.uint8) if array.dtype.kind == "b" else array
        return np.asarray(np.clip(plain, low, high), wanted)
    real = np.nan_to_num(np.rint(array.astype(np.float64)), nan=0.0)
    result = np.clip(real, limits.min, limits.max)
    # The greatest 64-bit integers are no floats: what rounds up to one beyond them would wrap around.
    made = np.where(result >= float(limits.max), 0.0, result).astype(wanted)
    made[result >= float(limits.max)] = limits.max
    return made


def _least(dtype: np.dtype) -> int:
    return 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _most(dtype: np.dtype) -> int:
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)
