"""A tensor's stored bytes as a numpy array: packed 4-bit and 2-bit values, strings, sparse storage."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError

__all__ = ["PACKED", "STORED", "Contents", "Sparsity", "Stored", "decode", "stored_bytes"]

_T = ir.DataType
STORED: dict[str, tuple[ir.DataType, np.dtype]] = {
    "FLOAT32": (_T.FLOAT, np.dtype("<f4")),
    "FLOAT16": (_T.FLOAT16, np.dtype("<f2")),
    "INT32": (_T.INT32, np.dtype("<i4")),
    "UINT8": (_T.UINT8, np.dtype("u1")),
    "INT64": (_T.INT64, np.dtype("<i8")),
    "STRING": (_T.STRING, np.dtype(object)),
    "BOOL": (_T.BOOL, np.dtype("?")),
    "INT16": (_T.INT16, np.dtype("<i2")),
    "COMPLEX64": (_T.COMPLEX64, np.dtype("<c8")),
    "INT8": (_T.INT8, np.dtype("i1")),
    "FLOAT64": (_T.DOUBLE, np.dtype("<f8")),
    "COMPLEX128": (_T.COMPLEX128, np.dtype("<c16")),
    "UINT64": (_T.UINT64, np.dtype("<u8")),
    "UINT32": (_T.UINT32, np.dtype("<u4")),
    "UINT16": (_T.UINT16, np.dtype("<u2")),
    "INT4": (_T.INT4, np.dtype("i1")),
    "UINT4": (_T.UINT4, np.dtype("u1")),
    "INT2": (_T.INT2, np.dtype("i1")),
    "BFLOAT16": (_T.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
    "FLOAT8_E4M3FN": (_T.FLOAT8E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn)),
    "FLOAT8_E5M2": (_T.FLOAT8E5M2, np.dtype(ml_dtypes.float8_e5m2)),
}
"""ONNX type and decoded numpy type by the schema's TensorType."""
PACKED = {"INT4": 4, "UINT4": 4, "INT2": 2}
"""Bits a value takes in the file, where that is less than a byte; the first value has the lowest bits."""
_DENSE_FREE, _DENSE_RATIO = 1 << 20, 1024
"""Bytes that a sparse tensor may decode to: a fixed allowance, and so many for each stored element or segment."""


@dataclass(frozen=True)
class Sparsity:
    """Positions of a sparse tensor's values: the schema's SparsityParameters.

    `traversal` orders the dimensions (block dimensions last), `block_map[i]` is the dimension that block dimension i
    divides. `dims` has, in traversal order, a size for a dense dimension, or (segments, indices) for a compressed one.
    """

    traversal: tuple[int, ...]
    block_map: tuple[int, ...]
    dims: tuple[int | tuple[np.ndarray, np.ndarray], ...]


@dataclass(frozen=True)
class Contents:
    """A constant's stored bytes, a view into the file whose length fits the tensor's type and shape."""

    data: memoryview
    sparsity: Sparsity | None = None


class Stored(Protocol):
    """The properties of a tensor that decoding needs."""

    @property
    def name(self) -> str:
        """The tensor's name, for messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""

    @property
    def rank(self) -> int:
        """The number of its dimensions."""

    @property
    def type_name(self) -> str:
        """The schema's name of its element type."""

    @property
    def contents(self) -> Contents | None:
        """Its bytes, None for a tensor that is computed."""


