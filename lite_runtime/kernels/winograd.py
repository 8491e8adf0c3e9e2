"""3x3 convolutions of stride 1 in fewer products, float32, channels last: Winograd's F(4x4, 3x3) and F(2x2, 3x3).

A tile of m x m results is the inverse transform of the element-wise products of a transformed (m + 2) x (m + 2) window
and transformed weights (Lavin & Gray 2015, "Fast algorithms for convolutional neural networks"): summed over channels,
the products are (m + 2)^2 matrix products, with 2.25 (m = 4) or 4 (m = 2) multiplications per result instead of 9.

The interpolation points are 0, +-A, +-B and infinity (m = 4) or 0, +-1 and infinity (m = 2). With A = 3/4 and B = 3/2
every constant of the transforms is exact in float32, and the error with 64 channels is 1.2e-6 of the largest result; 1
and 2, the usual choice, give 5e-6, 1/sqrt(2) and sqrt(2) give 1.2e-6, a direct sum 0.7e-6.

A worker processes blocks of tiles, so that transformed data stays in its cache: windows -> scratch V, products ->
scratch M, results. V is [points][channel vectors][tiles][LANES]: rows are a constant distance apart, so the register
tile needs only two pointers. M is [points][tiles][columns of a panel]. Every result is one chain of fused multiply-adds
in ascending channels: it depends neither on the blocks nor on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import float32, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._math import activate
from lite_runtime.kernels._memory import emit_prefetch
from lite_runtime.kernels._winograd import A, B
from lite_runtime.native.simd import (
    FMA,
    INDEXED,
    LANES,
    SHAPE,
    address,
    declare,
    device,
    emit_lane,
    emit_load,
    emit_mask,
    emit_max,
    emit_splat,
    emit_store,
    f32p,
    first,
    kernel,
    num,
    ptr,
    real,
    splat,
    stack_floats,
    vec,
    vload_n,
    vstore,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.winograd import Winograd

WINOGRAD = named(Winograd)

ROWS = {1: 12, 2: 12, 3: 6, 4: 6} if SHAPE.vectors == 32 else {1: 12, 2: 6, 3: 4, 4: 3}
"""Tiles per register tile, by its width in vectors; each number divides 12."""
FEW = 4 if SHAPE.vectors == 32 else 2
"""Tiles of the last register tile if fewer are left."""
APART = 64
"""Bytes from one point's vectors to the next point's."""
AHEAD = 4
"""Prefetch distance of a window's pixels in tiles: 224 x 224 x 64 takes 5.8 ms, without 6.6; small images do not
change."""
_LINE = 64
_F32, _I64 = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_BYTES = 4 * LANES


# -- the transforms of one axis ---------------------------------------------------------------------------------------


class _Axis:
    """Emits sums of vectors times constants with a builder."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", _VECTOR, _VECTOR, _VECTOR, _VECTOR)

    def add(self, factor: float, a: Any, b: Any) -> Any:
        """factor * a + b."""
        if factor == 1:
            return self._builder.fadd(b, a)
        if factor == -1:
            return self._builder.fsub(b, a)
        return self._builder.call(self._fma, [ir.Constant(_VECTOR, [factor] * LANES), a, b])

    def times(self, factor: float, a: Any) -> Any:
        """factor * a."""
        return self._builder.fmul(ir.Constant(_VECTOR, [factor] * LANES), a)

    def forward(self, d: Sequence[Any]) -> list[Any]:
        """m + 2 elements of a window at the points 0, (A, -A, B, -B | 1, -1), infinity."""
        if len(d) == 4:  # x (x - 1) (x + 1), without the factor of the point
            ends, inner = [self.add(-1, d[i], d[i + 2]) for i in (0, 1)], [self.add(f, d[1], d[2]) for f in (1, -1)]
            return [ends[0], *inner, ends[1]]
        ends = [  # x (x^2 - A^2) (x^2 - B^2)
            self.add(A * A * B * B, d[i], self.add(-(A * A + B * B), d[i + 2], d[i + 4])) for i in (0, 1)
        ]
        inner = []
        for point, other in ((A, B), (B, A)):
            even, odd = (self.add(-other * other, d[i], d[i + 2]) for i in (2, 1))
            inner += [self.add(point, odd, even), self.add(-point, odd, even)]
        return [ends[0], *inner, ends[1]]

    def backward(self, p: Sequence[Any]) -> list[Any]:
        """m results from the products at the points, in the same order."""
        if len(p) == 4:
            even, odd = self.add(1, p[2], p[1]), self.add(-1, p[2], p[1])
            return [self.add(1, even, p[0]), self.add(1, p[3], odd)]
        (even_a, odd_a), (even_b, odd_b) = ((self.add(1, p[i + 1], p[i]), self.add(-1, p[i + 1], p[i])) for i in (1, 3))
        return [
            self.add(1, p[0], self.add(1, even_b, even_a)),
            self.add(B, odd_b, self.times(A, odd_a)),
            self.add(B * B, even_b, self.times(A * A, even_a)),
            self.add(B * B * B, odd_b, self.add(A * A * A, odd_a, p[5])),
        ]


