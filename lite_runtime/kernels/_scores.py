"""Scores of attention by integers: queries and keys of 8 bits, in blocks of a head, whose products are exact.

A row of queries is its features as int8, filled up with zeros to words of four, then its scale, float32, and -128 times
its sum, int32. Keys lie in panels of up to four vectors of positions, [words][vectors][LANES]; a word has four features
of a position. They are unsigned there, 128 more than they are, which the sum takes off again.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._bytes import emit_load_bytes
from lite_runtime.kernels._dot import BYTES, FLOATS, INTS, at, load_floats, load_ints
from lite_runtime.kernels.gemm import TILES
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import LANES, device, emit_splat

__all__ = ["BEHIND", "scores_of", "words_of"]

BEHIND = 8
"""Bytes behind a row's words: its scale and its sum."""
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


def _tile(rows: int, vectors: int):
    @intrinsic
    def tile(typing, left, step, words, panel, scales, out, line, live):
        """`live` rows of scores; rows beyond repeat the last one. left, step: the first row, and bytes between rows.
        scales: of the panel's positions, float32. line: bytes between rows of `out`."""
        sig = types.void(*[types.int64] * 8)

        def lower(context, builder, sig, args):
            left, step, words, panel, scales, out, line, live = args
            last = builder.sub(live, _I64(1))
            behind = builder.mul(words, _I64(4))
            bases = []
            for i in range(rows):
                row = builder.select(builder.icmp_signed("<", _I64(i), last), _I64(i), last)
                bases.append(builder.add(left, builder.mul(step, row)))
            sums = []
            for base in bases:
                where = at(builder, builder.add(builder.add(base, behind), _I64(4)), _I32)
                begin = emit_splat(builder, builder.load(where, align=4, typ=_I32), INTS)
                sums.append([cgutils.alloca_once_value(builder, begin) for _ in range(vectors)])
                for one in sums[-1]:
                    builder.store(begin, one)
            with cgutils.for_range(builder, words, intp=_I64) as loop:
                here = builder.add(panel, builder.mul(loop.index, _I64(4 * LANES * vectors)))
                keys = [load_ints(builder, builder.add(here, _I64(4 * LANES * j))) for j in range(vectors)]
                offset = builder.mul(loop.index, _I64(4))
                for base, row in zip(bases, sums, strict=True):
                    word = builder.load(at(builder, builder.add(base, offset), _I32), align=4, typ=_I32)
                    query = builder.bitcast(emit_splat(builder, word, INTS), BYTES)
                    for key, one in zip(keys, row, strict=True):
                        more = call(builder, "dot", LANES, builder.load(one), builder.bitcast(key, BYTES), query)
                        builder.store(more, one)
            factors = [load_floats(builder, builder.add(scales, _I64(4 * LANES * j))) for j in range(vectors)]
            for i, (base, row) in enumerate(zip(bases, sums, strict=True)):
                with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                    scale = builder.load(at(builder, builder.add(base, behind), _F32), align=4, typ=_F32)
                    for j, (one, factor) in enumerate(zip(row, factors, strict=True)):
                        value = builder.fmul(builder.sitofp(builder.load(one), FLOATS), emit_splat(builder, scale))
                        place = builder.add(builder.add(out, builder.mul(line, _I64(i))), _I64(4 * LANES * j))
                        builder.store(builder.fmul(value, factor), at(builder, place, FLOATS), align=4)
            return context.get_dummy_value()

        return sig, lower

    return tile


def _sweeper(vectors: int):
    one, many, size = _tile(1, vectors), _tile(TILES[vectors], vectors), TILES[vectors]

    @device
    def sweep(left, step, rows, words, panel, scales, out, line):
        if rows == 1:
            one(left, step, words, panel, scales, out, line, 1)
        else:
            for i in range(0, rows, size):
                many(left + i * step, step, words, panel, scales, out + i * line, line, rows - i)

    return sweep


_sweep_1, _sweep_2, _sweep_3, _sweep_4 = map(_sweeper, (1, 2, 3, 4))


@device
def scores_of(left, step, rows, words, panel, scales, out, line, columns):
    """Rows of scores of one panel, whole vectors: what is beyond `columns` has no meaning."""
    vectors = (columns + LANES - 1) // LANES
    if vectors == 4:
        _sweep_4(left, step, rows, words, panel, scales, out, line)
    elif vectors == 3:
        _sweep_3(left, step, rows, words, panel, scales, out, line)
    elif vectors == 2:
        _sweep_2(left, step, rows, words, panel, scales, out, line)
    else:
        _sweep_1(left, step, rows, words, panel, scales, out, line)


@intrinsic
def words_of(typing, a, b, c, d, to):
    """Store LANES words: a byte of each of four addresses in each of them, made unsigned."""

    def lower(context, builder, sig, args):
        word = ir.Constant(INTS, [0x80808080 - (1 << 32)] * LANES)
        for i, where in enumerate(args[:4]):
            wide = builder.zext(emit_load_bytes(builder, where), INTS)
            word = builder.xor(word, builder.shl(wide, ir.Constant(INTS, [8 * i] * LANES)))
        builder.store(word, at(builder, args[4], INTS), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), lower