def stored_bytes(type_name: str, elements: int) -> int:
    """Bytes that `elements` values take in the file. Not for strings."""
    if type_name in PACKED:
        return -(-elements * PACKED[type_name] // 8)
    return elements * STORED[type_name][1].itemsize


def decode(tensor: Stored) -> np.ndarray | None:
    """`Tensor.array`."""
    contents = tensor.contents
    if contents is None:
        return None
    if tensor.type_name == "STRING":
        return _strings(contents.data, tensor)
    if contents.sparsity is not None:
        return _dense(_values(contents.data, tensor.type_name, None), contents.sparsity, tensor)
    return _values(contents.data, tensor.type_name, prod(tensor.shape)).reshape(tensor.shape)


def _values(data: memoryview, type_name: str, count: int | None) -> np.ndarray:
    dtype = STORED[type_name][1]
    if type_name not in PACKED:
        return np.frombuffer(data, dtype)
    bits = PACKED[type_name]
    packed = np.frombuffer(data, np.uint8)
    places = np.arange(0, 8, bits, dtype=np.uint8)
    values = ((packed[:, None] >> places) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.kind == "u":
        return values
    sign = np.uint8(1 << (bits - 1))
    return (values ^ sign).astype(np.int8) - np.int8(sign)  # two's complement of `bits` bits


def _strings(data: memoryview, tensor: Stored) -> np.ndarray:
    """int32 count, count + 1 int32 offsets, then the bytes."""
    count = prod(tensor.shape)
    found = int.from_bytes(data[:4], "little") if len(data) >= 4 else -1
    if found != count or len(data) < 4 * (count + 2):
        raise ConvertError(f"tensor {tensor.name!r}: expected {count} strings, the file holds {found}; it is damaged")
    ends = np.frombuffer(data[4 : 4 * (count + 2)], "<i4").astype(np.int64)
    if ends[0] < 0 or ends[-1] > len(data) or (np.diff(ends) < 0).any():
        raise ConvertError(
            f"tensor {tensor.name!r}: its strings lie outside its {len(data)} bytes; the file is damaged"
        )
    texts = np.empty(count, object)
    for i in range(count):
        texts[i] = bytes(data[ends[i] : ends[i + 1]])
    return texts.reshape(tensor.shape)


def _dense(values: np.ndarray, sparsity: Sparsity, tensor: Stored) -> np.ndarray:
    """The dense array: walk the dimensions in traversal order, keeping every stored element's coordinates."""
    sizes = _blocked_sizes(sparsity, tensor)
    paths = len(values) + sum(len(dim[0]) for dim in sparsity.dims if not isinstance(dim, int))
    if prod(sizes) * values.dtype.itemsize > _DENSE_FREE + _DENSE_RATIO * paths:
        raise _damaged(tensor, f"{len(values)} values for {prod(sizes)} elements")
    coordinates: list[np.ndarray] = []
    place = np.zeros(1, np.int64)  # index of each path so far within its level
    for size, dim in zip((sizes[t] for t in sparsity.traversal), sparsity.dims, strict=True):
        parent, here, place = _level(place, size, dim, paths, tensor)
        coordinates = [c[parent] for c in coordinates] + [here]
    if len(values) < len(place) or (len(place) and place.max() >= len(values)):
        raise _damaged(tensor, f"{len(place)} places for {len(values)} values")
    dense = np.zeros(sizes, values.dtype)
    order = np.argsort(sparsity.traversal)
    dense[tuple(coordinates[i] for i in order)] = values[place]
    return _unblock(dense, sparsity, tensor)


def _blocked_sizes(sparsity: Sparsity, tensor: Stored) -> tuple[int, ...]:
    """Sizes of the tensor's dimensions counted in blocks, then of the block dimensions."""
    rank = tensor.rank
    block = [0] * len(sparsity.block_map)
    for where, dim in zip(sparsity.traversal, sparsity.dims, strict=True):
        if where >= rank:
            if not isinstance(dim, int) or dim < 1:
                raise _damaged(tensor, "a block dimension that is not dense")
            block[where - rank] = dim
    outer = list(tensor.shape)
    for cut, size in zip(sparsity.block_map, block, strict=True):
        if outer[cut] % size:
            raise _damaged(tensor, f"blocks of {size} in a dimension of {outer[cut]}")
        outer[cut] //= size
    return (*outer, *block)


def _level(
    place: np.ndarray, size: int, dim: int | tuple[np.ndarray, np.ndarray], paths: int, tensor: Stored
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Expand one more dimension: for each path its parent path, its coordinate here, and its index in this level.

    `paths` limits their number: each ends in a stored value or in a segment.
    """
    if isinstance(dim, int):
        if dim != size:
            raise _damaged(tensor, f"a dimension of {size} stored as {dim}")
        if len(place) * size > paths:
            raise _damaged(tensor, f"at least {len(place) * size} places for {paths} values and segments")
        parent = np.repeat(np.arange(len(place)), size)
        here = np.tile(np.arange(size), len(place))
        return parent, here, place[parent] * size + here
    segments, indices = dim
    if len(place) and place.max() + 1 >= len(segments):
        raise _damaged(tensor, f"{len(segments)} segments for {int(place.max()) + 1} rows")
    if len(segments) and (segments[0] < 0 or segments[-1] > len(indices) or (np.diff(segments) < 0).any()):
        raise _damaged(tensor, "segments out of order")
    if len(indices) and not 0 <= indices.min() <= indices.max() < size:
        raise _damaged(tensor, f"indices outside a dimension of {size}")
    counts = segments[place + 1] - segments[place]
    if counts.sum() > paths:
        raise _damaged(tensor, f"{counts.sum()} places for {paths} values and segments")
    parent = np.repeat(np.arange(len(place)), counts)
    first = np.repeat(segments[place] - (np.cumsum(counts) - counts), counts)
    index = first + np.arange(len(parent))
    return parent, indices[index], index


def _unblock(dense: np.ndarray, sparsity: Sparsity, tensor: Stored) -> np.ndarray:
    """Move each block dimension behind the dimension that it divides."""
    rank = tensor.rank
    order: list[int] = []
    for d in range(rank):
        order += [d, *(rank + i for i, cut in enumerate(sparsity.block_map) if cut == d)]
    return np.ascontiguousarray(dense.transpose(order)).reshape(tensor.shape)


def _damaged(tensor: Stored, what: str) -> ConvertError:
    return ConvertError(f"tensor {tensor.name!r}: sparse storage with {what}; the file is damaged")
