"""Strided copies of raw elements, to which every movement operator is reduced.

A copy runs over a frame of at most ten dimensions, each with a byte stride for the source and one for the target (0
repeats, negative goes backwards). The last two are the *segment* that a kernel handles in registers; those before them
are counted like an odometer. Elements are 1, 2, 4 or 8 bytes at any alignment. `steps/copy.py` declares the steps.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types, uint8
from numba.extending import intrinsic

from lite_runtime.kernels._elements import SIZES, copy_run, fill_run, get, place, put
from lite_runtime.native.simd import LANES, declare, device, first, kernel, num, ptr, stack_words, tail
from lite_runtime.steps.copy import Segments, Swap, Trilu, Weave
from lite_runtime.steps.declaration import named

TRILU = named(Trilu)
SEGMENTS = named(Segments)
SWAP = named(Swap)
WEAVE = named(Weave)

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
TILE = {1: 16, 2: 8, 4: LANES, 8: LANES // 2}
"""Side of the square tile that `swap` transposes in registers, by element size."""
_MASKED = {size: LANES == 16 or (LANES == 8 and size >= 4) for size in SIZES}
"""Whether the target loads and stores part of a vector of elements of this size in one instruction."""


# -- the odometer -----------------------------------------------------------------------------------------------------

SOURCE, TARGET = 10, 11
"""Index of the odometer's two byte offsets, which follow up to ten counters."""


@device
def seek(dims, k, index, state):
    """Set the odometer to outer index `index`."""
    source = 0
    target = 0
    for j in range(k):
        i = k - 1 - j
        extent = dims[3 * i]
        rest = index // extent
        count = index - rest * extent
        index = rest
        state[i] = count
        source += count * dims[3 * i + 1]
        target += count * dims[3 * i + 2]
    state[SOURCE] = source
    state[TARGET] = target


@device
def advance(dims, k, state):
    """Go to the next outer index; after the last one, to the first."""
    i = k - 1
    while i >= 0:
        state[SOURCE] += dims[3 * i + 1]
        state[TARGET] += dims[3 * i + 2]
        state[i] += 1
        if state[i] < dims[3 * i]:
            return
        state[SOURCE] -= dims[3 * i] * dims[3 * i + 1]
        state[TARGET] -= dims[3 * i] * dims[3 * i + 2]
        state[i] = 0
        i -= 1


@device
def outers(dims, k):
    """Number of outer indices."""
    n = 1
    for i in range(k):
        n *= dims[3 * i]
    return n


# -- runs and strided elements ----------------------------------------------------------------------------------------


def _copier(segment):
    """A kernel over the frame; workers share rows of a segment.

    A run longer than `run` is split: then the rows are its pieces and `whole` is its length; otherwise `whole` is 0.
    """

    @kernel(Segments)
    def copy(step, bases, worker, workers):
        source = ptr(step, bases, SEGMENTS.source) + num(step, SEGMENTS.source_start)
        target = ptr(step, bases, SEGMENTS.target) + num(step, SEGMENTS.target_start)
        k, rows, row_source, row_target = (
            num(step, SEGMENTS.outer),
            num(step, SEGMENTS.rows),
            num(step, SEGMENTS.row_source),
            num(step, SEGMENTS.row_target),
        )
        run, whole, run_source, run_target = (
            num(step, SEGMENTS.run),
            num(step, SEGMENTS.whole),
            num(step, SEGMENTS.run_source),
            num(step, SEGMENTS.run_target),
        )
        dims = tail(step, SEGMENTS.dims)
        units = outers(dims, k) * rows
        at = first(units, worker, workers, 1)
        end = first(units, worker + 1, workers, 1)
        state = stack_words(12)
        index = at // rows
        row = at - index * rows
        seek(dims, k, index, state)
        while at < end:
            n = min(rows - row, end - at)
            s = source + state[SOURCE] + row * row_source
            t = target + state[TARGET] + row * row_target
            if whole and row + n == rows:
                segment(t, s, n - 1, row_source, row_target, run, run_source, run_target)
                t += (n - 1) * row_target
                s += (n - 1) * row_source
                segment(t, s, 1, row_source, row_target, whole - (rows - 1) * run, run_source, run_target)
            else:
                segment(t, s, n, row_source, row_target, run, run_source, run_target)
            at += n
            row = 0
            advance(dims, k, state)

    return copy


