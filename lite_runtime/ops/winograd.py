"""3x3 convolutions of stride 1 by Winograd's algorithm: when it is faster, and its weights."""

from __future__ import annotations

from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array
from lite_runtime.kernels._winograd import POINTS
from lite_runtime.ops._geometry import Geometry
from lite_runtime.ops._packing import Filters
from lite_runtime.ops._panels import column_bias, finish_of, tile_vectors
from lite_runtime.ops.registry import Binder, Operand
from lite_runtime.targets import Shape

__all__ = ["bind_winograd", "points", "tile_size", "transformed"]

TILES = 16
"""Least number of tiles for m. Weights grow to (m + 2)^2 / 9 of their size; with fewer tiles, loading them
dominates."""
CHANNELS = {4: 12, 2: 32}
"""Least number of image channels for m: a window's transform costs the same whether one or many columns use it."""
PRODUCTS = 0.6
"""Share of the direct sum's products above which tiles that extend over the image's edge cancel the gain.

Direct us / us by F(4x4) / by F(2x2), one thread, AVX-512, weights from memory (every layer has its own, 48 MB in all):

    image        64 channels          128                  256                   512
     4 x 4      8.4 / 24.2 / 11.7    33 /  92 / 46      158 / 401 / 185
     6 x 6     14.0 / 25.0 / 13.4    56 /  96 / 60      221 / 401 / 227      874 / 1588 / 921
     7 x 7     18.1 / 25.6 / 11.9                       293 / 400 / 180     1180 / 1524 / 718
     8 x 8     22.8 / 25.6 / 11.7    93 / 100 / 45      366 / 409 / 183     1472 / 1552 / 736
    10 x 10    34.8 / 33.9 / 19.7                       531 / 515 / 285
    12 x 12    47.3 / 33.1 / 25.7   183 / 127 / 91      723 / 509 / 340
    13 x 13                                             869 / 414 / 488
    14 x 14                                             954 / 409 / 511
    28 x 28                         913 / 295 / 472
    56 x 56     921 / 345 / 566

and 64 x 64 x 32 columns from 3 channels 41 / 88, from 8 87 / 90, from 12 124 / 89; 8 x 8 from 16 to 16 channels by
F(2x2) 6.3 / 6.6, from 32 to 32 9.5 / 8.4. One column from 64 channels gains as much as 64 do: 378 / 187.
"""
BLOCK = {4: 48, 2: 96}
"""Tiles that a worker transforms and multiplies at a time. Half or twice as many cost up to 5 %, on layers of 32 or of
256 channels: a trade-off between reuse of weights and the size of the data kept in cache."""
WORKERS = 8
"""Number of workers with their own memory; further workers do not take part in such a step."""


def tile_size(g: Geometry) -> int:
    """m if tiles of F(m x m, 3x3) are faster than the direct sum for an ungrouped convolution; otherwise 0."""
    if (g.kernel, g.strides, g.dilations) != ((3, 3), (1, 1), (1, 1)):
        return 0
    for m in (4, 2):
        tiles = _tiles(g, m)
        fewer = (m + 2) ** 2 * tiles <= PRODUCTS * 9 * g.images * prod(g.out)
        if fewer and tiles >= TILES and g.channels >= CHANNELS[m]:
            return m
    return 0


