"""Products with weights of 4 or 8 bits in blocks, each with a scale and an offset of its own.

A weight of output n and depth k is `(q - zero_point) * scale + offset`, where q is unsigned and scale and offset belong
to its block, `block_size` neighbours in k. There are two layouts:

    ""        q [N, K / block_size, block_size * bits / 8], of two in a byte the first in its low half (ONNX Runtime's
              MatMulNBits); scales and offsets [N, K / block_size]
    "panels"  q [ceil(N / 16), K * bits / 32, 16, 4]: what kernels read in place. A panel has 16 outputs; each of its
              words has the next 32 / bits values of one of them: byte j the j-th, and with 4 bits in its high half the
              one four further. scales and offsets [ceil(N / 16), K / block_size, 16]; outputs from N on are 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.operators.language import ACTIVATIONS, PANEL
from lite_runtime.reference.activation import activate
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__ = ["Blocks", "from_panels", "to_panels", "weights"]


class Blocks(NamedTuple):
    """What represents a matrix: integers, scales, offsets (None: none)."""

    q: Array
    scales: Array
    offsets: Array | None = None


def to_panels(blocks: Blocks, bits: int) -> Blocks:
    """Layout "" to layout "panels". The depth must be a multiple of 32 / bits."""
    q, scales, offsets = blocks
    n, panels = len(q), -(-len(q) // PANEL)
    values = np.zeros((panels * PANEL, q[0].size * 8 // bits), np.uint8)
    values[:n] = _values(q.reshape(n, -1), bits)
    if bits == 4:
        eights = values.reshape(len(values), -1, 8)
        words = eights[..., :4] | eights[..., 4:] << 4
    else:
        words = values.reshape(len(values), -1, 4)
    in_panels = words.reshape(panels, PANEL, -1, 4).swapaxes(1, 2)

    def table(given: Array) -> Array:
        whole = np.zeros((panels * PANEL, given.shape[1]), given.dtype)
        whole[:n] = given
        return np.ascontiguousarray(whole.reshape(panels, PANEL, -1).swapaxes(1, 2))

    return Blocks(np.ascontiguousarray(in_panels), table(scales), None if offsets is None else table(offsets))


def from_panels(blocks: Blocks, n: int, bits: int) -> Blocks:
    """The inverse of `to_panels` for a matrix of n outputs."""
    q, scales, offsets = blocks
    words = q.swapaxes(1, 2).reshape(-1, q.shape[1], 4)[:n]
    if bits == 4:
        values = np.concatenate([words & 15, words >> 4], axis=2).reshape(n, -1)
        words = values[:, ::2] | values[:, 1::2] << 4

    def table(given: Array) -> Array:
        return given.swapaxes(1, 2).reshape(-1, given.shape[1])[:n]

    made = table(scales)
    return Blocks(words.reshape(n, made.shape[1], -1), made, None if offsets is None else table(offsets))


def _values(packed: Array, bits: int) -> Array:
    """(n, bytes) -> (n, values): unsigned integers, one in a byte."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def weights(blocks: Blocks, n: int, bits: int, zero_point: int, layout: str) -> Array:
    """The float32 matrix (N, K) that blocks represent."""
    require(bits in (4, 8), f"expected 4 or 8 bits, got {bits}")
    q, scales, offsets = from_panels(blocks, n, bits) if layout else blocks
    wide = _values(q.reshape(n, -1), bits).reshape(n, scales.shape[1], -1).astype(np.float32)
    wide -= np.float32(zero_point)
    wide *= scales.astype(np.float32)[..., None]
    if offsets is not None:
        wide += offsets.astype(np.float32)[..., None]
    return wide.reshape(n, -1)


def _widened(q: Array, scales: Array) -> Array:
    """The float32 array that integers and the scales of their blocks represent."""
    made: Array = (q.reshape(*scales.shape, -1) * scales[..., None]).reshape(q.shape).astype(np.float32)
    return made


