"""Matrix products and convolutions of bytes: one register tile of int32 sums serves them all.

As in `gemm`, the left operand is reached through one pointer a row. The reduction runs over dwords: four bytes at
places[g] from the row's pointer meet four bytes of every column. Weights are packed in panels [columns / (NV * LANES)]
[dwords][NV * LANES][4], signed, zeros behind the last column and where a dword reaches bytes that are not a tap's: what
is read there does not matter, but is always memory of the row's own tensor. Unsigned activations are read as they are,
signed ones with their top bit flipped; that and the zero points are in the bias (ops/_qpanels.py has the algebra).

Weights with a zero point of their own need the sum of every row: a panel's last vector then holds ones.
"""

from __future__ import annotations

from contextlib import contextmanager

from llvmlite import ir
from numba import int32, int64, types
from numba.extending import intrinsic

from lite_runtime.kernels._dot import (
    FLOATS,
    INTS,
    at,
    emit_dot,
    emit_rounded,
    emit_store_narrow,
    load_floats,
    load_ints,
    variable,
)
from lite_runtime.kernels.gemm import BLOCK, locate
from lite_runtime.simd import (
    LANES,
    TARGET,
    address,
    emit_fused,
    emit_mask,
    emit_max,
    emit_splat,
    emit_store,
    exact,
    f32p,
    first,
    i8p,
    i32p,
    i64p,
    kernel,
    num,
    ptr,
    real,
    stack_floats,
    stack_words,
    u8p,
)

_WIDE = TARGET is not None and TARGET.vectors == 32
TILES = {1: 8, 2: 8, 3: 8, 4: 6} if _WIDE else {1: 6, 2: 6, 3: 3, 4: 2}
"""Rows of the register tile by its width in vectors; see `gemm.TILES`."""
BYTE, FLOAT, INT = 0, 1, 2
"""What a result is: a requantised byte, a real number, the int32 sum."""

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_WORDS = types.CPointer(types.int64)
_VEC = 4 * LANES