@device
def _segment_of_runs(target, source, rows, row_source, row_target, run, run_source, run_target):
    for i in range(rows):
        copy_run(target + i * row_target, source + i * row_source, run)


def _segment_of_elements(size):
    read, write, fill = get[size], put[size], fill_run[size]

    @device
    def segment(target, source, rows, row_source, row_target, run, run_source, run_target):
        for i in range(rows):
            s = source + i * row_source
            t = target + i * row_target
            if run_source == 0:
                value = read(s)
                if run_target == size:
                    fill(t, value, run)
                else:
                    for j in range(run):
                        write(t + j * run_target, value)
            elif run_target == size:
                for j in range(run):
                    write(t + j * size, read(s + j * run_source))
            elif run_source == size:
                for j in range(run):
                    write(t + j * run_target, read(s + j * size))
            else:
                for j in range(run):
                    write(t + j * run_target, read(s + j * run_source))

    return segment


rows = _copier(_segment_of_runs)
"""Runs of `run` bytes, dense on both sides."""
strided_1, strided_2, strided_4, strided_8 = (_copier(_segment_of_elements(size)) for size in SIZES)
"""Runs of `run` elements, strided on both sides."""


# -- transposes -------------------------------------------------------------------------------------------------------


def _riffle(builder, rows):
    """The transpose of N vectors of N lanes: log2 N rounds that interleave vector i with vector i + N/2."""
    n = len(rows)
    low = [lane // 2 + n * (lane % 2) for lane in range(n)]
    masks = [ir.Constant(ir.VectorType(_I32, n), [lane + half for lane in low]) for half in (0, n // 2)]
    for _ in range(n.bit_length() - 1):
        rows = [builder.shuffle_vector(rows[i], rows[i + n // 2], mask) for i in range(n // 2) for mask in masks]
    return rows


def _tile(size):
    """Transpose a full tile: `target` row j, lane i = `source` row i, lane j."""
    n = TILE[size]
    kind = ir.VectorType(ir.IntType(8 * size), n)

    @intrinsic
    def tile(typing, target, target_stride, source, source_stride):
        def lower(context, builder, sig, args):
            target, target_stride, source, source_stride = args
            vectors = []
            for _ in range(n):
                vectors.append(builder.load(place(builder, source, kind), align=1, typ=kind))
                source = builder.add(source, source_stride)
            for vector in _riffle(builder, vectors):
                builder.store(vector, place(builder, target, kind), align=1)
                target = builder.add(target, target_stride)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), lower

    return tile


def _part_of_tile(size):
    """Transpose the upper left `rows` x `columns` part of a tile; nothing else is read or written."""
    n = TILE[size]
    element = ir.IntType(8 * size)
    kind, mask_kind = ir.VectorType(element, n), ir.VectorType(_I1, n)
    suffix = f"v{n}i{8 * size}.p0"

    def lanes_below(builder, count):
        lanes = ir.VectorType(_I64, n)
        undefined = ir.Constant(lanes, ir.Undefined)
        one = builder.insert_element(undefined, count, _I32(0))
        many = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, n), [0] * n))
        return builder.icmp_signed("<", ir.Constant(lanes, list(range(n))), many)

    @intrinsic
    def tile(typing, target, target_stride, source, source_stride, rows, columns):
        def lower(context, builder, sig, args):
            target, target_stride, source, source_stride, rows, columns = args
            pointer = kind.as_pointer()
            load = declare(builder, f"llvm.masked.load.{suffix}", kind, pointer, _I32, mask_kind, kind)
            store = declare(builder, f"llvm.masked.store.{suffix}", ir.VoidType(), kind, pointer, _I32, mask_kind)
            nothing = ir.Constant(kind, [0] * n)
            zero = _I64(0)
            in_columns, in_rows = lanes_below(builder, columns), lanes_below(builder, rows)
            vectors = []
            for i in range(n):
                vectors.append(builder.call(load, [place(builder, source, kind), _I32(1), in_columns, nothing]))
                more = builder.icmp_signed("<", _I64(i + 1), rows)
                source = builder.add(source, builder.select(more, source_stride, zero))
            none = ir.Constant(mask_kind, [0] * n)
            mask = in_rows
            for j, vector in enumerate(_riffle(builder, vectors)):
                builder.call(store, [vector, place(builder, target, kind), _I32(1), mask])
                more = builder.icmp_signed("<", _I64(j + 1), columns)
                target = builder.add(target, builder.select(more, target_stride, zero))
                mask = builder.select(more, in_rows, none)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), lower

    return tile


def _edge_of_tile(size):
    if _MASKED[size]:
        return _part_of_tile(size)
    read, write = get[size], put[size]

    @device
    def tile(target, target_stride, source, source_stride, rows, columns):
        for i in range(rows):
            for j in range(columns):
                write(target + j * target_stride + i * size, read(source + i * source_stride + j * size))

    return tile


def _swapper(size):
    """Swap two dimensions: `a` is dense in the target, `b` in the source; workers share blocks of both."""
    side = TILE[size]
    whole, part = _tile(size), _edge_of_tile(size)

    @kernel(Swap)
    def swap(step, bases, worker, workers):
        source = ptr(step, bases, SWAP.source) + num(step, SWAP.source_start)
        target = ptr(step, bases, SWAP.target) + num(step, SWAP.target_start)
        k, extent_a, extent_b = num(step, SWAP.outer), num(step, SWAP.extent_a), num(step, SWAP.extent_b)
        stride_a, stride_b = num(step, SWAP.stride_a), num(step, SWAP.stride_b)
        block_a, block_b = num(step, SWAP.block_a), num(step, SWAP.block_b)
        dims = tail(step, SWAP.dims)
        blocks_a = (extent_a + block_a - 1) // block_a
        blocks_b = (extent_b + block_b - 1) // block_b
        rows = blocks_a * blocks_b
        units = outers(dims, k) * rows
        at = first(units, worker, workers, 1)
        end = first(units, worker + 1, workers, 1)
        state = stack_words(12)
        index = at // rows
        row = at - index * rows
        seek(dims, k, index, state)
        while at < end:
            in_b = row // blocks_a
            a_first = (row - in_b * blocks_a) * block_a
            b_first = in_b * block_b
            a_end = min(extent_a, a_first + block_a)
            b_end = min(extent_b, b_first + block_b)
            s = source + state[SOURCE]
            t = target + state[TARGET]
            # Tiles at the end of a block overlap those before them where the block is as wide as a tile.
            b = b_first
            while b < b_end:
                b = max(b_first, min(b, b_end - side))
                columns = min(side, b_end - b)
                a = a_first
                while a < a_end:
                    a = max(a_first, min(a, a_end - side))
                    lines = min(side, a_end - a)
                    tile_source = s + a * stride_a + b * size
                    tile_target = t + b * stride_b + a * size
                    if lines == side and columns == side:
                        whole(tile_target, stride_b, tile_source, stride_a)
                    else:
                        part(tile_target, stride_b, tile_source, stride_a, lines, columns)
                    a += side
                b += side
            at += 1
            row += 1
            if row == rows:
                row = 0
                advance(dims, k, state)

    return swap


swap_1, swap_2, swap_4, swap_8 = (_swapper(size) for size in SIZES)
"""Transposes, in registers."""


# -- few planes -------------------------------------------------------------------------------------------------------


def _pick(builder, vectors, wanted):
    """A vector of elements from `vectors`: `wanted[lane]` = (vector, lane in that vector)."""
    n = len(wanted)
    picked = vectors[0]
    for i in range(1, len(vectors)):
        # Elements taken from earlier vectors stay in place; vector 0's lanes are moved in the first round.
        mask = [n + at if v == i else (at if i == 1 and v == 0 else lane) for lane, (v, at) in enumerate(wanted)]
        picked = builder.shuffle_vector(picked, vectors[i], ir.Constant(ir.VectorType(_I32, n), mask))
    return picked


def _weave_tile(size, planes, join):
    """Interleave `planes` vectors, `stride` bytes apart, element by element into one contiguous piece, or split such a
    piece."""
    n = TILE[size]
    kind = ir.VectorType(ir.IntType(8 * size), n)
    together = [divmod(i, planes) for i in range(n * planes)]  # element i of the piece: (lane, plane)

    @intrinsic
    def tile(typing, target, source, stride):
        def lower(context, builder, sig, args):
            target, source, stride = args
            dense = _I64(n * size)
            vectors = []
            for _ in range(planes):
                vectors.append(builder.load(place(builder, source, kind), align=1, typ=kind))
                source = builder.add(source, stride if join else dense)
            for i in range(planes):
                if join:
                    wanted = [(plane, lane) for lane, plane in together[i * n : (i + 1) * n]]
                else:
                    wanted = [divmod(lane * planes + i, n) for lane in range(n)]
                builder.store(_pick(builder, vectors, wanted), place(builder, target, kind), align=1)
                target = builder.add(target, dense if join else stride)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), lower

    return tile