@define("DynamicQuantizeBlocks")
def _quantize_blocks(x: Array, /, block_size: int = ACTIVATIONS) -> tuple[Array, Array, Array]:
    """x in blocks of `block_size` neighbours: integers of -127 to 127, rounded half to even; the scale of each block,
    max |x| / 127; scale times sum of its integers."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block_size, block_size)
    largest = np.abs(blocks).max(axis=-1, initial=0)
    scale = (largest * np.float32(1 / 127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0)).astype(np.float32)
        q = np.clip(np.rint(blocks * inverse[..., None]), -127, 127)
        q = np.nan_to_num(q, nan=-127).astype(np.int8)
    sums = (q.astype(np.int32).sum(axis=-1).astype(np.float32) * scale).astype(np.float32)
    return q.reshape(x.shape), scale, sums


@define("MatMulNBits")
def _matmul_n_bits(
    a: Array,
    q: Array,
    scales: Array,
    offsets: Array | None = None,
    a_scales: Array | None = None,
    a_sums: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    /,
    *,
    K: int,
    N: int,
    bits: int,
    block_size: int,
    zero_point: int = 0,
    layout: str = "",
    transposed: int = 0,
    accuracy_level: int = 0,
) -> Array:
    """A @ W.T + bias + residual, transposed: A @ W + bias + residual. accuracy_level is a wish that the converter
    grants (`converter.passes.byte_activations`): 4 allows activations of 8 bits. A is float32, or
    DynamicQuantizeBlocks' three results; W as above, (N, K). Transposed with int8, blocks of A lie across those of W:
    W is rounded once more, to blocks of 8 bits along N."""
    depth = N if transposed else K
    require(a.shape[-1] == depth, f"expected a last size of {depth}, got shape {a.shape}")
    wide = weights(Blocks(q, scales, offsets), N, bits, zero_point, layout)
    if transposed:
        wide = np.ascontiguousarray(wide.T)
    if a.dtype == np.int8:
        require(a_scales is not None and a_sums is not None, "expected scales and sums with int8")
        assert a_scales is not None
        a = _widened(a, a_scales)
        if transposed:
            wide = _widened(*_quantize_blocks(wide)[:2])
    y = a.astype(np.float32) @ wide.T
    for term in (bias, residual):
        if term is not None:
            y = y + term
    return np.asarray(y, np.float32)


@define("GatherBlockQuantized")
def _gather_block_quantized(
    q: Array,
    indices: Array,
    scales: Array,
    offsets: Array | None = None,
    /,
    *,
    K: int,
    N: int,
    bits: int,
    block_size: int,
    zero_point: int = 0,
    layout: str = "",
) -> Array:
    """Rows of the matrix (N, K): an embedding. Only these rows are widened."""
    require(bool(((indices >= 0) & (indices < N)).all()), f"expected indices from 0 to {N - 1}")
    at = indices.reshape(-1).astype(np.int64)
    tables = [q, scales, offsets]
    if layout:  # each row as a panel of one column
        panel, column = at // PANEL, at % PANEL
        chosen = [None if t is None else t[panel, :, column][:, :, None] for t in tables]
    else:
        chosen = [None if t is None else t[at] for t in tables]
    assert chosen[0] is not None and chosen[1] is not None
    if not at.size:
        return np.zeros((*indices.shape, K), np.float32)
    wide = weights(Blocks(chosen[0], chosen[1], chosen[2]), len(at), bits, zero_point, layout)
    return wide.reshape(*indices.shape, K)


@define("GatedMatMulNBits")
def _gated(
    a: Array,
    a_scales: Array,
    a_sums: Array,
    q: Array,
    scales: Array,
    other_q: Array,
    other_scales: Array,
    offsets: Array | None = None,
    other_offsets: Array | None = None,
    /,
    *,
    activation: str = "Silu",
    **table: Any,
) -> tuple[Array, Array, Array]:
    """DynamicQuantizeBlocks of activation(A @ W.T) * (A @ V.T), A int8 with its scales and sums, both matrices of one
    format as MatMulNBits has them (Shazeer, 2020, GLU variants, without what is between in memory)."""
    gate = _matmul_n_bits(a, q, scales, offsets, a_scales, a_sums, **table)
    up = _matmul_n_bits(a, other_q, other_scales, other_offsets, a_scales, a_sums, **table)
    made = (activate(gate, activation) * up).astype(np.float32)
    return _quantize_blocks(made)
