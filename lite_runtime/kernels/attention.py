"""Attention, float32, without storing the scores: the softmax is updated block of keys by block of keys.

A block of queries is multiplied by KEYS keys at a time. Weights are relative to the largest score so far; when a larger
one is found, the earlier sums are multiplied by exp(old - new) (Milakov and Gimelshein 2018; Dao et al. 2022). Both
products run in one register tile: rows of queries against keys packed in panels [width][vectors * LANES], rows of
weights against the values in their original layout. Which queries and keys share a block depends only on sizes, so
results are bit-identical for any number of workers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import float32, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._softmax import vexp_down
from lite_runtime.kernels._vmath import across_max, across_sum, vfirst, vlane0, vload_or
from lite_runtime.kernels.gemm import TILES
from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    address,
    declare,
    device,
    emit_load,
    emit_mask,
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
    u8p,
    vload,
    vload_n,
    vmax,
    vstore,
    vstore_n,
)
from lite_runtime.steps.attention import F32Attention, PackKeys, PadRows
from lite_runtime.steps.declaration import named
from lite_runtime.targets import ROWS

ATTENTION = named(F32Attention)
PACK = named(PackKeys)
PAD = named(PadRows)

QUERIES = 24
"""Rows of a block, a multiple of every tile's."""
KEYS = 128
"""Keys of a block, a multiple of 4 * LANES: scores of a block take 12 KiB, its keys and values 32 KiB each at a width
of 64."""
SCORES = QUERIES * KEYS
PANEL = 4 * LANES
_ZERO, _ONE, _INF = np.float32(0), np.float32(1), np.float32(np.inf)
_LOW = np.float32(-3.4028235e38)
_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VEC = ir.VectorType(_F32, LANES)


# -- one product: rows x (vectors * LANES) results of left @ panel ----------------------------------------------------