def _at(builder: Any, where: Any) -> Any:
    return builder.inttoptr(where, _F32.as_pointer())


def _inside(builder: Any, i: int, low: Any, high: Any) -> Any:
    return builder.and_(builder.icmp_signed(">=", _I64(i), low), builder.icmp_signed("<", _I64(i), high))


def _window(size: int, border: bool, masked: bool) -> Any:
    """Transform a window of `size` x `size` pixels by LANES channels to `size`^2 vectors."""

    @intrinsic
    def window(typing, x, line, pixel, bounds, channels, zeros, v, step, ahead):
        """x: address of the window's first pixel; line, pixel: bytes to the next; bounds: the range of its rows, [0] to
        [1], and columns, [2] to [3], inside the image (`border`: all others are read as `zeros`); channels: how many
        are stored (`masked`); v: address for the first vector, the others follow `step` bytes apart; ahead: bytes to
        the pixels to prefetch."""
        number = types.int64
        sig = types.void(number, number, number, types.UniTuple(number, 4), *[number] * 5)

        def lower(context, builder, sig, args):
            x, line, pixel, bounds, channels, zeros, v, step, ahead = args
            top, bottom, left, right = (builder.extract_value(bounds, i) for i in range(4))
            mask = emit_mask(builder, channels) if masked else None
            axis = _Axis(builder)
            if border:
                columns_in = [_inside(builder, j, left, right) for j in range(size)]
                rows_in = [_inside(builder, i, top, bottom) for i in range(size)]
            lines = [builder.add(x, builder.mul(line, _I64(i))) for i in range(size)]
            columns = []
            for j in range(size):
                elements = []
                for i in range(size):
                    where = builder.add(lines[i], builder.mul(pixel, _I64(j)))
                    if not border and j > 1:
                        emit_prefetch(builder, builder.add(where, ahead))
                    if border:
                        where = builder.select(builder.and_(rows_in[i], columns_in[j]), where, zeros)
                    elements.append(emit_load(builder, _at(builder, where), mask))
                columns.append(axis.forward(elements))
            for i in range(size):
                for j, value in enumerate(axis.forward([column[i] for column in columns])):
                    where = builder.add(v, builder.mul(step, _I64(size * i + j)))
                    builder.store(value, builder.inttoptr(where, _VECTOR.as_pointer()), align=4)
            return context.get_dummy_value()

        return sig, lower

    return window


