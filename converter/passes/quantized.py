"""Reading quantised values of the IR: which integers represent a float value, and with which parameters.

`dequantized(value)` looks through a DequantizeLinear, `stored(value)` through one of constants, whose contents it
returns; `quantizer(node)` describes the result of a QuantizeLinear. Passes compare `Parameters` and never read the
operands themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims
from lite_runtime.operators import having

__all__ = [
    "BYTES",
    "CONTRACTIONS",
    "Parameters",
    "Quantized",
    "Stored",
    "contracts_integers",
    "depthwise_transposed",
    "dequantize",
    "dequantized",
    "quantizer",
    "same",
    "stored",
]

BYTES = frozenset((ir.DataType.INT8, ir.DataType.UINT8))
CONTRACTIONS = having("accumulates") - having("quantised")
"""Matrix products and convolutions of floats, which have a form on integers."""
_ACTIVATIONS = BYTES | {ir.DataType.INT16}
_WEIGHTS = BYTES | {ir.DataType.INT4, ir.DataType.UINT4}


def depthwise_transposed(node: ir.Node) -> bool:
    """Whether each channel of a ConvTranspose has a kernel of its own and gives one channel."""
    shape = dims(node.inputs[1])
    return shape is not None and shape[:2] == (attr(node, "group", 1), 1)


@dataclass(frozen=True)
class Parameters:
    """real = (integer - zero_point) * scale, in float32."""

    scale: ir.Value
    zero_point: ir.Value | None
    dtype: ir.DataType
    """The element type of the integers."""
    axis: int | None = None
    """The axis that scales go along, counted from the front; None: one scale for all."""
    block: int = 0
    """The number of integers per scale along `axis`; 0: one."""

    @property
    def plain(self) -> bool:
        """One scale and one zero point for the whole tensor."""
        return self.axis is None

    @property
    def scales(self) -> np.ndarray | None:
        """The scales, where constant: a scalar if `plain`."""
        found = build.array(self.scale)
        return found.reshape(()) if found is not None and self.plain else found

    @property
    def zeros(self) -> np.ndarray | None:
        """The zero points, if constant or omitted."""
        if self.zero_point is None:
            return np.zeros((), self.dtype.numpy())
        found = build.array(self.zero_point)
        return found.reshape(()) if found is not None and self.plain else found


@dataclass(frozen=True)
class Quantized:
    """A float value as integers and their parameters."""

    q: ir.Value
    parameters: Parameters


@dataclass(frozen=True)
class Stored:
    """A quantised constant: arrays in place of values."""

    q: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    axis: int | None
    block: int
    name: str

    def values(self) -> np.ndarray:
        """The float32 numbers that DequantizeLinear computes."""
        from lite_runtime.reference import DEFINITIONS

        zero = self.zero
        made = DEFINITIONS["DequantizeLinear"](self.q, self.scale, zero, axis=self.axis or 0, block_size=self.block)
        return np.asarray(made)

    def transposed(self, perm: Sequence[int]) -> Stored:
        """With its axes permuted, those of the scales as well."""
        axis = None if self.axis is None else list(perm).index(self.axis)
        blocks = [None if a is None else a.transpose(perm) for a in (self.scale, self.zero)] if self.block else None
        scale, zero = blocks or (self.scale, self.zero)
        assert scale is not None
        return replace(self, q=self.q.transpose(perm), scale=scale, zero=zero, axis=axis)

    def reshaped(self, shape: Sequence[int]) -> Stored | None:
        """In another shape; None if the result has no such axis of scales."""
        if self.axis is None:
            return replace(self, q=self.q.reshape(shape))
        if self.block:
            return None
        axis = axis_after_reshape(self.q.shape, shape, self.axis)
        return None if axis is None else replace(self, q=self.q.reshape(shape), axis=axis)

    def emit(self, edit: Edit) -> ir.Value:
        """DequantizeLinear of new initialisers."""
        zero = None if self.zero is None else edit.const(self.zero, hint=f"{self.name}.zero")
        scale = edit.const(self.scale, hint=f"{self.name}.scale")
        attrs = {"axis": self.axis, "block_size": self.block or None}
        result = edit.op("DequantizeLinear", [edit.const(self.q, hint=self.name), scale, zero], attrs)
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(self.q.shape)
        return result


def axis_after_reshape(old: Sequence[int], new: Sequence[int], axis: int) -> int | None:
    """Where `axis` of a tensor of shape `old` is after a reshape to `new`: same size, same number of elements ahead."""
    ahead = int(np.prod(old[:axis], dtype=np.int64))
    for i, size in enumerate(new):
        if size == old[axis] and int(np.prod(new[:i], dtype=np.int64)) == ahead and (size != 1 or axis == i):
            return i
    return None


def _parameters(node: ir.Node, dtype: ir.DataType | None) -> Parameters | None:
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    shape, rank, block = dims(scale), build.rank(node.inputs[0]), attr(node, "block_size", 0)
    if scale is None or shape is None or dtype is None or scale.dtype != ir.DataType.FLOAT:
        return None
    if not block and (shape == () or shape == (1,)):
        return Parameters(scale, zero, dtype)
    if rank is None:
        return None
    return Parameters(scale, zero, dtype, attr(node, "axis", 1) % rank, block)


def dequantized(value: ir.Value | None) -> Quantized | None:
    """The integers and parameters that a float32 value is dequantised from."""
    node = value.producer() if value is not None else None
    if node is None or value is None or not build.is_op(node, "DequantizeLinear") or value.dtype != ir.DataType.FLOAT:
        return None
    q = node.inputs[0]
    found = _parameters(node, q.dtype if q is not None else None)
    return None if q is None or found is None else Quantized(q, found)


def quantizer(node: ir.Node | None) -> Parameters | None:
    """The parameters of a QuantizeLinear of float32."""
    if node is None or not build.is_op(node, "QuantizeLinear"):
        return None
    x = node.inputs[0]
    if x is None or x.dtype != ir.DataType.FLOAT or attr(node, "precision", 0):
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    dtype = zero.dtype if zero is not None else ir.DataType(attr(node, "output_dtype", 0) or ir.DataType.UINT8)
    return _parameters(node, dtype)


def same(a: Parameters, b: Parameters) -> bool:
    """Whether equal integers represent equal numbers."""
    if (a.dtype, a.axis, a.block) != (b.dtype, b.axis, b.block):
        return False
    if a.scale is not b.scale and not _equal(a.scales, b.scales):
        return False
    return (a.zero_point is not None and a.zero_point is b.zero_point) or _equal(a.zeros, b.zeros)


def _equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return False
    shape = max(a.shape, b.shape, key=len)
    return bool((np.broadcast_to(a, shape) == np.broadcast_to(b, shape)).all())


def stored(value: ir.Value | None) -> Stored | None:
    """The constants that a value is dequantised from."""
    found = dequantized(value)
    if found is None:
        return None
    q, scale, zero = build.array(found.q), found.parameters.scales, found.parameters.zeros
    if q is None or scale is None or zero is None:
        return None
    p = found.parameters
    return Stored(q, scale, None if p.zero_point is None else zero, p.axis, p.block, found.q.name or "")


def dequantize(edit: Edit, q: ir.Value, parameters: Parameters, like: ir.Value, axis: int | None = None) -> ir.Value:
    """DequantizeLinear of integers that have `parameters`; `axis`: the axis of the scales in the new tensor."""
    scale, zero = (_scalar(edit, v) if parameters.plain else v for v in (parameters.scale, parameters.zero_point))
    attrs = {} if parameters.plain else {"axis": axis, "block_size": parameters.block or None}
    return edit.op("DequantizeLinear", [q, scale, zero], attrs, like=like)


def _scalar(edit: Edit, value: ir.Value | None) -> ir.Value | None:
    """A constant of shape [1] as a scalar: for a tensor of rank 1 it would mean one scale per element."""
    found = build.array(value)
    if value is None or found is None or found.ndim == 0:
        return value
    return edit.const(found.reshape(()), hint=value.name or "")


def _unmoved(value: ir.Value | None) -> ir.Value | None:
    node = value.producer() if value is not None else None
    while node is not None and build.is_op(node, *having("movement")):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return value


def contracts_integers(node: ir.Node) -> bool:
    """Whether a Conv, ConvTranspose, MatMul or Gemm has an integer form: both operands are quantised.

    Movement between a DequantizeLinear and the operator is ignored: it will be applied to the integers.
    """
    if node.op_type not in CONTRACTIONS or node.domain not in ("", build.DOMAIN) or len(node.inputs) < 2:
        return False
    x, w = (dequantized(_unmoved(v)) for v in node.inputs[:2])
    if x is None or w is None:
        return False
    return x.parameters.dtype in _ACTIVATIONS and w.parameters.dtype in _WEIGHTS and not w.parameters.block