def _tile(rows: int, vectors: int, shifted: bool):
    """The register tile: rows x (vectors * LANES) results; `shifted`: with a vector of ones behind the weights."""

    @intrinsic
    def tile(typing, rows_at, places, dwords, panel, out, stride, flip, columns, live, kind, bounds, zero, tables):
        """rows_at: row addresses; out: address of the first result; stride: bytes between rows of results; live rows
        and columns are stored. bounds: lowest and highest result as float32, less `zero`, which is added to bytes.
        tables: addresses of a column's bias, scale, real bias, sum of weights, zero point; of a row's negated zero
        point and scale."""
        sig = types.void(
            *(_WORDS, _WORDS, *[types.int64] * 8, types.UniTuple(types.float32, 2), types.int64),
            types.UniTuple(types.int64, 7),
        )

        def lower(context, builder, sig, args):
            rows_at, places, dwords, panel, out, stride, flip, columns, live, kind, bounds, zero, tables = args
            bias, scale, shift, weight_sum, weight_zero, row_zero, row_scale = (
                builder.extract_value(tables, i) for i in range(7)
            )

            def beyond(where, j):
                return builder.add(where, _I64(_VEC * j))

            start = [load_ints(builder, beyond(bias, j)) for j in range(vectors)]
            sums = [[variable(builder, one) for one in start] for _ in range(rows)]
            ones = [variable(builder, ir.Constant(INTS, [0] * LANES)) for _ in range(rows if shifted else 0)]
            weights = variable(builder, panel)
            bases = [builder.load(builder.gep(rows_at, [_I64(i)])) for i in range(rows)]
            unsign = load_ints(builder, flip)
            whole = vectors + shifted
            with _counted(builder, dwords) as index:
                here = builder.load(builder.gep(places, [index]))
                w = builder.load(weights)
                columns_now = [load_ints(builder, beyond(w, j)) for j in range(whole)]
                for i in range(rows):
                    four = builder.load(at(builder, builder.add(bases[i], here), _I32), align=1, typ=_I32)
                    left = builder.xor(emit_splat(builder, four, INTS), unsign)
                    into = [*sums[i], ones[i]] if shifted else sums[i]
                    for one, column in zip(into, columns_now, strict=True):
                        builder.store(emit_dot(builder, builder.load(one), left, column), one)
                builder.store(beyond(w, whole), weights)

            if shifted:
                for j in range(vectors):
                    point = load_ints(builder, beyond(weight_zero, j))
                    for i in range(rows):
                        value = builder.sub(builder.load(sums[i][j]), builder.mul(builder.load(ones[i]), point))
                        builder.store(value, sums[i][j])
            last = builder.sub(columns, _I64(LANES * (vectors - 1)))
            low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))

            def each_row(emit):
                for i in range(rows):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                        emit(i, builder.add(out, builder.mul(stride, _I64(i))))

            with builder.if_else(builder.icmp_signed("==", kind, _I64(BYTE))) as (to_bytes, others):
                with to_bytes:
                    point = emit_splat(builder, builder.trunc(zero, _I32), INTS)
                    factors = [load_floats(builder, beyond(scale, j)) for j in range(vectors)]

                    def bytes_of(i, to):
                        for j in range(vectors):
                            value = builder.fmul(builder.sitofp(builder.load(sums[i][j]), FLOATS), factors[j])
                            value = emit_rounded(builder, value, low, high, point)
                            where = builder.add(to, _I64(LANES * j))
                            emit_store_narrow(builder, value, where, 8, last if j == vectors - 1 else None)

                    each_row(bytes_of)
                with others:
                    mask = [emit_mask(builder, builder.sub(columns, _I64(LANES * j))) for j in range(vectors)]
                    real_result = builder.icmp_signed("==", kind, _I64(FLOAT))

                    def words_of(i, to):
                        step = builder.load(at(builder, builder.add(row_zero, _I64(4 * i)), _I32), typ=_I32)
                        factor = builder.load(at(builder, builder.add(row_scale, _I64(4 * i)), _F32), typ=_F32)
                        step, factor = emit_splat(builder, step, INTS), emit_splat(builder, factor)
                        for j in range(vectors):
                            total = load_ints(builder, beyond(weight_sum, j))
                            total = builder.add(builder.load(sums[i][j]), builder.mul(total, step))
                            scaled = builder.fmul(builder.sitofp(total, FLOATS), factor)
                            moved = load_floats(builder, beyond(scale, j)), load_floats(builder, beyond(shift, j))
                            value = emit_fused(builder, scaled, *moved)
                            value = emit_max(builder, high, emit_max(builder, low, value), "<")
                            value = builder.select(real_result, value, builder.bitcast(total, FLOATS))
                            emit_store(builder, value, at(builder, beyond(to, j), _F32), mask[j])

                    each_row(words_of)
            return context.get_dummy_value()

        return sig, lower

    return tile


@contextmanager
def _counted(builder, count):
    """A loop over 0..count-1, count at least 1."""
    index = variable(builder, _I64(0))
    body, after = builder.append_basic_block("dwords"), builder.append_basic_block("summed")
    builder.branch(body)
    builder.position_at_end(body)
    now = builder.load(index)
    yield now
    following = builder.add(now, _I64(1))
    builder.store(following, index)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)


def _sweep(tile, size):
    """Rows `size` at a time."""

    @exact
    def sweep(rows_at, count, places, dwords, panel, out, stride, flip, columns, kind, bounds, zero, tables):
        bias, scale, shift, weight_sum, weight_zero, row_zero, row_scale = tables
        i = 0
        while i < count:
            row = (bias, scale, shift, weight_sum, weight_zero, row_zero + 4 * i, row_scale + 4 * i)
            here, to = i64p(address(rows_at) + 8 * i), out + i * stride
            tile(here, places, dwords, panel, to, stride, flip, columns, count - i, kind, bounds, zero, row)
            i += size

    return sweep


