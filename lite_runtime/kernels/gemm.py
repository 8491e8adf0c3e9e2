"""Matrix products and convolutions, float32, all computed by one register tile.

The left operand is accessed through one pointer per row, so that a row may be a matrix row or the window of an output
pixel; the reduction runs over `taps` segments of `depth` contiguous floats, tap t at byte offset taps_at[t] from the
row's pointer. A matrix has one tap; a channels-last convolution has one for every kernel row (its columns are
contiguous) or, if dilated, one for every kernel element. Weights are packed in panels: [columns / (NV * LANES)][taps *
depth][NV * LANES], padded with zeros. Each result is one chain of fused multiply-adds in ascending k for every tile:
results do not depend on tiling or on the number of workers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import float32, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._math import activate
from lite_runtime.kernels._memory import emit_prefetch
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
    i64p,
    kernel,
    num,
    ptr,
    real,
    shared,
    splat,
    stack_words,
    vload_n,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.gemm import F32Gemm, F32Pack, F32Pad, F32Transpose

GEMM = named(F32Gemm)
PACK = named(F32Pack)
PAD = named(F32Pad)
TURN = named(F32Transpose)

TILES = {1: 8, 2: 8, 3: 8, 4: 6} if SHAPE.vectors == 32 else {1: 6, 2: 6, 3: 4, 4: 3}
"""Rows of the register tile by its width in vectors. With 32 registers, 8x3 and 6x4 hold 24 sums, the weights and a
broadcast; each row needs an address register, of which x86 has about ten available. With 16 registers: 6x2, 4x3 and
3x4. INDEXED: every row has a register of its own, which leaves room for 8x2, 6x3 and 4x4. Where a product is not fused,
it takes a register too: a BERT-like model in WebAssembly takes 16.9 ms with 4x2 and 3x3, 28.0 with 6x2 and 4x3."""
if INDEXED:
    TILES = {1: 8, 2: 8, 3: 6, 4: 4}
if not SHAPE.fused:
    TILES = {1: 6, 2: 4, 3: 3, 4: 2}
if SHAPE.small:
    TILES = {1: 4 if SHAPE.vectors else 2, 2: 2, 3: 2, 4: 2}
WIDEST = 1 if SHAPE.small else 4
"""Vectors of the widest panel of f32_gemm (`ops._panels.tile_vectors`)."""
BLOCK = 48
"""Rows whose addresses are stored at a time, a multiple of every tile; their data stays in cache."""
HELD = 60
"""Addresses that f32_gemm has room for: the rows of a block, at most 54 or 56, and those that the last tile reads
beyond them."""

_F32, _I64 = ir.FloatType(), ir.IntType(64)
_WORDS, _F32P = types.CPointer(types.int64), types.CPointer(types.float32)


def _tile(rows: int, vectors: int):
    """The register tile: rows x (vectors * LANES) results."""

    @intrinsic
    def tile(
        typing, at, taps_at, taps, depth, panel, ahead, step, out, stride, bias, residual, low, high, live, columns
    ):
        """at: row addresses; panel: packed weights; ahead, step: address of data to prefetch into the L2 cache, one
        line every `step` bytes; out: address of the first result; stride: bytes between rows of out and of residual (an
        address or 0); bias: an address; low, high: bounds of the result; live rows and columns are stored; the others
        are computed from mapped memory and dropped."""
        sig = types.void(_WORDS, _WORDS, *[types.int64] * 9, types.float32, types.float32, types.int64, types.int64)

        def lower(context, builder, sig, args):
            at, taps_at, taps, depth, panel, ahead, step, out, stride, bias, residual, low, high, live, columns = args
            vector = ir.VectorType(_F32, LANES)
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", vector, vector, vector, vector)
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(vectors)] for _ in range(rows)]
            for row in sums:
                for one in row:
                    builder.store(ir.Constant(vector, [0.0] * LANES), one)
            weights = cgutils.alloca_once(builder, _I64)
            builder.store(panel, weights)
            coming = cgutils.alloca_once_value(builder, ahead)
            bases = [builder.load(builder.gep(at, [_I64(i)])) for i in range(rows)]

            def products(factors):
                """Add the products of every row's factor and the next weights; factors: row -> a repeated factor."""
                b = builder.load(weights)
                columns_now = [_load(builder, builder.add(b, _I64(4 * LANES * j))) for j in range(vectors)]
                if rows > 1 and vectors > 2 and not INDEXED:
                    emit_prefetch(builder, builder.load(coming))
                    builder.store(builder.add(builder.load(coming), step), coming)
                for i in range(rows):
                    left = factors(i)
                    for j in range(vectors):
                        so_far = builder.load(sums[i][j])
                        builder.store(builder.call(fma, [left, columns_now[j], so_far]), sums[i][j])
                builder.store(builder.add(b, _I64(4 * LANES * vectors)), weights)

            with cgutils.for_range(builder, taps, intp=_I64) as tap:
                offset = builder.load(builder.gep(taps_at, [tap.index]))
                alone = depth
                if INDEXED:
                    with cgutils.for_range(builder, builder.sdiv(depth, _I64(LANES)), intp=_I64) as loop:
                        here = builder.add(offset, builder.mul(loop.index, _I64(4 * LANES)))
                        together = [_load(builder, builder.add(bases[i], here)) for i in range(rows)]
                        for k in range(LANES):
                            products(lambda i, k=k: emit_lane(builder, together[i], k))
                    alone = builder.and_(depth, _I64(LANES - 1))
                    offset = builder.add(offset, builder.mul(builder.sub(depth, alone), _I64(4)))
                with cgutils.for_range(builder, alone, intp=_I64) as loop:
                    here = builder.add(offset, builder.mul(loop.index, _I64(4)))

                    def repeated(i):
                        where = builder.inttoptr(builder.add(bases[i], here), _F32.as_pointer())
                        return emit_splat(builder, builder.load(where, typ=_F32))

                    products(repeated)
            masks = [emit_mask(builder, builder.sub(columns, _I64(j * LANES))) for j in range(vectors)]
            shift = [emit_load(builder, _pointer(builder, bias, j), masks[j]) for j in range(vectors)]
            bounds = emit_splat(builder, low), emit_splat(builder, high)

            def finish(add):
                for i in range(rows):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                        row = builder.mul(stride, _I64(i))
                        for j in range(vectors):
                            value = builder.fadd(builder.load(sums[i][j]), shift[j])
                            if add:
                                more = _pointer(builder, builder.add(residual, row), j)
                                value = builder.fadd(value, emit_load(builder, more, masks[j]))
                            value = emit_max(builder, bounds[0], value)
                            value = emit_max(builder, bounds[1], value, "<")
                            emit_store(builder, value, _pointer(builder, builder.add(out, row), j), masks[j])

            # Not one path with an empty mask: a load from memory that is about to be stored waits for its line.
            with builder.if_else(builder.icmp_signed("!=", residual, _I64(0))) as (with_residual, without):
                with with_residual:
                    finish(True)
                with without:
                    finish(False)
            return context.get_dummy_value()

        return sig, lower

    return tile