def _tiles(g: Geometry, m: int) -> int:
    return g.images * prod(-(-size // m) for size in g.out)


def points(m: int) -> Array:
    """(m + 2, 3) float64: the coefficients of a filter's three weights at each point (Lavin & Gray's G), divided by the
    factor that the windows' transform omits."""
    finite = np.array(POINTS[m])
    apart = finite[:, None] - finite
    np.fill_diagonal(apart, 1)
    return np.vstack([finite[:, None] ** np.arange(3) / apart.prod(1)[:, None], [0.0, 0.0, 1.0]])


def _panel_vectors(columns: int, shape: Shape) -> int:
    """Vectors of a full panel. With 16 registers, 6 x 2 vectors beat 3 x 4 by a factor of 1.1 (SSE) to 1.4 (AVX2)."""
    return tile_vectors(columns, shape) if shape.vectors >= 32 else min(2, -(-columns // shape.lanes))


def transformed(w: Array, m: int, shape: Shape) -> Array:
    """Weights (columns, channels, 3, 3) at the points, in the kernel's order: [panels][points][channels rounded up to
    lanes][columns of the panel], zero-padded after the last channel and column. float32, flat."""
    (columns, channels), lanes = w.shape[:2], shape.lanes
    both = np.kron(points(m), points(m))
    width, padded = _panel_vectors(columns, shape) * lanes, -(-columns // lanes) * lanes
    packed = []
    for start in range(0, padded, width):
        filters = w[start : start + width].reshape(-1, channels, 9).transpose(2, 1, 0)
        values = both @ filters.reshape(9, -1).astype(np.float64)
        panel = np.zeros((len(both), -(-channels // lanes) * lanes, min(width, padded - start)), np.float32)
        panel[:, :channels, : filters.shape[2]] = values.reshape(len(both), *filters.shape[1:])
        packed.append(panel.ravel())
    return np.concatenate(packed)


def _packed(b: Binder, w: Operand, filters: Filters, m: int) -> Operand:
    """The weights at the points, panel by panel: computed now if they are constant, otherwise by a step."""
    full, depth = _panel_vectors(filters.columns, b.target.shape), -(-filters.inner // b.lanes) * b.lanes

    def pack(value: Array) -> Array:
        whole = filters.matrices(value).reshape(3, 3, filters.inner, filters.columns)
        return transformed(whole.transpose(3, 2, 0, 1), m, b.target.shape)

    if w.value is not None:
        return b.packed(w, f"winograd {m} {b.lanes} {filters.outer_step}", pack)
    packed = b.scratch("float32", ((m + 2) ** 2 * depth * -(-filters.columns // b.lanes) * b.lanes,))
    b.emit(
        steps.WinogradFilters(
            w=w,
            g=b.constant(points(m).astype(np.float32)),
            packed=packed,
            m=m,
            columns=filters.columns,
            channels=filters.inner,
            vectors=full,
            start=4 * filters.start,
            column_step=4 * filters.column_step,
            channel_step=4 * filters.inner_step,
            tap_step=4 * filters.outer_step,
        )
    )
    return packed


def bind_winograd(
    b: Binder,
    g: Geometry,
    x: Operand,
    w: Operand,
    filters: Filters,
    bias: Operand | None,
    residual: Operand | None,
    out: Operand,
) -> bool:
    """Emit the steps of an ungrouped convolution if this is faster; rows of `filters` are (tap, channel). Returns
    whether it did."""
    columns, lanes = filters.columns, b.lanes
    if (g.kernel, g.strides, g.dilations) != ((3, 3), (1, 1), (1, 1)):
        return False
    rule = str(tile_size(g))
    key = f"f32 winograd {g.images}x{g.height}x{g.width}x{g.channels} to {columns}"
    m = int(b.choose(key, (rule, *(option for option in "042" if option != rule))))
    if not m:
        return False
    full, depth, tiles = _panel_vectors(columns, b.target.shape), -(-g.channels // lanes) * lanes, _tiles(g, m)
    # The last block may be a quarter larger: a few remaining tiles would need all weights again.
    room = -(-min(tiles, BLOCK[m] * 5 // 4) // 12) * 12
    slots = min(WORKERS, max(-(-tiles // 24), -(-columns // (full * lanes))))
    share = ((m + 2) ** 2, room * (depth + full * lanes) + 32)
    scratch = b.scratch("float32", (slots, *share)).at(0, share)  # reports count the memory of one worker
    packed = _packed(b, w, filters, m)
    finish = finish_of(b)
    b.emit(
        steps.Winograd(
            x=x,
            w=packed,
            bias=column_bias(b, bias, columns),
            residual=residual,
            scratch=scratch,
            y=out,
            m=m,
            images=g.images,
            height=g.height,
            width=g.width,
            channels=g.channels,
            y_height=g.out[0],
            y_width=g.out[1],
            columns=columns,
            top=g.begins[0],
            left=g.begins[1],
            vectors=full,
            block=BLOCK[m],
            room=room,
            team=slots,
            **finish,
        )
    )
    return True
