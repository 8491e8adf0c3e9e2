"""Operators of onnxruntime's quantisers and of its optimiser for quantised models (domain com.microsoft) in QDQ form.

`qlinear_to_qdq` has those that are only the float operator between DequantizeLinear and QuantizeLinear.

1. GatherBlockQuantized: rows and their scales are gathered, then become real numbers.
2. MatMulNBits: weights of 2, 4 or 8 bits in blocks of rows; MatMulBnb4: weights of 4 bits from a table, as floats.
3. QEmbedLayerNormalization: EmbedLayerNormalization of dequantised rows.
4. NhwcMaxPool.

`ENTRIES` is the table. Meaning: onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.channels_last import to_first, to_last
from converter.passes.contrib_attention import summed
from converter.passes.qlinear_to_qdq import dequantized
from converter.passes.rewrite import Entry

__all__ = ["ENTRIES"]

Value = ir.Value | None


def _unpacked(rows: np.ndarray, bits: int) -> np.ndarray:
    """The values in the last axis of bytes, the first of a byte in its lowest bits."""
    if bits == 8:
        return rows
    parts = [(rows >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*rows.shape[:-1], -1)


def _narrow(bits: int) -> np.dtype:
    """The type for unsigned values of so many bits; those of 2 are held in 4."""
    return np.dtype(np.uint8 if bits == 8 else ml_dtypes.uint4)


# gather


def _gather(node: ir.Node) -> bool:
    """data, indices, scales, zero points; bytes hold several values of the last axis"""
    data, indices, scales, zeros = (operand(node, i) for i in range(4))
    raw, scale, zero = build.array(data), build.array(scales), build.array(zeros)
    if raw is None or scale is None or (zeros is not None and zero is None) or data is None or raw.dtype.kind == "f":
        return False
    block, bits = int(attr(node, "block_size", 128)), int(attr(node, "bits", 4))
    axis, along = (int(attr(node, f"{key}_axis", i)) % raw.ndim for i, key in enumerate(("gather", "quantize")))
    if axis == along or block < 1:
        return False
    packed = raw.dtype == np.uint8 and bits < 8
    if raw.dtype == np.uint8:
        zero = np.full(scale.shape, 1 << (bits - 1)) if zero is None else _unpacked(zero, bits)[..., : scale.shape[-1]]
    elif raw.dtype.name in ("int4", "uint4"):
        bits, low = 4, 8 if raw.dtype.name == "int4" else 0
        zero = (np.zeros(scale.shape) if zero is None else zero.astype(np.int32)) + low
        raw = (raw.astype(np.int32) + low).astype(np.uint8)
        packed = raw.shape[-1] % 2 == 0 and axis != raw.ndim - 1
        raw = raw[..., ::2] | raw[..., 1::2] << 4 if packed else raw
    else:
        return False
    shift = build.rank(indices)
    if shift is None:
        return False
    edit = Edit(node)
    parts = [edit.const(v, hint=data.name or "") for v in (raw, scale, zero.astype(np.uint8))]
    rows, *rest = (edit.op("Gather", [part, indices], {"axis": axis}) for part in parts)
    if packed:
        rows = _spread(edit, rows, bits, raw.ndim + shift - 1)
    place = along + shift - 1 if along > axis else along
    edit.replace(edit.op("DequantizeLinear", [rows, *rest], {"axis": place, "block_size": block}))
    return True


def _spread(edit: Edit, rows: ir.Value, bits: int, rank: int) -> ir.Value:
    """The values in bytes, along the last of `rank` axes: Gather takes no integers of fewer than 8 bits."""
    shifts = edit.const(np.arange(0, 8, bits, dtype=np.uint8))
    column = edit.op("Unsqueeze", [rows, edit.ints([rank])])
    moved = edit.op("BitShift", [column, shifts], {"direction": "RIGHT"})
    values = edit.op("BitwiseAnd", [moved, edit.const(np.uint8((1 << bits) - 1))])
    return edit.op("Reshape", [values, edit.ints([*[0] * (rank - 1), -1])])


# products


def _matmul_n_bits(node: ir.Node) -> bool:
    """A, B [N, blocks, bytes], scales [N * blocks], zero points packed like B or of A's type, blocks of rows, bias"""
    a, packed, scales, zeros, groups, bias = (operand(node, i) for i in range(6))
    raw, scale, zero, group = (build.array(v) for v in (packed, scales, zeros, groups))
    bits, block, rows, depth = (int(attr(node, key, 4)) for key in ("bits", "block_size", "N", "K"))
    computed = (zeros is not None and zero is None) or (groups is not None and group is None)
    if raw is None or scale is None or computed or bits not in (2, 4, 8) or block < 1:
        return False
    blocks = -(-depth // block)
    values = _unpacked(raw.reshape(rows, -1), bits)[:, :depth]
    scale = scale.reshape(rows, blocks)
    edit = Edit(node)
    if group is not None:
        order = _order(group, block)
        if order is None:
            return False
        if not np.array_equal(order, np.arange(depth)):
            a, values = edit.op("Gather", [a, edit.ints(order.tolist())], {"axis": -1}), values[:, order]
    middle = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    shift = None
    if zero is not None and zero.dtype == np.uint8:
        middle = _unpacked(zero.reshape(rows, -1), bits)[:, :blocks]
    elif zero is not None:
        shift = (middle - zero.reshape(rows, blocks).astype(np.float32)) * scale.astype(np.float32)
    name = packed.name or "" if packed is not None else ""
    contents = (values.astype(_narrow(bits)).T, scale.T, middle.astype(_narrow(bits)).T)
    weight = edit.op("DequantizeLinear", [edit.const(v, hint=name) for v in contents], {"axis": 0, "block_size": block})
    weight.type, weight.shape = ir.TensorType(ir.DataType.from_numpy(scale.dtype)), ir.Shape((depth, rows))
    product = edit.op("MatMul", [a, weight])
    if shift is not None and shift.any():
        product = edit.op("Add", [product, _block_sums(edit, a, shift.astype(scale.dtype), depth, block)])
    edit.replace(summed(edit, product, bias))
    return True


def _order(group: np.ndarray, block: int) -> np.ndarray | None:
    """The order of rows in which blocks are contiguous; None if a block but the last has not `block` rows."""
    order = np.argsort(group.reshape(-1), kind="stable")
    return order if np.array_equal(group.reshape(-1)[order], np.arange(order.size) // block) else None


def _block_sums(edit: Edit, a: Value, shift: np.ndarray, depth: int, block: int) -> ir.Value:
    """What zero points that are no integers add: sums of the operand over blocks, times `shift` (n, blocks)."""
    rank = build.rank(a)
    if rank is not None and depth % block == 0:
        parts = edit.op("Reshape", [a, edit.ints([*[0] * (rank - 1), -1, block])])
        sums = edit.op("ReduceSum", [parts, edit.ints([-1])], {"keepdims": 0})
    else:
        member = np.zeros((depth, shift.shape[1]), shift.dtype)
        member[np.arange(depth), np.arange(depth) // block] = 1
        sums = edit.op("MatMul", [a, edit.const(member)])
    return edit.op("MatMul", [sums, edit.const(shift.T)])


_BNB4 = (
    # quant_type 0: FP4, sign and three bits
    (0.0, 0.0052083333, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25),
    # 1: NF4, quantiles of the normal distribution
    (-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0, 0.0795803, 0.1609302, 0.2461123,
     0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
)  # fmt: skip
"""The values of the codes; those of FP4 with the highest bit are negative."""


def _matmul_bnb4(node: ir.Node) -> bool:
    """A, B: codes of N * K values, the first in a byte's high bits, and the largest magnitude of each block"""
    packed, largest = build.array(operand(node, 1)), build.array(operand(node, 2))
    kind = int(attr(node, "quant_type", 1))
    rows, depth, block = (int(attr(node, key, 0)) for key in ("N", "K", "block_size"))
    if packed is None or largest is None or kind not in (0, 1) or block < 1 or not attr(node, "transB", 1):
        return False
    table = np.asarray(_BNB4[kind], np.float32)
    table = np.concatenate([table, -table]) if kind == 0 else table
    codes = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], -1).reshape(-1)[: rows * depth]
    values = table[codes] * np.repeat(largest.astype(np.float32), block)[: rows * depth]
    edit = Edit(node)
    weight = edit.const(np.ascontiguousarray(values.reshape(rows, depth).T.astype(largest.dtype)))
    edit.replace(edit.op("MatMul", [node.inputs[0], weight]))
    return True


# whole layers


_EMBEDDINGS = ((2, 8), (3, 9), (4, 10), (5, 11), (6, 12))
"""The operands that are integers, and their scales; zero points are 5 places behind the scales."""


def _q_embed_norm(node: ir.Node) -> bool:
    edit = Edit(node)
    given = [operand(node, i) for i in range(8)]
    for index, scale in _EMBEDDINGS:
        if given[index] is not None:
            given[index] = dequantized(edit, given[index], operand(node, scale), operand(node, scale + 5))
    attrs = {"epsilon": float(attr(node, "epsilon", 1e-12)), "mask_index_type": 1}
    while given[-1] is None:
        given.pop()
    edit.replace(*edit.ops("EmbedLayerNormalization", given, attrs, domain="com.microsoft", outputs=len(node.outputs)))
    return True


def _nhwc_max_pool(node: ir.Node) -> bool:
    rank = build.rank(node.inputs[0])
    if rank is None:
        return False
    edit = Edit(node)
    x = edit.op("Transpose", [node.inputs[0]], {"perm": to_first(rank)})
    y = edit.op("MaxPool", [x], dict(node.attributes))
    edit.replace(edit.op("Transpose", [y], {"perm": to_last(rank)}))
    return True


ENTRIES: Mapping[str, Entry] = {
    "GatherBlockQuantized": _gather,
    "MatMulBnb4": _matmul_bnb4,
    "MatMulNBits": _matmul_n_bits,
    "NhwcMaxPool": _nhwc_max_pool,
    "QEmbedLayerNormalization": _q_embed_norm,
}
"""By operator."""
