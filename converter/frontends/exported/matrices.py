"""Constants of an exported graph as a language model's matrices: floats, or the file's own blocks of integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.decoders import Blocked, Dense, Matrix, finite
from converter.ir.build import attr, title
from lite_runtime.graph import Array

__all__ = ["Constant", "blocks_of", "constant_of", "dense_of", "part_of", "vector_of"]

_FLOATS = {ir.DataType.FLOAT: "F32", ir.DataType.FLOAT16: "F16", ir.DataType.BFLOAT16: "BF16"}
_SAME = ("Cast", "Identity")


@dataclass(frozen=True)
class Constant:
    """A tensor of the file, as it is or transposed."""

    value: ir.Value
    tensor: ir.TensorProtocol
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        shape = tuple(d for d in self.tensor.shape if isinstance(d, int))
        return shape[::-1] if self.transposed else shape

    def array(self) -> Array:
        """Its contents."""
        found = np.asarray(self.tensor.numpy())
        return found.T if self.transposed else found


def constant_of(value: ir.Value | None, reshaped: bool = False) -> Constant | None:
    """The tensor that a value is, through casts and a transposition; None if it is computed. `reshaped`: another shape
    does not matter."""
    turned = False
    while value is not None:
        if value.const_value is not None:
            return Constant(value, value.const_value, turned)
        node = value.producer()
        if node is None:
            return None
        if node.op_type == "Constant" and isinstance(tensor := attr(node, "value", None), ir.TensorProtocol):
            return Constant(value, tensor, turned)
        if node.op_type == "Transpose" and list(attr(node, "perm", [1, 0])) == [1, 0]:
            turned = not turned
        elif node.op_type not in _SAME and not (reshaped and node.op_type == "Reshape"):
            return None
        value = node.inputs[0]
    return None


def dense_of(held: Constant, name: str, flipped: bool) -> Dense:
    """A matrix of floats as (n, k); `flipped`: the file has (k, n)."""
    kind = _FLOATS.get(held.tensor.dtype)
    if kind is None or len(held.shape) != 2:
        raise ConvertError(
            f"tensor {held.value.name!r}: expected a matrix of floats, got {held.tensor.dtype} {list(held.shape)}"
        )

    def rows(begin: int, end: int) -> Array:
        whole = held.array()
        part = whole[:, begin:end].T if flipped else whole[begin:end]
        return np.ascontiguousarray(part, np.float32)

    return Dense(name, held.shape[::-1] if flipped else held.shape, rows, kind)


def vector_of(held: Constant) -> Array:
    """A vector of floats."""
    if held.tensor.dtype not in _FLOATS or len(held.shape) != 1:
        raise ConvertError(
            f"tensor {held.value.name!r}: expected a vector of floats, got {held.tensor.dtype} {list(held.shape)}"
        )
    return held.array().astype(np.float32)


def blocks_of(node: ir.Node, name: str, table: bool) -> Blocked:
    """The blocks of a MatMulNBits, or of a GatherBlockQuantized (`table`): what the file has is kept exactly."""
    at = (0, 2, 3) if table else (1, 2, 3)
    q, scales, points = (constant_of(node.inputs[i], True) if i < len(node.inputs) else None for i in at)
    if q is None or scales is None or (points is None and _given(node, at[2])):
        raise ConvertError(
            f"node {title(node)}: expected weights, scales and zero points that are constants; export again"
        )
    bits, block = attr(node, "bits", 4), attr(node, "block_size", 128 if table else 0)
    if table:
        n, k = q.shape[0], int(np.prod(q.shape[1:])) * 8 // max(bits, 1)
    else:
        n, k = attr(node, "N", 0), attr(node, "K", 0)
    if bits not in (4, 8) or block < 16 or block % 8 or k < 1 or k % block or n < 1:
        raise ConvertError(
            f"node {title(node)}: expected 4 or 8 bits in whole blocks of 16 or more, got {bits} bits, K {k}, "
            f"block_size {block}; export with another block size"
        )
    blocks, half = k // block, 1 << bits - 1
    _expect(node, q, (ir.DataType.UINT8,), n * k * bits // 8)
    _expect(node, scales, (ir.DataType.FLOAT, ir.DataType.FLOAT16), n * blocks)
    wide = scales.tensor.dtype == ir.DataType.FLOAT
    zeros = _points(node, points, (n, blocks), bits, half)
    common = int(zeros[0, 0]) if zeros is not None and (zeros == zeros[0, 0]).all() and zeros[0, 0] % 1 == 0 else None

    def integers(begin: int, end: int) -> Array:
        rows = q.array().reshape(n, -1)[begin:end]
        return rows if bits == 8 else np.stack([rows & 15, rows >> 4], axis=-1).reshape(end - begin, k)

    def steps() -> Array:
        return finite(name, np.ascontiguousarray(scales.array().reshape(n, blocks)))

    made = Blocked(name, (n, k), bits, block, half, integers, steps, None, not wide, f"W{bits} blocks of {block}")
    if zeros is None:
        return made
    if common is not None and 0 <= common < 2**bits:
        return replace(made, zero_point=common)
    exact = zeros
    return replace(
        made, zero_point=0, half=False, scales=lambda: steps().astype(np.float32),
        offsets=lambda: -exact * steps().astype(np.float32),
    )  # fmt: skip


def part_of(matrix: Matrix, begin: int, end: int, name: str) -> Matrix:
    """Some rows of a matrix."""
    if isinstance(matrix, Dense):
        rows = matrix.rows
        return replace(
            matrix, name=name, shape=(end - begin, *matrix.shape[1:]), rows=lambda a, b: rows(begin + a, begin + b)
        )
    whole = matrix

    def table(of: Callable[[], Array]) -> Callable[[], Array]:
        return lambda: of()[begin:end]

    return replace(
        whole, name=name, shape=(end - begin, whole.shape[1]), q=lambda a, b: whole.q(begin + a, begin + b),
        scales=table(whole.scales), offsets=None if whole.offsets is None else table(whole.offsets),
    )  # fmt: skip


def _points(node: ir.Node, points: Constant | None, shape: tuple[int, int], bits: int, half: int) -> Array | None:
    """Zero points by block, float32; None if there are none."""
    if points is None:
        return None
    (n, blocks) = shape
    if points.tensor.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        _expect(node, points, (points.tensor.dtype,), n * blocks)
        return points.array().reshape(shape).astype(np.float32)
    row = -(-blocks * bits // 8)
    _expect(node, points, (ir.DataType.UINT8,), n * row)
    packed = points.array().reshape(n, row)
    found = packed if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1).reshape(n, -1)[:, :blocks]
    return found.astype(np.float32)


def _given(node: ir.Node, i: int) -> bool:
    return i < len(node.inputs) and node.inputs[i] is not None


def _expect(node: ir.Node, held: Constant, kinds: tuple[ir.DataType, ...], size: int) -> None:
    """Raise ConvertError for a tensor of another type or size."""
    got = int(np.prod(held.shape))
    if held.tensor.dtype not in kinds or got != size:
        wanted = " or ".join(str(kind) for kind in kinds)
        raise ConvertError(
            f"node {title(node)}: expected {size} elements of {wanted} in {held.value.name!r}, got {got} of "
            f"{held.tensor.dtype}"
        )