def _results(size: int, masked: bool) -> Any:
    """Transform `size`^2 vectors of products to (size - 2)^2 pixels by LANES columns."""

    @intrinsic
    def results(typing, products, step, bias, residual, y, line, pixel, live, bounds, columns):
        """products: address of the first, the others `step` bytes apart; bias: a vector; residual (an address or 0), y:
        the first pixel; line, pixel: bytes to the next; live: rows and columns of pixels to store; bounds: lowest and
        highest result; columns: how many are stored (`masked`)."""
        number, pair = types.int64, types.UniTuple(types.int64, 2)
        limits = types.UniTuple(types.float32, 2)
        sig = types.void(number, number, vec, number, number, number, number, pair, limits, number)

        def lower(context, builder, sig, args):
            products, step, bias, residual, y, line, pixel, live, bounds, columns = args
            mask = emit_mask(builder, columns) if masked else None
            axis = _Axis(builder)
            low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
            rows_live, columns_live = (builder.extract_value(live, i) for i in range(2))
            half = []
            for j in range(size):
                where = [builder.add(products, builder.mul(step, _I64(size * i + j))) for i in range(size)]
                half.append(axis.backward([emit_load(builder, _at(builder, at)) for at in where]))

            def finish(add: bool) -> None:
                for i in range(size - 2):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), rows_live)):
                        for j, value in enumerate(axis.backward([column[i] for column in half])):
                            with builder.if_then(builder.icmp_signed("<", _I64(j), columns_live)):
                                place = builder.add(builder.mul(line, _I64(i)), builder.mul(pixel, _I64(j)))
                                value = builder.fadd(value, bias)
                                if add:
                                    more = emit_load(builder, _at(builder, builder.add(residual, place)), mask)
                                    value = builder.fadd(value, more)
                                value = emit_max(builder, high, emit_max(builder, low, value), "<")
                                emit_store(builder, value, _at(builder, builder.add(y, place)), mask)

            with builder.if_else(builder.icmp_signed("!=", residual, _I64(0))) as (with_residual, without):
                with with_residual:
                    finish(True)
                with without:
                    finish(False)
            return context.get_dummy_value()

        return sig, lower

    return results


# -- the products -----------------------------------------------------------------------------------------------------