def _load(builder, where):
    return emit_load(builder, builder.inttoptr(where, _F32.as_pointer()))


def _pointer(builder, where, j):
    return builder.inttoptr(builder.add(where, _I64(4 * LANES * j)), _F32.as_pointer())


_thin_1, _thin_2, _thin_3, _thin_4 = (_tile(1, n) for n in (1, 2, 3, 4))


def _sweep(vectors: int):
    """Split rows into tiles of the full height, the last ones one row lower if that fits better: 49 = 4 * 6 + 5 * 5."""
    size = TILES[vectors]
    tile = _tile(size, vectors)
    lower = _tile(size - 1, vectors) if vectors > 2 else tile
    step = size - 1 if vectors > 2 else size

    @shared
    def sweep(at, count, taps_at, taps, depth, panel, out, stride, shift, more, low, high, live):
        tiles = (count + size - 1) // size
        full = size * (tiles - min(tiles, tiles * size - count) if step < size else tiles)
        # Each tile prefetches its share of the next panel: memory delivers weights at half the rate of caches.
        whole = taps * depth * vectors * LANES * 4
        pace = vectors * LANES * 4 // tiles
        ahead = panel + whole
        i = 0
        while i < count:
            further = more + i * stride if more != 0 else 0
            here, to = i64p(address(at) + 8 * i), out + i * stride
            if i < full:
                tile(
                    here, taps_at, taps, depth, panel, ahead, pace, to, stride, shift, further, low, high, count - i,
                    live,
                )  # fmt: skip
                i += size
            else:
                lower(
                    here, taps_at, taps, depth, panel, ahead, pace, to, stride, shift, further, low, high, count - i,
                    live,
                )  # fmt: skip
                i += step
            ahead += whole // tiles

    return sweep