def _tile(rows: int, vectors: int):
    @intrinsic
    def tile(typing, left, left_step, depth, panel, panel_step, out, out_step, more, live, columns):
        """out (+)= left @ panel. Steps: bytes between rows. `live` rows and `columns` columns are stored; rows beyond
        `live` repeat the last one; with `more` != 0 the product is added to `out`."""
        sig = types.void(*[types.int64] * 10)

        def lower(context, builder, sig, args):
            left, left_step, depth, panel, panel_step, out, out_step, more, live, columns = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", _VEC, _VEC, _VEC, _VEC)
            zero = ir.Constant(_VEC, [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(rows)]
            last = builder.sub(live, _I64(1))
            bases = []
            for i in range(rows):
                within = builder.icmp_signed("<", _I64(i), live)
                row = builder.select(within, _I64(i), last)
                bases.append(builder.add(left, builder.mul(left_step, row)))
            at = cgutils.alloca_once_value(builder, panel)
            with cgutils.for_range(builder, depth, intp=_I64) as loop:
                here, k = builder.load(at), builder.mul(loop.index, _I64(4))
                right = [emit_load(builder, _pointer(builder, here, 4 * LANES * j)) for j in range(vectors)]
                for base, row in zip(bases, sums, strict=True):
                    one = emit_splat(builder, builder.load(_pointer(builder, builder.add(base, k)), typ=_F32))
                    for weight, total in zip(right, row, strict=True):
                        builder.store(builder.call(fma, [one, weight, builder.load(total)]), total)
                builder.store(builder.add(here, panel_step), at)
            masks = [emit_mask(builder, builder.sub(columns, _I64(j * LANES))) for j in range(vectors)]
            adds = builder.icmp_signed("!=", more, _I64(0))
            for i, row in enumerate(sums):
                with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                    line = builder.add(out, builder.mul(out_step, _I64(i)))
                    for j, (total, mask) in enumerate(zip(row, masks, strict=True)):
                        place = _pointer(builder, line, 4 * LANES * j)
                        held = builder.select(adds, mask, ir.Constant(mask.type, [0] * LANES))
                        value = builder.fadd(builder.load(total), emit_load(builder, place, held))
                        emit_store(builder, value, place, mask)
            return context.get_dummy_value()

        return sig, lower

    return tile


def _pointer(builder, where, offset=0):
    return builder.inttoptr(builder.add(where, _I64(offset)), _F32.as_pointer())


_tile_1, _tile_2, _tile_3, _tile_4 = (_tile(TILES[n], n) for n in (1, 2, 3, 4))
_thin_1, _thin_2, _thin_3, _thin_4 = (_tile(1, n) for n in (1, 2, 3, 4))


def _sweep(tile, thin, size):
    @device
    def sweep(left, left_step, rows, depth, panel, panel_step, out, out_step, more, columns):
        if rows == 1:
            thin(left, left_step, depth, panel, panel_step, out, out_step, more, 1, columns)
        else:
            for i in range(0, rows, size):
                here = out + i * out_step
                tile(left + i * left_step, left_step, depth, panel, panel_step, here, out_step, more, rows - i, columns)

    return sweep


_sweep_1, _sweep_2, _sweep_3, _sweep_4 = (
    _sweep(tile, thin, TILES[n])
    for n, tile, thin in ((1, _tile_1, _thin_1), (2, _tile_2, _thin_2), (3, _tile_3, _thin_3), (4, _tile_4, _thin_4))
)


@device
def _panel(left, left_step, rows, depth, panel, panel_step, out, out_step, more, columns):
    """The product with one panel of up to 4 vectors; panel_step 0: its rows are dense."""
    vectors = (columns + LANES - 1) // LANES
    each = panel_step if panel_step != 0 else 4 * LANES * vectors
    if vectors == 4:
        _sweep_4(left, left_step, rows, depth, panel, each, out, out_step, more, columns)
    elif vectors == 3:
        _sweep_3(left, left_step, rows, depth, panel, each, out, out_step, more, columns)
    elif vectors == 2:
        _sweep_2(left, left_step, rows, depth, panel, each, out, out_step, more, columns)
    else:
        _sweep_1(left, left_step, rows, depth, panel, each, out, out_step, more, columns)


# -- a block's scores to weights --------------------------------------------------------------------------------------


@device
def _masked(x, mask, is_bool, n):
    """Apply the mask to a row's scores: added, or -inf where it is False."""
    if is_bool != 0:
        allowed, scores = u8p(mask), f32p(x)
        for i in range(n):
            scores[i] = scores[i] if allowed[i] != 0 else float32(-_INF)
    else:
        for i in range(0, n, LANES):
            vstore_n(f32p(x + 4 * i), vload_n(f32p(x + 4 * i), n - i) + vload_n(f32p(mask + 4 * i), n - i), n - i)


_STRIPE = 2 * ROWS
"""Sums of a row that are kept apart: on all fused targets as many as two of the widest vectors have lanes, since the
order of a sum decides its bits."""
_IN_TWO = LANES == ROWS or not SHAPE.fused
"""Whether two vectors hold them."""


@device
def _exponentials(x, n, largest):
    """Replace n scores at x by e^(score - largest); the sum of these."""
    low, a, b = splat(-_INF), splat(_ZERO), splat(_ZERO)
    i = 0
    if _IN_TWO:
        while i + 2 * LANES <= n:
            u = vexp_down(vload(f32p(x + 4 * i)) - largest)
            v = vexp_down(vload(f32p(x + 4 * (i + LANES))) - largest)
            vstore(f32p(x + 4 * i), u)
            vstore(f32p(x + 4 * (i + LANES)), v)
            a, b = a + u, b + v
            i += 2 * LANES
        while i < n:
            u = vfirst(vexp_down(vload_or(f32p(x + 4 * i), n - i, low) - largest), n - i, splat(_ZERO))
            vstore_n(f32p(x + 4 * i), u, n - i)
            a = a + u
            i += LANES
        return vlane0(across_sum(a + b))
    sums = address(stack_floats(_STRIPE))
    for j in range(0, _STRIPE, LANES):
        vstore(f32p(sums + 4 * j), a)
    while i < n:
        stripe = _STRIPE if i + _STRIPE <= n else ROWS
        for j in range(0, stripe, LANES):
            live, here, part = n - i - j, f32p(x + 4 * (i + j)), f32p(sums + 4 * j)
            if live > 0:
                u = vfirst(vexp_down(vload_or(here, live, low) - largest), live, splat(_ZERO))
                vstore_n(here, u, live)
                vstore(part, vload(part) + u)
        i += stripe
    half = _STRIPE // 2
    while half >= LANES:
        for j in range(0, half, LANES):
            part = f32p(sums + 4 * j)
            vstore(part, vload(part) + vload(f32p(sums + 4 * (j + half))))
        half //= 2
    return vlane0(across_sum(vload(f32p(sums))))


@device
def _weigh(x, n, keys, top, total):
    """Turn a row's first n scores into weights, the others (up to `keys`) into zeros. top, total: addresses of the
    largest score and of the sum of weights so far. Returns the factor for earlier sums (1: there were none, or the
    largest score is unchanged)."""
    low = splat(-_INF)
    a, b = low, low
    i = 0
    while i + 2 * LANES <= n:
        a = vmax(a, vload(f32p(x + 4 * i)))
        b = vmax(b, vload(f32p(x + 4 * (i + LANES))))
        i += 2 * LANES
    while i < n:
        a = vmax(a, vload_or(f32p(x + 4 * i), n - i, low))
        i += LANES
    before = f32p(top)[0]
    largest = vmax(across_max(vmax(a, b)), splat(before))
    whole = _exponentials(x, n, largest)
    row = f32p(x)
    for i in range(n, keys):
        row[i] = _ZERO
    now, so_far = vlane0(largest), f32p(total)[0]
    shrink = _ONE
    if so_far != _ZERO and now != before:
        shrink = vlane0(vexp_down(splat(before - now)))
    f32p(total)[0] = so_far * shrink + whole
    f32p(top)[0] = now
    return shrink


@device
def _scale_row(y, n, factor):
    for i in range(0, n, LANES):
        vstore_n(f32p(y + 4 * i), vload_n(f32p(y + 4 * i), n - i) * splat(factor), n - i)


@kernel(F32Attention)
def f32_attention(step, bases, worker, workers):
    """y = softmax(q kT + mask) v by batch and head."""
    q, k, v = ptr(step, bases, ATTENTION.q), ptr(step, bases, ATTENTION.k), ptr(step, bases, ATTENTION.v)
    mask, y = ptr(step, bases, ATTENTION.mask), ptr(step, bases, ATTENTION.y)
    batches, heads, group = num(step, ATTENTION.batches), num(step, ATTENTION.heads), num(step, ATTENTION.group)
    queries, keys, width, wide = (
        num(step, ATTENTION.queries),
        num(step, ATTENTION.keys),
        num(step, ATTENTION.width),
        num(step, ATTENTION.wide),
    )
    q_batch, q_head, q_row = num(step, ATTENTION.q_batch), num(step, ATTENTION.q_head), num(step, ATTENTION.q_row)
    v_batch, v_head, v_row = num(step, ATTENTION.v_batch), num(step, ATTENTION.v_head), num(step, ATTENTION.v_row)
    y_batch, y_head, y_row = num(step, ATTENTION.y_batch), num(step, ATTENTION.y_head), num(step, ATTENTION.y_row)
    packed_head = num(step, ATTENTION.packed_head)
    m_batch, m_head, m_row = num(step, ATTENTION.m_batch), num(step, ATTENTION.m_head), num(step, ATTENTION.m_row)
    is_bool, causal = num(step, ATTENTION.is_bool), num(step, ATTENTION.causal)
    scores = address(stack_floats(SCORES))
    tops, totals = address(stack_floats(QUERIES)), address(stack_floats(QUERIES))
    line = 4 * KEYS
    blocks = (queries + QUERIES - 1) // QUERIES
    items = batches * heads * blocks
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        begin = item % blocks * QUERIES
        head = item // blocks % heads
        batch = item // (blocks * heads)
        rows = min(QUERIES, queries - begin)
        left = q + batch * q_batch + head * q_head + begin * q_row
        out = y + batch * y_batch + head * y_head + begin * y_row
        packed = k + (batch * (heads // group) + head // group) * packed_head
        values = v + batch * v_batch + head // group * v_head
        masks = mask + batch * m_batch + head * m_head + begin * m_row
        for i in range(rows):
            f32p(tops + 4 * i)[0] = _LOW
            f32p(totals + 4 * i)[0] = _ZERO
        reach = keys
        if causal >= 0:
            reach = max(1, min(keys, causal + begin + rows - 1))
        for key in range(0, reach, KEYS):
            count = min(KEYS, reach - key)
            held = min(KEYS, keys - key)
            for column in range(0, held, PANEL):
                part = min(PANEL, held - column)
                panel = packed + 4 * (key + column) * width
                _panel(left, q_row, rows, width, panel, 0, scores + 4 * column, line, 0, part)
            for i in range(rows):
                x = scores + i * line
                if mask != 0:
                    _masked(x, masks + i * m_row + key * (1 if is_bool != 0 else 4), is_bool, count)
                seen = count
                if causal >= 0:
                    seen = max(0, min(count, causal + begin + i - key))
                shrink = _weigh(x, seen, count, tops + 4 * i, totals + 4 * i)
                if key != 0 and shrink != _ONE:
                    _scale_row(out + i * y_row, wide, shrink)
            for column in range(0, wide, PANEL):
                part = min(PANEL, wide - column)
                panel = values + key * v_row + 4 * column
                _panel(scores, line, rows, count, panel, v_row, out + 4 * column, y_row, key, part)
        for i in range(rows):
            total = f32p(totals + 4 * i)[0]
            _scale_row(out + i * y_row, wide, _ONE / total if total != _ZERO else _ZERO)


# -- operands in the order the tile reads them ------------------------------------------------------------------------


@intrinsic
def _transpose(typing, source, row_step, target, target_step, factor):
    """Write LANES x LANES floats at `source`, times `factor`, transposed to `target`; steps: bytes between rows."""
    sig = types.void(*[types.int64] * 4, types.float32)

    def lower(context, builder, sig, args):
        source, row_step, target, target_step, factor = args
        many = emit_splat(builder, factor)
        places = [builder.add(source, builder.mul(row_step, _I64(i))) for i in range(LANES)]
        rows = [builder.fmul(emit_load(builder, _pointer(builder, place)), many) for place in places]
        half, ints = LANES // 2, ir.VectorType(_I32, LANES)
        low = ir.Constant(ints, [i // 2 + LANES * (i % 2) for i in range(LANES)])
        high = ir.Constant(ints, [half + i // 2 + LANES * (i % 2) for i in range(LANES)])
        for _ in range(LANES.bit_length() - 1):  # each round interleaves row i with row i + half: a perfect shuffle
            pairs = [(rows[i], rows[i + half]) for i in range(half)]
            rows = [builder.shuffle_vector(a, b, order) for a, b in pairs for order in (low, high)]
        for i, row in enumerate(rows):
            emit_store(builder, row, _pointer(builder, builder.add(target, builder.mul(target_step, _I64(i)))))
        return context.get_dummy_value()

    return sig, lower


@kernel(PackKeys)
def f32_pack_keys(step, bases, worker, workers):
    """Keys of every head -> panels [width][4 * LANES] (the last panel may have fewer vectors; zeros follow the last
    key)."""
    k, packed = ptr(step, bases, PACK.k), ptr(step, bases, PACK.packed)
    heads, keys, width = num(step, PACK.heads), num(step, PACK.rows), num(step, PACK.width)
    batch_step, head_step, row_step = num(step, PACK.batch_step), num(step, PACK.head_step), num(step, PACK.row_step)
    head_size, factor = num(step, PACK.head_size), real(step, PACK.factor)
    groups = (keys + LANES - 1) // LANES
    items = num(step, PACK.batches) * heads * groups
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        group = item % groups
        head = item // groups
        source = k + head // heads * batch_step + head % heads * head_step + group * LANES * row_step
        panel = group // 4
        vectors = min(4, groups - 4 * panel)
        target = packed + head * head_size + 4 * LANES * (4 * panel * width + group - 4 * panel)
        line = 4 * LANES * vectors
        live = min(LANES, keys - group * LANES)
        done = 0
        if live == LANES:
            while done + LANES <= width:
                _transpose(source + 4 * done, row_step, target + line * done, line, factor)
                done += LANES
        for d in range(done, width):
            row = f32p(target + line * d)
            for i in range(live):
                row[i] = f32p(source + i * row_step + 4 * d)[0] * factor
            for i in range(live, LANES):
                row[i] = _ZERO


@kernel(PadRows)
def f32_pad_rows(step, bases, worker, workers):
    """Rows of every head, each padded with zeros to whole vectors."""
    v, out = ptr(step, bases, PAD.v), ptr(step, bases, PAD.out)
    heads, count, width = num(step, PAD.heads), num(step, PAD.rows), num(step, PAD.width)
    batch_step, head_step, row_step = num(step, PAD.batch_step), num(step, PAD.head_step), num(step, PAD.row_step)
    items = num(step, PAD.batches) * heads * count
    padded = (width + LANES - 1) // LANES * LANES
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        head = item // count
        source = v + head // heads * batch_step + head % heads * head_step + item % count * row_step
        for i in range(0, padded, LANES):
            vstore(f32p(out + 4 * (item * padded + i)), vload_n(f32p(source + 4 * i), width - i))