def _tile(rows: int, vectors: int) -> Any:
    """The register tile: rows x (vectors * LANES) sums of products."""

    @intrinsic
    def tile(typing, v, step, blocks, weights, out, ahead, lines):
        """v: address of the first row's first LANES channels, the next ones `step` bytes after them; weights: [blocks *
        LANES] [vectors * LANES]; out: address for the rows, one after the other; ahead: address to prefetch from,
        `lines` of 64 bytes for each LANES channels."""
        sig = types.void(*[types.int64] * 7)

        def lower(context, builder, sig, args):
            v, step, blocks, weights, out, ahead, lines = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", _VECTOR, _VECTOR, _VECTOR, _VECTOR)
            zero = ir.Constant(_VECTOR, [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(rows)]
            for one in (one for row in sums for one in row):
                builder.store(zero, one)
            with cgutils.for_range(builder, blocks, intp=_I64) as block:
                a = builder.add(v, builder.mul(block.index, step))
                b = builder.add(weights, builder.mul(block.index, _I64(_BYTES * vectors * LANES)))
                with cgutils.for_range(builder, lines, intp=_I64) as line:
                    at = builder.add(builder.mul(block.index, lines), line.index)
                    emit_prefetch(builder, builder.add(ahead, builder.mul(at, _I64(_LINE))))
                held = []
                if INDEXED:
                    held = [emit_load(builder, _at(builder, builder.add(a, _I64(_BYTES * i)))) for i in range(rows)]
                for k in range(LANES):
                    at = builder.add(b, _I64(_BYTES * vectors * k))
                    places = [_at(builder, builder.add(at, _I64(_BYTES * j))) for j in range(vectors)]
                    right = [emit_load(builder, place) for place in places]
                    for i, row in enumerate(sums):
                        where = _at(builder, builder.add(a, _I64(_BYTES * i + 4 * k)))
                        repeated = not INDEXED and emit_splat(builder, builder.load(where, typ=_F32))
                        left = emit_lane(builder, held[i], k) if INDEXED else repeated
                        for one, weight in zip(row, right, strict=True):
                            builder.store(builder.call(fma, [left, weight, builder.load(one)]), one)
            for i, row in enumerate(sums):
                for j, one in enumerate(row):
                    where = builder.add(out, _I64(_BYTES * (vectors * i + j)))
                    builder.store(builder.load(one), builder.inttoptr(where, _VECTOR.as_pointer()), align=4)
            return context.get_dummy_value()

        return sig, lower

    return tile


def _sweep(vectors: int) -> Callable[..., None]:
    """All points' products of `count` tiles with one panel."""
    size, rest = ROWS[vectors], FEW
    tile, few = _tile(size, vectors), _tile(rest, vectors)

    @device
    def sweep(points, count, v, v_step, step, blocks, weights, products, m_step):
        # While one point's weights are used, those of the next point are prefetched, a number of lines per iteration:
        # inside ResNet-50, where weights come from memory, 14 x 14 x 256 takes 422 us with prefetching and 794 without.
        turns = (count + size - 1) // size
        lines = (LANES * vectors * _BYTES + _LINE * turns - 1) // (_LINE * turns)
        a_point = blocks * LANES * vectors * _BYTES
        for k in range(points):
            for turn in range(turns):
                i = turn * size
                a, out = v + k * v_step + i * _BYTES, products + k * m_step + i * vectors * _BYTES
                ahead = weights + a_point + turn * blocks * lines * _LINE
                if count - i > rest:
                    tile(a, step, blocks, weights, out, ahead, lines)
                else:
                    few(a, step, blocks, weights, out, ahead, lines)
            weights += a_point

    return sweep  # type: ignore[no-any-return]


_sweep_1, _sweep_2, _sweep_3, _sweep_4 = (_sweep(n) for n in (1, 2, 3, 4))


# -- from the image and back ------------------------------------------------------------------------------------------


@device
def _place(tile, m, high, wide):
    """Image, first row and first column of a tile of the results."""
    across = (wide + m - 1) // m
    per_image = (high + m - 1) // m * across
    image = tile // per_image
    up = (tile - image * per_image) // across
    return image, up * m, (tile - image * per_image - up * across) * m


def _gather(m: int) -> Callable[..., None]:
    """The windows of `count` tiles, transformed."""
    whole, border, part = _window(m + 2, False, False), _window(m + 2, True, False), _window(m + 2, True, True)

    @device
    def gather(x, sizes, begin, count, v, v_step, block_step):
        height, width, channels, high, wide, top, left = sizes
        zeros = stack_floats(LANES)
        vstore(zeros, splat(float32(0)))
        nothing, pixel = address(zeros), 4 * channels
        line, ahead = width * pixel, AHEAD * m * pixel
        for t in range(count):
            image, row, column = _place(begin + t, m, high, wide)
            row -= top
            column -= left
            inside = (max(0, -row), min(m + 2, height - row), max(0, -column), min(m + 2, width - column))
            within = row >= 0 and row + m + 2 <= height and column >= 0 and column + m + 2 <= width
            here = x + ((image * height + row) * width + column) * pixel
            to = v + t * _BYTES
            for c in range(0, channels, LANES):
                live = channels - c
                if live < LANES:
                    part(here, line, pixel, inside, live, nothing, to, v_step, ahead)
                elif within:
                    whole(here, line, pixel, inside, live, nothing, to, v_step, ahead)
                else:
                    border(here, line, pixel, inside, live, nothing, to, v_step, ahead)
                here += _BYTES
                to += block_step

    return gather  # type: ignore[no-any-return]


def _scatter(m: int) -> Callable[..., None]:
    """The results of `count` tiles and the columns [start, end) from their products."""
    whole, part = _results(m + 2, False), _results(m + 2, True)

    @device
    def scatter(products, m_step, bias, residual, y, high, wide, columns, begin, count, start, end, bounds):
        pixel = 4 * columns
        line = wide * pixel
        source = products
        for t in range(count):
            image, row, column = _place(begin + t, m, high, wide)
            alive = (min(m, high - row), min(m, wide - column))
            first_pixel = ((image * high + row) * wide + column) * pixel
            for c in range(start, end, LANES):
                live = end - c
                shift = vload_n(f32p(bias + 4 * c), live) if bias != 0 else splat(float32(0))
                at = first_pixel + 4 * c
                more = residual + at if residual != 0 else 0
                if live < LANES:
                    part(source, m_step, shift, more, y + at, line, pixel, alive, bounds, live)
                else:
                    whole(source, m_step, shift, more, y + at, line, pixel, alive, bounds, live)
                source += _BYTES

    return scatter  # type: ignore[no-any-return]


_gather_4, _gather_2, _scatter_4, _scatter_2 = _gather(4), _gather(2), _scatter(4), _scatter(2)


@kernel(Winograd)
def f32_winograd(step, bases, worker, workers):
    """y = clamp(conv(x, W) + bias + R), then an activation."""
    x, w, bias, residual = (
        ptr(step, bases, WINOGRAD.x),
        ptr(step, bases, WINOGRAD.w),
        ptr(step, bases, WINOGRAD.bias),
        ptr(step, bases, WINOGRAD.residual),
    )
    scratch, y = ptr(step, bases, WINOGRAD.scratch), ptr(step, bases, WINOGRAD.y)
    m, images, height, width = (
        num(step, WINOGRAD.m),
        num(step, WINOGRAD.images),
        num(step, WINOGRAD.height),
        num(step, WINOGRAD.width),
    )
    channels, high, wide, columns = (
        num(step, WINOGRAD.channels),
        num(step, WINOGRAD.y_height),
        num(step, WINOGRAD.y_width),
        num(step, WINOGRAD.columns),
    )
    sizes = (height, width, channels, high, wide, num(step, WINOGRAD.top), num(step, WINOGRAD.left))
    full, block, room = num(step, WINOGRAD.vectors), num(step, WINOGRAD.block), num(step, WINOGRAD.room)
    team = min(workers, num(step, WINOGRAD.team))
    bounds = (real(step, WINOGRAD.low), real(step, WINOGRAD.high))
    activation, alpha, beta = num(step, WINOGRAD.activation), real(step, WINOGRAD.alpha), real(step, WINOGRAD.beta)
    if worker >= team:
        return
    points = (m + 2) * (m + 2)
    blocks = (channels + LANES - 1) // LANES
    vectors = (columns + LANES - 1) // LANES
    panels = (vectors + full - 1) // full
    tiles = images * ((high + m - 1) // m) * ((wide + m - 1) // m)
    # If points were whole pages apart, their vectors would compete for the same cache lines: 56 x 56 x 64 took 450 us
    # that way, and 345 with other distances.
    block_step = room * _BYTES
    v_step = blocks * block_step + APART
    v = scratch + worker * points * (v_step + full * block_step + APART)
    products = v + points * v_step
    # With few tiles, workers share the columns, and each transforms all windows; otherwise they share the tiles.
    begin, end, lo_p, hi_p = 0, tiles, 0, panels
    if tiles < block * team and panels >= team:
        lo_p, hi_p = panels * worker // team, panels * (worker + 1) // team
    else:
        begin, end = first(tiles, worker, team, 4), first(tiles, worker + 1, team, 4)
    while begin < end:
        count = end - begin if end - begin <= room else block
        if m == 4:
            _gather_4(x, sizes, begin, count, v, v_step, block_step)
        else:
            _gather_2(x, sizes, begin, count, v, v_step, block_step)
        for p in range(lo_p, hi_p):
            mine = min(full, vectors - p * full)
            weights = w + p * full * points * blocks * LANES * _BYTES
            m_step = mine * block_step + APART
            if mine == 4:
                _sweep_4(points, count, v, v_step, block_step, blocks, weights, products, m_step)
            elif mine == 3:
                _sweep_3(points, count, v, v_step, block_step, blocks, weights, products, m_step)
            elif mine == 2:
                _sweep_2(points, count, v, v_step, block_step, blocks, weights, products, m_step)
            else:
                _sweep_1(points, count, v, v_step, block_step, blocks, weights, products, m_step)
            low_c = p * full * LANES
            high_c = min(columns, low_c + full * LANES)
            if m == 4:
                _scatter_4(
                    products, m_step, bias, residual, y, high, wide, columns, begin, count, low_c, high_c, bounds
                )
            else:
                _scatter_2(
                    products, m_step, bias, residual, y, high, wide, columns, begin, count, low_c, high_c, bounds
                )
        # Not in the loop above, where its constants would use up registers that the transforms need.
        if activation > 2:
            low_c = lo_p * full * LANES
            high_c = min(columns, hi_p * full * LANES)
            for t in range(begin, begin + count):
                image, up, over = _place(t, m, high, wide)
                for row in range(up, min(high, up + m)):
                    for column in range(over, min(wide, over + m)):
                        pixel = ((image * high + row) * wide + column) * columns
                        activate(activation, alpha, beta, f32p(y + 4 * (pixel + low_c)), high_c - low_c)
        begin += count
