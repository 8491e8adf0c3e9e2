"""Matrix products and convolutions of bytes, all computed by one register tile of int32 sums.

As in `gemm`, the left operand is accessed through one pointer per row. The reduction runs over dwords: four bytes at
places[g] from the row's pointer are multiplied by four bytes of every column. Where processors multiply by one lane of
a register (INDEXED), four adjacent dwords are loaded at once; the planner puts such groups first. Weights are packed
in panels [columns / (NV * LANES)] [dwords][NV * LANES][4], signed, with zeros after the last column and for bytes of a
dword that are not part of a tap: the values read there do not matter, but the memory always belongs to the row's
tensor. For outer products (OUTER) they are [dwords][4][NV * LANES], and each byte of a row is multiplied by a vector of
them; dwords come first whose neighbouring products can be added in 16 bits. Unsigned activations are used directly,
signed ones with their top bit flipped (the other way round on targets that multiply signed bytes faster); the bias
corrects for that and for the zero points (derived in ops/_qpanels.py).

Weights with a zero point need the sum of every row: a panel's last vector then holds ones.
"""

from __future__ import annotations

from contextlib import contextmanager

from llvmlite import ir
from numba import int32, int64, types, uint8
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._dot import (
    FLOATS,
    INTS,
    as_address,
    at,
    emit_bytes,
    emit_in_order,
    emit_input_dot,
    emit_store_narrow,
    emit_store_part,
    inputs_are_signed,
    load_floats,
    load_ints,
    load_repeated,
    narrowing,
    variable,
)
from lite_runtime.kernels._memory import emit_prefetch
from lite_runtime.native.simd import (
    INDEXED,
    LANES,
    SHAPE,
    address,
    emit_fused,
    emit_lane,
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
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qgemm import X8Gemm, X8GemmShifted, X8Pack, X8Pad

PACK = named(X8Pack)
GEMM = named(X8Gemm)
PAD = named(X8Pad)

_WIDE = SHAPE.vectors == 32
TILES = {1: 8, 2: 8, 3: 8, 4: 6} if _WIDE else {1: 6, 2: 6, 3: 3, 4: 2}
"""Rows of the register tile by its width in vectors; see `gemm.TILES`."""
if INDEXED:
    TILES = {1: 8, 2: 8, 3: 6, 4: 4}
OUTER = SHAPE.outer
if OUTER:
    TILES = {1: 6, 2: 6, 3: 4, 4: 4}
TOGETHER = 2
"""Rows whose products are added one after the other: adding products to sums takes another mode of the vector unit."""
if SHAPE.small:
    TILES = {1: 4, 2: 2} if SHAPE.vectors else {1: 1, 2: 1}
WIDEST = 1 if SHAPE.small else 4
"""Vectors of the widest panel, without its vector of ones (`ops._panels.tile_vectors`)."""
CHAINS = 1 if SHAPE.small else 8
"""The least number of sums in a tile of one row, so that none waits for the one before it: a dot product takes 4
cycles, and two start in each cycle."""
BLOCK, SPARE = 24 if SHAPE.small else 192, 8
"""Rows whose addresses are stored at a time: a panel of weights, 256 KiB at 1024 dwords, is read once for all of them.
And space after them for the last tile's unused rows."""
HELD = BLOCK + SPARE
TILES_1 = TILES[1]
LINE, NEAR = 64, 4096
"""Bytes of a cache line; and how many bytes ahead a single row prefetches its weights."""
GRAIN = 24
"""Rows in a worker's smallest share, a multiple of every tile."""
BYTE, FLOAT, INT, FIXED, TWICE, REAL = range(6)
"""Kinds of result: a requantised byte, a real number, the int32 sum. qwide only: an integer as LiteRT's own kernels
round it, by int32 multipliers and shifts in the words of `scale` and `shift` (FIXED, TWICE), or by the words of float64
factors (REAL)."""

_F32, _I64, _I32, _I16, _I8 = ir.FloatType(), *(ir.IntType(bits) for bits in (64, 32, 16, 8))
_WORDS = types.CPointer(types.int64)
_VEC = 4 * LANES


def _tile(rows: int, vectors: int, shifted: bool):
    """The register tile: rows x (vectors * LANES) results; `shifted`: with a vector of ones after the weights."""
    parts = max(1, CHAINS // (vectors + shifted)) if rows == 1 else 1

    @intrinsic
    def tile(
        typing, rows_at, places, counts, panel, ahead, out, stride, flip, columns, live, kind, bounds, narrow, tables
    ):
        """rows_at: row addresses; counts: of dwords, and of those (INDEXED: groups of four adjacent ones) that come
        first; ahead: bytes from a dword of the panel to the data to prefetch; out: address of the first result; stride:
        bytes between rows of results; live rows and columns are stored. bounds: lowest and highest result as float32,
        minus the zero point; narrow: see `narrowing`. tables: addresses of the columns' bias, scale, real bias, sum of
        weights, zero point; of the rows' negated zero point and scale."""
        numbers = types.UniTuple
        sig = types.void(
            *(_WORDS, _WORDS, numbers(types.int64, 2), *[types.int64] * 8),
            *(numbers(types.float32, 2), numbers(types.int64, 5), numbers(types.int64, 7)),
        )

        def lower(context, builder, sig, args):
            rows_at, places, counts, panel, ahead, out, stride, flip, columns, live, *others = args
            kind, bounds, narrow, tables = others
            dwords, quick = (builder.extract_value(counts, i) for i in range(2))
            bias, scale, shift, weight_sum, weight_zero, row_zero, row_scale = (
                builder.extract_value(tables, i) for i in range(7)
            )

            def beyond(where, j):
                return builder.add(where, where.type(_VEC * j))

            start = [load_ints(builder, beyond(bias, j)) for j in range(vectors)]
            none = ir.Constant(INTS, [0] * LANES)
            sums = [[variable(builder, one) for one in start] for _ in range(rows)]
            ones = [variable(builder, none) for _ in range(rows if shifted else 0)]
            # A single row is summed in several parts, to which dwords are added in turn.
            apart = [[variable(builder, none) for _ in range(vectors + shifted)] for _ in range(parts - 1)]
            weights = variable(builder, as_address(builder, panel))
            bases = [as_address(builder, builder.load(builder.gep(rows_at, [_I64(i)]))) for i in range(rows)]
            unsign = load_repeated(builder, flip)
            whole = vectors + shifted

            def products(factors, into):
                """Add the products of every row's dword and the next weights; factors: row -> a repeated dword."""
                w = builder.load(weights)
                if whole == 4 and not INDEXED:  # narrower tiles are limited by loads
                    emit_prefetch(builder, builder.add(w, ahead))
                columns_now = [load_ints(builder, beyond(w, j)) for j in range(whole)]
                for i, sums_of_row in enumerate(into):
                    left = factors(i)
                    for one, column in zip(sums_of_row, columns_now, strict=True):
                        builder.store(emit_input_dot(builder, builder.load(one), left, column), one)
                builder.store(beyond(w, whole), weights)

            def dword(index, into):
                here = as_address(builder, builder.load(builder.gep(places, [index])))

                def repeated(i):
                    four = builder.load(at(builder, builder.add(bases[i], here), _I32), align=1, typ=_I32)
                    return builder.xor(emit_splat(builder, four, INTS), unsign)

                products(repeated, into)

            into = [[*sums[i], *ones[i : i + 1]] for i in range(rows)]
            if OUTER:
                _emit_outer(builder, into, apart, (bases, places, dwords, quick, panel, flip))
            elif INDEXED:

                def four_dwords(turned):
                    with cgutils.for_range(builder, quick, intp=_I64) as loop:
                        here = builder.load(builder.gep(places, [builder.mul(loop.index, _I64(4))]))
                        held = [turned(load_ints(builder, builder.add(base, here), align=1)) for base in bases]
                        for k in range(4):
                            target = [apart[k % parts - 1]] if k % parts else into
                            products(lambda i, k=k: emit_lane(builder, held[i], k), target)

                mask = builder.load(at(builder, flip, _I32), align=4, typ=_I32)
                with builder.if_else(builder.icmp_signed("!=", mask, _I32(0))) as (turns, stays):
                    with turns:
                        four_dwords(lambda one: builder.xor(one, unsign))
                    with stays:
                        four_dwords(lambda one: one)
                begin = builder.mul(quick, _I64(4))
                with cgutils.for_range(builder, builder.sub(dwords, begin), intp=_I64) as loop:
                    dword(builder.add(begin, loop.index), into)
            elif parts == 1:
                with _counted(builder, as_address(builder, dwords)) as index:
                    dword(index, into)
            else:
                turns = builder.udiv(dwords, _I64(parts))
                with cgutils.for_range(builder, turns, intp=_I64) as loop:
                    begin = builder.mul(loop.index, _I64(parts))
                    for part, sums_of_part in enumerate([into[0], *apart]):
                        dword(builder.add(begin, _I64(part)), [sums_of_part])
                begin = builder.mul(turns, _I64(parts))
                with cgutils.for_range(builder, builder.sub(dwords, begin), intp=_I64) as loop:
                    dword(builder.add(begin, loop.index), into)
            for sums_of_part in apart:
                for one, more in zip(into[0], sums_of_part, strict=True):
                    builder.store(builder.add(builder.load(one), builder.load(more)), one)

            if shifted:
                for j in range(vectors):
                    point = load_ints(builder, beyond(weight_zero, j))
                    for i in range(rows):
                        value = builder.sub(builder.load(sums[i][j]), builder.mul(builder.load(ones[i]), point))
                        builder.store(value, sums[i][j])
            last = builder.sub(columns, _I64(LANES * (vectors - 1)))

            def if_live(i):
                return builder.if_then(builder.icmp_signed("<", _I64(i), live))

            def row_at(i):
                return builder.add(out, builder.mul(stride, _I64(i)))

            with builder.if_else(builder.icmp_signed("==", kind, _I64(BYTE))) as (to_bytes, others):
                with to_bytes:
                    n = narrowing(builder, builder.extract_value(bounds, 1), *cgutils.unpack_tuple(builder, narrow))
                    factors = [load_floats(builder, beyond(scale, j)) for j in range(vectors)]
                    complete = builder.icmp_signed(">=", last, _I64(LANES))
                    together = 4 // vectors  # rows that are packed into one register
                    for first_row in range(0, rows, together):
                        block = range(first_row, min(first_row + together, rows))
                        values = [
                            builder.fmul(builder.sitofp(builder.load(sums[i][j]), FLOATS), factors[j])
                            for i in block
                            for j in range(vectors)
                        ]
                        values += values[-1:] * (4 - len(values))
                        packed = emit_in_order(builder, emit_bytes(builder, values, n))
                        for i in block:
                            with if_live(i):
                                begin = (i - first_row) * vectors
                                _store_bytes(builder, packed, begin, vectors, row_at(i), complete, last)
                with others:
                    low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
                    mask = [emit_mask(builder, builder.sub(columns, _I64(LANES * j))) for j in range(vectors)]
                    real_result = builder.icmp_signed("==", kind, _I64(FLOAT))
                    for i in range(rows):
                        with if_live(i):
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
                                emit_store(builder, value, at(builder, beyond(row_at(i), j), _F32), mask[j])
            return context.get_dummy_value()

        return sig, lower

    return tile


def _emit_outer(builder, into, apart, operands):
    """Add all products of rows and a panel to the sums `into`, row -> a variable for each vector. Each number is
    multiplied by a vector over the panel's whole width; those of neighbours are added in 16 bits where they fit. A
    single row is summed in two parts if there are sums `apart`."""
    bases, places, dwords, quick, panel, flip = operands
    count = len(into[0])
    wide = count * LANES
    bytes_, shorts, ints = (ir.VectorType(ir.IntType(bits), wide) for bits in (8, 16, 32))
    sums = [variable(builder, _joined(builder, [builder.load(one) for one in row])) for row in into]
    others = [variable(builder, ir.Constant(ints, [0] * wide)) for _ in into] if apart else sums
    weights = variable(builder, panel)

    def dword(index, paired, turned):
        here = builder.load(builder.gep(places, [index]))
        w = builder.load(weights)
        starts = [builder.add(base, here) for base in bases]

        def number(start, k):
            one = turned(builder.load(at(builder, builder.add(start, _I64(k)), _I8), align=1, typ=_I8))
            return emit_splat(builder, builder.sext(one, _I16), shorts)

        columns = [
            builder.sext(builder.load(at(builder, builder.add(w, _I64(wide * k)), bytes_), align=1, typ=bytes_), shorts)
            for k in range(4)
        ]
        for some in range(0, len(starts), TOGETHER):
            terms = []
            for i in range(some, min(some + TOGETHER, len(starts))):
                products = [builder.mul(column, number(starts[i], k)) for k, column in enumerate(columns)]
                for total, two in ((sums[i], products[:2]), (others[i], products[2:])):
                    terms += [(total, one) for one in ([builder.add(*two)] if paired else two)]
            for total, term in terms:
                builder.store(builder.add(builder.load(total), builder.sext(term, ints)), total)
        builder.store(builder.add(w, _I64(4 * wide)), weights)

    def loop(begin, end, paired, turned):
        with cgutils.for_range(builder, builder.sub(end, begin), intp=_I64) as turn:
            dword(builder.add(begin, turn.index), paired, turned)

    mask = builder.load(at(builder, flip, _I8), align=1, typ=_I8)
    with builder.if_else(builder.icmp_signed("!=", mask, mask.type(0))) as (turns, stays):
        with turns:
            loop(_I64(0), quick, True, lambda number: builder.xor(number, mask))
        with stays:
            loop(_I64(0), quick, True, lambda number: number)
    loop(quick, dwords, False, lambda number: builder.xor(number, mask))
    for i, row in enumerate(into):
        total = builder.load(sums[i])
        if apart:
            total = builder.add(total, builder.load(others[i]))
        for j, one in enumerate(row):
            order = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES * j, LANES * (j + 1))))
            builder.store(builder.shuffle_vector(total, total, order), one)