_sweep_1, _sweep_2, _sweep_3, _sweep_4 = (_sweep(n) for n in (1, 2, 3, 4))


@device
def locate(at, count, m, a, per_image, per_row, image_step, row_step, column_step):
    """Addresses of `count` rows, starting at row m; the list is filled up to BLOCK with the last one."""
    image = m // per_image
    y = (m - image * per_image) // per_row
    x = m - image * per_image - y * per_row
    lines = per_image // per_row
    i = 0
    while i < count:
        run = min(count - i, per_row - x)
        start = a + image * image_step + y * row_step + x * column_step
        here = i64p(address(at) + 8 * i)
        for k in range(run):
            here[k] = start + k * column_step
        i += run
        x = 0
        y += 1
        if y == lines:
            y = 0
            image += 1
    last = at[count - 1]
    for k in range(count, BLOCK):
        at[k] = last


TALL_1, TALL_2, TALL_3, TALL_4 = (TILES[n] for n in (1, 2, 3, 4))


@device
def _share(rows, tile):
    """Rows of the next block: `rows` are split into equal blocks of whole tiles that fit HELD."""
    tiles = (rows + tile - 1) // tile
    most = 56 // tile
    blocks = (tiles + most - 1) // most
    return (tiles + blocks - 1) // blocks * tile