def _weaver(size):
    side = TILE[size]
    join_2, join_3, join_4 = (_weave_tile(size, planes, True) for planes in (2, 3, 4))
    part_2, part_3, part_4 = (_weave_tile(size, planes, False) for planes in (2, 3, 4))
    read, write = get[size], put[size]

    @kernel(Weave)
    def weave(step, bases, worker, workers):
        source = ptr(step, bases, WEAVE.source) + num(step, WEAVE.source_start)
        target = ptr(step, bases, WEAVE.target) + num(step, WEAVE.target_start)
        k, planes, join, extent = (
            num(step, WEAVE.outer),
            num(step, WEAVE.planes),
            num(step, WEAVE.join),
            num(step, WEAVE.extent),
        )
        stride, block = num(step, WEAVE.stride), num(step, WEAVE.block)
        dims = tail(step, WEAVE.dims)
        source_step, target_step = (size, planes * size) if join else (planes * size, size)
        source_plane, target_plane = (stride, size) if join else (size, stride)
        blocks = (extent + block - 1) // block
        units = outers(dims, k) * blocks
        at = first(units, worker, workers, 1)
        end = first(units, worker + 1, workers, 1)
        state = stack_words(12)
        index = at // blocks
        part = at - index * blocks
        seek(dims, k, index, state)
        while at < end:
            begin = part * block
            n = min(block, extent - begin)
            s = source + state[SOURCE] + begin * source_step
            t = target + state[TARGET] + begin * target_step
            i = 0
            while n >= side and i < n:
                i = min(i, n - side)  # the last tile overlaps the one before it
                if planes == 2 and join:
                    join_2(t + i * target_step, s + i * source_step, stride)
                elif planes == 3 and join:
                    join_3(t + i * target_step, s + i * source_step, stride)
                elif join:
                    join_4(t + i * target_step, s + i * source_step, stride)
                elif planes == 2:
                    part_2(t + i * target_step, s + i * source_step, stride)
                elif planes == 3:
                    part_3(t + i * target_step, s + i * source_step, stride)
                else:
                    part_4(t + i * target_step, s + i * source_step, stride)
                i += side
            while i < n:
                for j in range(planes):
                    write(t + i * target_step + j * target_plane, read(s + i * source_step + j * source_plane))
                i += 1
            at += 1
            part += 1
            if part == blocks:
                part = 0
                advance(dims, k, state)

    return weave


weave_1, weave_2, weave_4, weave_8 = (_weaver(size) for size in SIZES)
"""Transposes with 2 to 4 planes, dense on the side where they are interleaved."""


# -- triangles --------------------------------------------------------------------------------------------------------


_fill_bytes = fill_run[1]


@kernel(Trilu)
def trilu(step, bases, worker, workers):
    """Keep one triangle of each matrix."""
    source, target = ptr(step, bases, TRILU.source), ptr(step, bases, TRILU.target)
    size, lines, height, width = (
        num(step, TRILU.size),
        num(step, TRILU.lines),
        num(step, TRILU.height),
        num(step, TRILU.width),
    )
    k, upper = num(step, TRILU.k), num(step, TRILU.upper)
    for line in range(first(lines, worker, workers, 1), first(lines, worker + 1, workers, 1)):
        edge = line % height + k
        if upper == 0:
            edge += 1
        edge = max(0, min(width, edge)) * size
        s = source + line * width * size
        t = target + line * width * size
        if upper:
            _fill_bytes(t, uint8(0), edge)
            copy_run(t + edge, s + edge, width * size - edge)
        else:
            copy_run(t, s, edge)
            _fill_bytes(t + edge, uint8(0), width * size - edge)