def _joined(builder, vectors):
    """Vectors of LANES one after the other."""
    wide = LANES * len(vectors)
    kind = ir.VectorType(_I32, wide)
    total = ir.Constant(ir.VectorType(vectors[0].type.element, wide), ir.Undefined)
    for j, one in enumerate(vectors):
        spread = builder.shuffle_vector(one, one, ir.Constant(kind, [i % LANES for i in range(wide)]))
        order = [wide + i if i // LANES == j else i for i in range(wide)]
        total = builder.shuffle_vector(total, spread, ir.Constant(kind, order))
    return total


def _store_bytes(builder, packed, begin: int, vectors: int, where, complete, last):
    """Store the results of `vectors` vectors, LANES bytes each, of a register from vector `begin` on; only `last` bytes
    of the last vector unless they are `complete`."""

    def store(count, offset=0):
        here = builder.add(where, _I64(LANES * offset))
        emit_store_part(builder, packed, LANES * (begin + offset), LANES * count, here)

    with builder.if_else(complete) as (whole, part):
        with whole:
            if vectors == 3:
                store(2)
                store(1, 2)
            else:
                store(vectors)
        with part:
            for j in range(vectors - 1):
                store(1, j)
            j = vectors - 1
            order = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES * (begin + j), LANES * (begin + j + 1))))
            tail = builder.shuffle_vector(packed, packed, order)
            emit_store_narrow(builder, tail, builder.add(where, _I64(LANES * j)), 8, last)