@kernel(F32Gemm)
def f32_gemm(step, bases, worker, workers):
    """C = clamp(A W + bias + R), then an activation."""
    a, w, taps_at = ptr(step, bases, GEMM.a), ptr(step, bases, GEMM.w), i64p(ptr(step, bases, GEMM.taps_at))
    bias, residual, c = ptr(step, bases, GEMM.bias), ptr(step, bases, GEMM.residual), ptr(step, bases, GEMM.c)
    rows, columns, taps, depth = (
        num(step, GEMM.rows),
        num(step, GEMM.columns),
        num(step, GEMM.taps),
        num(step, GEMM.depth),
    )
    full, stride = num(step, GEMM.vectors), 4 * num(step, GEMM.c_row)
    per_image, per_row = num(step, GEMM.per_image), num(step, GEMM.per_line)
    image_step, row_step, column_step = num(step, GEMM.image_step), num(step, GEMM.line_step), num(step, GEMM.row_step)
    groups, group_a, group_w = num(step, GEMM.groups), num(step, GEMM.group_a), num(step, GEMM.group_w)
    batches, batch_a, batch_w, batch_c = (
        num(step, GEMM.batches),
        num(step, GEMM.batch_a),
        num(step, GEMM.batch_w),
        num(step, GEMM.batch_c),
    )
    low, high, activation = real(step, GEMM.low), real(step, GEMM.high), num(step, GEMM.activation)
    alpha, beta = real(step, GEMM.alpha), real(step, GEMM.beta)
    at = stack_words(HELD)
    width = full * LANES
    reduce = taps * depth
    panels = (columns + width - 1) // width
    tile = TALL_1 if full == 1 else (TALL_2 if full == 2 else (TALL_3 if full == 3 else TALL_4))
    # With few rows, workers share the columns; otherwise the rows.
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
        left = min(hi_m - m, rows - inside)
        count = min(left, _share(left, tile))
        locate(at, count, inside, a + batch * batch_a, per_image, per_row, image_step, row_step, column_step)
        for k in range(count, HELD):
            at[k] = at[count - 1]
        for p in range(lo_p, hi_p):
            group = p // panels
            column = (p - group * panels) * width
            live = min(width, columns - column)
            vectors = (live + LANES - 1) // LANES if WIDEST > 1 else 1
            panel = w + batch * batch_w + group * group_w + column * reduce * 4
            place = 4 * (group * columns + column)
            out = c + batch * batch_c + inside * stride + place
            more = residual + batch * batch_c + inside * stride + place if residual != 0 else 0
            shift = bias + place
            shift_a = group * group_a
            if shift_a != 0:
                for i in range(HELD):
                    at[i] += shift_a
            if count == 1:
                if vectors == 4:
                    _thin_4(at, taps_at, taps, depth, panel, 0, 0, out, stride, shift, more, low, high, 1, live)
                elif vectors == 3:
                    _thin_3(at, taps_at, taps, depth, panel, 0, 0, out, stride, shift, more, low, high, 1, live)
                elif vectors == 2:
                    _thin_2(at, taps_at, taps, depth, panel, 0, 0, out, stride, shift, more, low, high, 1, live)
                else:
                    _thin_1(at, taps_at, taps, depth, panel, 0, 0, out, stride, shift, more, low, high, 1, live)
            elif vectors == 4:
                _sweep_4(at, count, taps_at, taps, depth, panel, out, stride, shift, more, low, high, live)
            elif vectors == 3:
                _sweep_3(at, count, taps_at, taps, depth, panel, out, stride, shift, more, low, high, live)
            elif vectors == 2:
                _sweep_2(at, count, taps_at, taps, depth, panel, out, stride, shift, more, low, high, live)
            else:
                _sweep_1(at, count, taps_at, taps, depth, panel, out, stride, shift, more, low, high, live)
            if shift_a != 0:
                for i in range(HELD):
                    at[i] -= shift_a
        # Not in the loop above, where its constants would use up registers that the tile needs.
        if activation > 2:
            start = lo_p // panels * columns + lo_p % panels * width
            end = min(groups * columns, hi_p // panels * columns + hi_p % panels * width)
            for i in range(count):
                activate(
                    activation, alpha, beta, f32p(c + batch * batch_c + (inside + i) * stride + 4 * start), end - start
                )
        m += count


@kernel(F32Pack)
def f32_pack(step, bases, worker, workers):
    """B -> panels, for products of two computed matrices."""
    b, packed = ptr(step, bases, PACK.b), ptr(step, bases, PACK.packed)
    depth, columns, full = num(step, PACK.depth), num(step, PACK.columns), num(step, PACK.vectors)
    row_step, column_step, batches = num(step, PACK.row_step), num(step, PACK.column_step), num(step, PACK.batches)
    batch_b, batch_packed, factor = num(step, PACK.batch_b), num(step, PACK.batch_packed), real(step, PACK.factor)
    width = full * LANES
    panels = (columns + width - 1) // width
    for job in range(batches * panels * worker // workers, batches * panels * (worker + 1) // workers):
        batch = job // panels
        column = (job - batch * panels) * width
        live = min(width, columns - column)
        padded = (live + LANES - 1) // LANES * LANES
        source = b + batch * batch_b + column * column_step
        target = packed + batch * batch_packed + column * depth * 4
        for k in range(depth):
            row = f32p(target + 4 * k * padded)
            if column_step == 4:
                for j in range(0, padded, LANES):
                    value = vload_n(f32p(source + k * row_step + 4 * j), live - j)
                    vstore_n(f32p(address(row) + 4 * j), value * splat(factor), LANES)
            else:
                for j in range(live):
                    row[j] = f32p(source + k * row_step + j * column_step)[0] * factor
                for j in range(live, padded):
                    row[j] = float32(0)


@kernel(F32Pad)
def f32_pad(step, bases, worker, workers):
    """A channels-last image with a border of zeros."""
    x, y = ptr(step, bases, PAD.x), ptr(step, bases, PAD.y)
    images, height, width, depth = (
        num(step, PAD.images),
        num(step, PAD.height),
        num(step, PAD.width),
        num(step, PAD.depth),
    )
    top, left, high, wide = num(step, PAD.top), num(step, PAD.left), num(step, PAD.high), num(step, PAD.wide)
    line = wide * depth
    before = min(left, wide) * depth
    inside = max(0, min(width, wide - left)) * depth
    for row in range(images * high * worker // workers, images * high * (worker + 1) // workers):
        image = row // high
        source_row = row - image * high - top
        target = f32p(y + 4 * row * line)
        if source_row < 0 or source_row >= height:
            for i in range(line):
                target[i] = float32(0)
        else:
            source = f32p(x + 4 * (image * height + source_row) * width * depth)
            for i in range(before):
                target[i] = float32(0)
            body = f32p(address(target) + 4 * before)
            for i in range(inside):
                body[i] = source[i]
            tail = f32p(address(body) + 4 * inside)
            for i in range(line - before - inside):
                tail[i] = float32(0)


@kernel(F32Transpose)
def f32_transpose(step, bases, worker, workers):
    """Swap the last two axes of a left operand."""
    a, out = ptr(step, bases, TURN.a), ptr(step, bases, TURN.out)
    batches, rows, columns = num(step, TURN.batches), num(step, TURN.rows), num(step, TURN.columns)
    for line in range(batches * columns * worker // workers, batches * columns * (worker + 1) // workers):
        batch = line // columns
        source = f32p(a + 4 * (batch * rows * columns + line - batch * columns))
        target = f32p(out + 4 * line * rows)
        for i in range(rows):
            target[i] = source[i * columns]