def _sweeps(shifted: bool):
    """By width: sweeps of the widest tile, and of one row. A shifted tile has one vector less, its ones the fourth."""
    widths = [min(n, 3) for n in (1, 2, 3, 4)] if shifted else [1, 2, 3, 4]
    full = [_sweep(_tile(TILES[n + shifted], n, shifted), TILES[n + shifted]) for n in widths[: 4 - shifted]]
    thin = [_sweep(_tile(1, n, shifted), 1) for n in widths[: 4 - shifted]]
    return (*full, *full[-1:] * shifted), (*thin, *thin[-1:] * shifted)


def _driver(shifted: bool):
    (full_1, full_2, full_3, full_4), (thin_1, thin_2, thin_3, thin_4) = _sweeps(shifted)
    ones = 1 if shifted else 0

    @exact
    def drive(step, bases, worker, workers):
        ops = 12
        a, w, places = ptr(step, bases, 0), ptr(step, bases, 1), i64p(ptr(step, bases, 2))
        bias, scale, shift = ptr(step, bases, 3), ptr(step, bases, 4), ptr(step, bases, 5)
        weight_sum, weight_zero = ptr(step, bases, 6), ptr(step, bases, 7)
        zeros, scales = ptr(step, bases, 8), ptr(step, bases, 9)
        flip, c = ptr(step, bases, 10), ptr(step, bases, 11)
        rows, columns, dwords, full = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
        size, out_row = num(step, ops, 4), num(step, ops, 5)
        per_image, per_row = num(step, ops, 6), num(step, ops, 7)
        image_step, row_step, column_step = num(step, ops, 8), num(step, ops, 9), num(step, ops, 10)
        groups, group_a, group_w = num(step, ops, 11), num(step, ops, 12), num(step, ops, 13)
        batches, batch_a, batch_w = num(step, ops, 14), num(step, ops, 15), num(step, ops, 16)
        batch_c, batch_bias = num(step, ops, 17), num(step, ops, 18)
        kind, zero = num(step, ops, 19), num(step, ops, 20)
        bounds = (real(step, ops, 21), real(step, ops, 22))
        rows_a_scale = num(step, ops, 23)
        rows_at = stack_words(BLOCK)
        row_scale = stack_floats(BLOCK)
        row_zero = i32p(address(stack_floats(BLOCK)))
        stride = size * out_row
        width = full * LANES
        padded = (columns + LANES - 1) // LANES * LANES
        panels = (columns + width - 1) // width
        # Few rows: workers share the columns; else the rows.
        narrow = rows * batches < BLOCK * workers
        if narrow:
            lo_m, hi_m = 0, rows * batches
            lo_p = panels * groups * worker // workers
            hi_p = panels * groups * (worker + 1) // workers
        else:
            lo_m, hi_m = first(rows * batches, worker, workers, 24), first(rows * batches, worker + 1, workers, 24)
            lo_p, hi_p = 0, panels * groups
        m = lo_m
        while m < hi_m:
            batch = m // rows
            inside = m - batch * rows
            count = min(BLOCK, hi_m - m, rows - inside)
            locate(rows_at, count, inside, a + batch * batch_a, per_image, per_row, image_step, row_step, column_step)
            if kind != BYTE:
                for i in range(BLOCK):
                    at_scale = (m + min(i, count - 1)) // rows_a_scale if rows_a_scale > 0 else 0
                    row_scale[i] = f32p(scales)[at_scale]
                    if zeros == 0:
                        row_zero[i] = int32(0)
                    elif u8p(flip)[0] != 0:
                        row_zero[i] = -int32(i8p(zeros)[at_scale])
                    else:
                        row_zero[i] = -int32(u8p(zeros)[at_scale])
            for p in range(lo_p, hi_p):
                group = p // panels
                column = (p - group * panels) * width
                live = min(width, columns - column)
                vectors = (live + LANES - 1) // LANES
                # Every panel before this one is full, and has its own vector of ones.
                panel = w + batch * batch_w + group * group_w + 4 * dwords * (column + column // width * ones * LANES)
                out = c + batch * batch_c + inside * stride + size * (group * columns + column)
                place = 4 * (group * padded + column)
                each = place + batch * batch_bias
                tables = (
                    bias + each,
                    scale + place,
                    shift + place,
                    weight_sum + each,
                    weight_zero + place,
                    address(row_zero),
                    address(row_scale),
                )
                shift_a = group * group_a
                if shift_a != 0:
                    for i in range(BLOCK):
                        rows_at[i] += shift_a
                if count == 1:
                    if vectors == 4:
                        thin_4(rows_at, 1, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                    elif vectors == 3:
                        thin_3(rows_at, 1, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                    elif vectors == 2:
                        thin_2(rows_at, 1, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                    else:
                        thin_1(rows_at, 1, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                elif vectors == 4:
                    full_4(rows_at, count, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                elif vectors == 3:
                    full_3(rows_at, count, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                elif vectors == 2:
                    full_2(rows_at, count, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                else:
                    full_1(rows_at, count, places, dwords, panel, out, stride, flip, live, kind, bounds, zero, tables)
                if shift_a != 0:
                    for i in range(BLOCK):
                        rows_at[i] -= shift_a
            m += count

    return drive


_plain, _shifted = _driver(False), _driver(True)


@kernel(fastmath=set())
def x8_gemm(step, bases, worker, workers):
    """C = requantised or scaled A W. Operands A, W (packed), places, a column's bias (int32), scale and real bias
    (float32), sum of weights and zero point (int32), a row's zero point? (as A) and scale (float32), what is flipped in
    A (a vector: 128 in every byte where A is signed, else 0), C.

    numbers: 0 rows, 1 columns, 2 dwords of a row, 3 vectors of a full panel, 4 bytes of a result, 5 results in a row
    of C, 6 rows an image, 7 rows a line, 8 image step, 9 line step, 10 row step (bytes), 11 groups, 12 A step a group,
    13 W step a group, 14 batches, 15 A, 16 W, 17 C, 18 bias and weight sum step a batch (bytes), 19 kind of result,
    20 zero point of C, 21 low, 22 high (bytes: less the zero point), 23 rows that share a zero point and a scale, 0:
    all.
    """
    _plain(step, bases, worker, workers)


@kernel(fastmath=set())
def x8_gemm_shifted(step, bases, worker, workers):
    """As x8_gemm, for weights with zero points: every panel ends with a vector of ones."""
    _shifted(step, bases, worker, workers)


@exact
def _kept(total, j, four):
    """`four` signed bytes, their sum added to a column's."""
    total[j] += (
        (int32(four << 24) >> 24) + (int32(four << 16) >> 24) + (int32(four << 8) >> 24) + (int32(four) >> 24)
    )  # fmt: skip
    return int32(four)


@exact
def _interleave(to, total, rows, row_step, live, flips):
    """Dwords of four rows' bytes, one a column."""
    r0, r1, r2, r3 = u8p(rows), u8p(rows + row_step), u8p(rows + 2 * row_step), u8p(rows + 3 * row_step)
    for j in range(live):
        low = int32(r0[j]) | int32(int32(r1[j]) << 8)
        high = int32(int32(r2[j]) << 16) | int32(int32(r3[j]) << 24)
        to[j] = _kept(total, j, int32(low | high) ^ flips)


@kernel()
def x8_pack(step, bases, worker, workers):
    """B -> panels and what hangs on its columns, for products of two computed matrices. Operands B, bias?, panels,
    folded bias, weight sums.

    numbers: 0 depth, 1 columns, 2 vectors of a full panel, 3 vectors of ones behind it, 4 step from row to row, 5 from
    column to column (bytes), 6 batches, 7 B, 8 panels, 9 column tables' step a batch (bytes), 10 what is flipped in B,
    11 zero point of B flipped so, 12 zero point of A as the tile reads it, 13 bytes that the last dword reads twice.
    A weight sum is the sum of a column's (w - zero point); its bias is less by it times A's zero point.
    """
    ops = 5
    b, bias, packed = ptr(step, bases, 0), ptr(step, bases, 1), ptr(step, bases, 2)
    folded, sums = ptr(step, bases, 3), ptr(step, bases, 4)
    depth, columns, full, ones = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
    row_step, column_step, batches = num(step, ops, 4), num(step, ops, 5), num(step, ops, 6)
    batch_b, batch_packed, batch_table = num(step, ops, 7), num(step, ops, 8), num(step, ops, 9)
    flip, zero_b, zero_a, overlap = num(step, ops, 10), num(step, ops, 11), num(step, ops, 12), num(step, ops, 13)
    width = full * LANES
    panels = (columns + width - 1) // width
    dwords = (depth + 3) // 4
    for job in range(batches * panels * worker // workers, batches * panels * (worker + 1) // workers):
        batch = job // panels
        column = (job - batch * panels) * width
        live = min(width, columns - column)
        padded = (live + LANES - 1) // LANES * LANES
        source = b + batch * batch_b + column * column_step
        target = packed + batch * batch_packed + 4 * dwords * (column + column // width * ones * LANES)
        total = i32p(sums + batch * batch_table + 4 * column)
        start = i32p(folded + batch * batch_table + 4 * column)
        for j in range(padded):
            total[j] = int32(0)
        four_flips = int32(flip * 0x01010101)
        for g in range(dwords):
            to = i32p(target + 4 * g * (padded + ones * LANES))
            count = min(4, depth - 4 * g)
            skipped = 4 - count if overlap > 0 else 0  # bytes of the last dword that the one before it holds
            start_row = source + (4 * g - skipped) * row_step
            mask = int32(((1 << 8 * count) - 1) << 8 * skipped)
            if count == 4 and column_step == 1:
                _interleave(to, total, start_row, row_step, live, four_flips)
            elif count == 4 and row_step == 1:
                for j in range(live):
                    to[j] = _kept(total, j, i32p(start_row + j * column_step)[0] ^ four_flips)
            else:
                for j in range(live):
                    value = 0
                    for i in range(skipped, skipped + count):
                        value |= int64(u8p(start_row + i * row_step + j * column_step)[0]) << 8 * i
                    to[j] = _kept(total, j, (int32(value) ^ four_flips) & mask)
            for j in range(live, padded):
                to[j] = int32(0)
            for j in range(padded, padded + ones * LANES):
                to[j] = int32(0x01010101) & mask
        for j in range(live):
            total[j] -= int32(depth * zero_b)
            start[j] = (i32p(bias)[column + j] if bias != 0 else int32(0)) - int32(zero_a) * total[j]
        for j in range(live, padded):
            total[j] = int32(0)
            start[j] = int32(0)


def padder(pointer, size: int):
    """A kernel's body that copies a channels-last image with a border of its zero point; see x8_pad. `pointer` casts
    addresses to elements of `size` bytes."""

    @exact
    def pad(step, bases, worker, workers):
        ops = 3
        x, zeros, y = ptr(step, bases, 0), ptr(step, bases, 1), ptr(step, bases, 2)
        images, height, width, depth = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
        top, left, high, wide = num(step, ops, 4), num(step, ops, 5), num(step, ops, 6), num(step, ops, 7)
        apart = num(step, ops, 8)
        line = wide * depth
        before = min(left, wide) * depth
        inside = max(0, min(width, wide - left)) * depth
        for row in range(images * high * worker // workers, images * high * (worker + 1) // workers):
            image = row // high
            filler = pointer(zeros)[image * apart]
            source_row = row - image * high - top
            target = pointer(y + size * row * line)
            if source_row < 0 or source_row >= height:
                for i in range(line):
                    target[i] = filler
            else:
                source = pointer(x + size * (image * height + source_row) * width * depth)
                for i in range(before):
                    target[i] = filler
                body = pointer(address(target) + size * before)
                for i in range(inside):
                    body[i] = source[i]
                tail = pointer(address(body) + size * inside)
                for i in range(line - before - inside):
                    tail[i] = filler

    return pad


_pad = padder(u8p, 1)


@kernel()
def x8_pad(step, bases, worker, workers):
    """A channels-last image of bytes with a border of its zero point. Operands x, zero points, y.

    numbers: 0 images, 1 height, 2 width, 3 bytes a pixel, 4 top, 5 left, 6 height and 7 width of the result,
    8 zero points from image to image.
    """
    _pad(step, bases, worker, workers)