@contextmanager
def _counted(builder, count):
    """A loop over 0..count-1, count at least 1."""
    index = variable(builder, count.type(0))
    body, after = builder.append_basic_block("dwords"), builder.append_basic_block("summed")
    builder.branch(body)
    builder.position_at_end(body)
    now = builder.load(index)
    yield now
    following = builder.add(now, count.type(1))
    builder.store(following, index)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)


def _sweep(tile, size, vectors):
    """Process `size` rows at a time. Tiles take turns in prefetching lines of the panel that follows theirs."""
    slice_bytes = _VEC * vectors

    @exact
    def sweep(rows_at, count, places, counts, panel, out, stride, flip, columns, kind, bounds, narrow, tables):
        bias, scale, shift, weight_sum, weight_zero, row_zero, row_scale = tables
        i, turn = 0, 0
        while i < count:
            row = (bias, scale, shift, weight_sum, weight_zero, row_zero + 4 * i, row_scale + 4 * i)
            here, to = i64p(address(rows_at) + 8 * i), out + i * stride
            ahead = slice_bytes * counts[0] + turn if size > 1 else NEAR
            tile(here, places, counts, panel, ahead, to, stride, flip, columns, count - i, kind, bounds, narrow, row)
            i += size
            turn = turn + LINE if turn + LINE < slice_bytes else 0

    return sweep


def _across(tile, vectors, whole):
    """Process a single row and so many neighbouring panels; `stride`: bytes between the results of two panels. In a
    loop around all that drivers do for a panel, it took 60 instructions more for each."""

    @exact
    def across(row_at, panels, places, counts, panel, out, stride, flip, columns, kind, bounds, narrow, tables):
        bias, scale, shift, weight_sum, weight_zero, row_zero, row_scale = tables
        slice_bytes = _VEC * whole * counts[0]
        place = 0
        for _ in range(panels):
            row = (
                bias + place,
                scale + place,
                shift + place,
                weight_sum + place,
                weight_zero + place,
                row_zero,
                row_scale,
            )
            tile(row_at, places, counts, panel, NEAR, out, 0, flip, columns, 1, kind, bounds, narrow, row)
            place += _VEC * vectors
            panel += slice_bytes
            out += stride

    return across


def _sweeps(shifted: bool):
    """By width: loops over rows with the tallest tile, and over panels with one row. A shifted tile has one vector
    less; its ones are the fourth."""
    widths = range(1, min(WIDEST, 4 - shifted) + 1)
    full = [_sweep(_tile(TILES[n + shifted], n, shifted), TILES[n + shifted], n + shifted) for n in widths]
    thin = [_across(_tile(1, n, shifted), n, n + shifted) for n in widths] if TILES[1] > 1 else full
    return [(*loops, *loops[-1:] * (4 - len(loops))) for loops in (full, thin)]


@exact
def _locate(at, count, m, a, per_image, per_row, image_step, row_step, column_step):
    """Addresses of `count` rows, starting at row m, then SPARE times the last one."""
    image = m // per_image if m >= per_image else 0
    rest = m - image * per_image
    y = rest // per_row if rest >= per_row else 0
    x = rest - y * per_row
    start = a + image * image_step + y * row_step
    image_end = per_image - rest
    i = 0
    while i < count:
        run = min(count - i, per_row - x)
        here = i64p(address(at) + 8 * i)
        for k in range(run):
            here[k] = start + (x + k) * column_step
        i += run
        x = 0
        start += row_step
        if i == image_end:
            image += 1
            image_end += per_image
            start = a + image * image_step
    last = at[count - 1]
    for k in range(SPARE):
        at[count + k] = last


@exact
def byte_numbers(kind, wild, zero, turn, bounds):
    """A step's numbers in the form of `narrowing`."""
    point = zero + turn
    if kind != BYTE:
        return wild, point, 0, 255, turn
    return wild, point, point + int64(bounds[0]), point + int64(bounds[1]), turn


def _driver(shifted: bool):
    (full_1, full_2, full_3, full_4), (thin_1, thin_2, thin_3, thin_4) = _sweeps(shifted)
    ones = 1 if shifted else 0

    @exact
    def drive(step, bases, worker, workers):
        a, w, places = ptr(step, bases, GEMM.a), ptr(step, bases, GEMM.w), i64p(ptr(step, bases, GEMM.places))
        bias, scale, shift = ptr(step, bases, GEMM.bias), ptr(step, bases, GEMM.scale), ptr(step, bases, GEMM.shift)
        weight_sum, weight_zero = ptr(step, bases, GEMM.weight_sum), ptr(step, bases, GEMM.weight_zero)
        zeros, scales = ptr(step, bases, GEMM.zeros), ptr(step, bases, GEMM.scales)
        flip, c = ptr(step, bases, GEMM.flip), ptr(step, bases, GEMM.c)
        rows, columns, dwords, full = (
            num(step, GEMM.rows),
            num(step, GEMM.columns),
            num(step, GEMM.dwords),
            num(step, GEMM.vectors),
        )
        counts = (dwords, num(step, GEMM.quick))
        size, out_row = num(step, GEMM.size), num(step, GEMM.c_row)
        per_image, per_row = num(step, GEMM.per_image), num(step, GEMM.per_line)
        image_step, row_step, column_step = (
            num(step, GEMM.image_step),
            num(step, GEMM.line_step),
            num(step, GEMM.row_step),
        )
        groups, group_a, group_w = num(step, GEMM.groups), num(step, GEMM.group_a), num(step, GEMM.group_w)
        batches, batch_a, batch_w = num(step, GEMM.batches), num(step, GEMM.batch_a), num(step, GEMM.batch_w)
        batch_c, batch_bias = num(step, GEMM.batch_c), num(step, GEMM.batch_bias)
        kind, zero = num(step, GEMM.kind), num(step, GEMM.zero)
        bounds = (real(step, GEMM.low), real(step, GEMM.high))
        rows_a_scale, turn = num(step, GEMM.rows_a_scale), num(step, GEMM.turn)
        narrow = byte_numbers(kind, num(step, GEMM.wild), zero, turn, bounds)
        rows_at = stack_words(HELD)
        row_scale = stack_floats(HELD)
        row_zero = i32p(address(stack_floats(HELD)))
        stride = size * out_row
        width = full * LANES
        padded = (columns + LANES - 1) // LANES * LANES
        panels = (columns + width - 1) // width
        # With few rows, workers share the columns; otherwise the rows.
        if rows * batches < 2 * GRAIN * workers:
            lo_m, hi_m, lo_p, hi_p = 0, rows * batches, 0, panels * groups
            if workers > 1:
                lo_p, hi_p = hi_p * worker // workers, hi_p * (worker + 1) // workers
        else:
            lo_m = first(rows * batches, worker, workers, GRAIN)
            hi_m = first(rows * batches, worker + 1, workers, GRAIN)
            lo_p, hi_p = 0, panels * groups
        m = lo_m
        while m < hi_m:
            batch = m // rows if m >= rows else 0
            inside = m - batch * rows
            left = min(hi_m - m, rows - inside)
            count = left
            if left > BLOCK:
                blocks = (left + BLOCK - 1) // BLOCK  # of about equal size
                count = ((left + blocks - 1) // blocks + GRAIN - 1) // GRAIN * GRAIN
            _locate(rows_at, count, inside, a + batch * batch_a, per_image, per_row, image_step, row_step, column_step)
            if kind != BYTE:
                for i in range(count + SPARE):
                    at_scale = (m + min(i, count - 1)) // rows_a_scale if rows_a_scale > 0 else 0
                    row_scale[i] = f32p(scales)[at_scale]
                    if zeros == 0:
                        row_zero[i] = int32(0)
                    elif (u8p(flip)[0] != 0) != inputs_are_signed():
                        row_zero[i] = -int32(i8p(zeros)[at_scale])
                    else:
                        row_zero[i] = -int32(u8p(zeros)[at_scale])
            group = lo_p // panels if lo_p >= panels else 0
            before, run = lo_p - group * panels - 1, 1
            p = lo_p
            while p < hi_p:
                before += run  # panels of this group before this one, all full, each with its ones
                if before == panels:
                    group, before = group + 1, 0
                column = before * width
                live = min(width, columns - column)
                vectors = (live + LANES - 1) // LANES if WIDEST > 1 else 1
                panel = w + batch * batch_w + group * group_w + 4 * dwords * (column + before * ones * LANES)
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
                    for i in range(count + SPARE):
                        rows_at[i] += shift_a
                run = 1
                if count == 1 and TILES_1 > 1:
                    gap = size * width
                    if live == width:
                        run = min(hi_p - p, columns // width - before)
                    if vectors == 4:
                        thin_4(rows_at, run, places, counts, panel, out, gap, flip, live, kind, bounds, narrow, tables)
                    elif vectors == 3:
                        thin_3(rows_at, run, places, counts, panel, out, gap, flip, live, kind, bounds, narrow, tables)
                    elif vectors == 2:
                        thin_2(rows_at, run, places, counts, panel, out, gap, flip, live, kind, bounds, narrow, tables)
                    else:
                        thin_1(rows_at, run, places, counts, panel, out, gap, flip, live, kind, bounds, narrow, tables)
                elif vectors == 4:
                    full_4(rows_at, count, places, counts, panel, out, stride, flip, live, kind, bounds, narrow, tables)
                elif vectors == 3:
                    full_3(rows_at, count, places, counts, panel, out, stride, flip, live, kind, bounds, narrow, tables)
                elif vectors == 2:
                    full_2(rows_at, count, places, counts, panel, out, stride, flip, live, kind, bounds, narrow, tables)
                else:
                    full_1(rows_at, count, places, counts, panel, out, stride, flip, live, kind, bounds, narrow, tables)
                p += run
                if shift_a != 0:
                    for i in range(count + SPARE):
                        rows_at[i] -= shift_a
            m += count

    return drive


_plain, _shifted = _driver(False), _driver(True)


@kernel(X8Gemm, fastmath=set())
def x8_gemm(step, bases, worker, workers):
    """C = requantised or scaled A W."""
    _plain(step, bases, worker, workers)


@kernel(X8GemmShifted, fastmath=set())
def x8_gemm_shifted(step, bases, worker, workers):
    """Like x8_gemm, for weights with zero points: every panel ends with a vector of ones."""
    _shifted(step, bases, worker, workers)


@exact
def _put(to, wide, j, four):
    """Store a column's four bytes of a dword; `wide`: columns of the panel, ones included."""
    if OUTER:
        for k in range(4):
            u8p(address(to) + k * wide)[j] = uint8(four >> 8 * k)
    else:
        to[j] = int32(four)


@exact
def _keep(to, wide, total, j, four):
    """Store four signed bytes and add their sum to the column's sum."""
    total[j] += (
        (int32(four << 24) >> 24) + (int32(four << 16) >> 24) + (int32(four << 8) >> 24) + (int32(four) >> 24)
    )  # fmt: skip
    _put(to, wide, j, four)


@exact
def _interleave(to, wide, total, rows, row_step, live, flips):
    """Dwords of four rows' bytes, one per column."""
    r0, r1, r2, r3 = u8p(rows), u8p(rows + row_step), u8p(rows + 2 * row_step), u8p(rows + 3 * row_step)
    for j in range(live):
        low = int32(r0[j]) | int32(int32(r1[j]) << 8)
        high = int32(int32(r2[j]) << 16) | int32(int32(r3[j]) << 24)
        _keep(to, wide, total, j, int32(low | high) ^ flips)


@kernel(X8Pack)
def x8_pack(step, bases, worker, workers):
    """B -> panels and tables for its columns, for products of two computed matrices."""
    b, bias, packed = ptr(step, bases, PACK.b), ptr(step, bases, PACK.bias), ptr(step, bases, PACK.packed)
    folded, sums = ptr(step, bases, PACK.folded), ptr(step, bases, PACK.sums)
    depth, columns, full, ones = (
        num(step, PACK.depth),
        num(step, PACK.columns),
        num(step, PACK.vectors),
        num(step, PACK.ones),
    )
    row_step, column_step, batches = num(step, PACK.row_step), num(step, PACK.column_step), num(step, PACK.batches)
    batch_b, batch_packed, batch_table = (
        num(step, PACK.batch_b),
        num(step, PACK.batch_packed),
        num(step, PACK.batch_table),
    )
    flip, zero_b, zero_a, overlap = (
        num(step, PACK.flip),
        num(step, PACK.zero_b),
        num(step, PACK.zero_a),
        num(step, PACK.overlap),
    )
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
            wide = padded + ones * LANES
            to = i32p(target + 4 * g * wide)
            count = min(4, depth - 4 * g)
            skipped = 4 - count if overlap > 0 else 0  # bytes of the last dword that the previous one also holds
            start_row = source + (4 * g - skipped) * row_step
            mask = int32(((1 << 8 * count) - 1) << 8 * skipped)
            if count == 4 and column_step == 1:
                _interleave(to, wide, total, start_row, row_step, live, four_flips)
            elif count == 4 and row_step == 1:
                for j in range(live):
                    _keep(to, wide, total, j, i32p(start_row + j * column_step)[0] ^ four_flips)
            else:
                for j in range(live):
                    value = 0
                    for i in range(skipped, skipped + count):
                        value |= int64(u8p(start_row + i * row_step + j * column_step)[0]) << 8 * i
                    _keep(to, wide, total, j, (int32(value) ^ four_flips) & mask)
            for j in range(live, padded):
                _put(to, wide, j, int32(0))
            for j in range(padded, wide):
                _put(to, wide, j, int32(0x01010101) & mask)
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
        x, zeros, y = ptr(step, bases, PAD.x), ptr(step, bases, PAD.zeros), ptr(step, bases, PAD.y)
        images, height, width, depth = (
            num(step, PAD.images),
            num(step, PAD.height),
            num(step, PAD.width),
            num(step, PAD.depth),
        )
        top, left, high, wide = num(step, PAD.top), num(step, PAD.left), num(step, PAD.high), num(step, PAD.wide)
        apart = num(step, PAD.apart)
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


@kernel(X8Pad)
def x8_pad(step, bases, worker, workers):
    """A channels-last image of bytes with a border of its zero point."""
    _pad(step, bases, worker, workers)
