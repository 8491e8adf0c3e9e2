"""Gradients through products with weights of 4 or 8 bits in blocks: C = A W for W of `blocked`'s panels.

The sums run over the outputs of W, across its blocks. A strip of inputs (columns of C) is read from the panels, turned
and multiplied by all rows: with float32 as it is, by `gemm`'s tiles; with activations of 8 bits after rounding it once
more, to 8 bits in blocks of 32 outputs, by `blocked`'s tiles. A strip costs the same for one row as for a hundred:
these are kernels for training.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._dot import FLOATS, INTS, at
from lite_runtime.kernels.blocked import PANELS, UNIT, VECTORS, entries, sweeper
from lite_runtime.kernels.gemm import BLOCK, TILES, _sweep_2, _sweep_4
from lite_runtime.native.simd import (
    LANES,
    address,
    device,
    emit_splat,
    f32p,
    kernel,
    num,
    ptr,
    real,
    splat,
    stack_floats,
    stack_words,
    vabs,
    vec,
    vfma,
    vload,
    vmax,
    vrint,
    vstore,
)
from lite_runtime.operators.language import PANEL
from lite_runtime.steps.blockgrad import ByteBlockGrad, FloatBlockGrad
from lite_runtime.steps.declaration import named

BYTE = named(ByteBlockGrad)
WIDE = named(FloatBlockGrad)

STRIP = PANELS * PANEL
"""Inputs of W that are turned and multiplied at a time, with activations of 8 bits."""
DEEP = 512
"""Outputs of a strip that are turned at a time."""
NARROW = 2 if LANES == 16 else 4
"""The same with float32: vectors of a strip, and its outputs."""
FLAT = 128
_sweep = _sweep_2 if NARROW == 2 else _sweep_4
_HELD = BLOCK + max(TILES.values())
_PANELS, _TABLES, _FLOATS, _BUFFER = DEEP * STRIP // 4, DEEP // UNIT * STRIP, UNIT * LANES, FLAT * NARROW * LANES
_BIAS = NARROW * LANES

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ZERO, _LEAST, _MOST = np.float32(0), np.float32(-np.inf), np.float32(np.inf)
_TINY, _LARGEST = np.float32(1e-30), np.float32(127)


def _spreader(bits: int):
    """spread(where, more): LANES neighbours in depth of one output as float32, from the word at `where` on, `more` bits
    further. The words of a panel that follow one another in depth are PANEL words apart."""
    run = 32 // bits

    @intrinsic
    def spread(typing, where, more):
        def lower(context, builder, sig, args):
            word = builder.load(at(builder, args[0], _I32), align=4, typ=_I32)
            words = emit_splat(builder, word, INTS)
            for i in range(1, LANES // run):
                there = builder.add(args[0], _I64(4 * PANEL * i))
                word = builder.load(at(builder, there, _I32), align=4, typ=_I32)
                lanes = [lane if lane < i * run else lane + LANES for lane in range(LANES)]
                mask = ir.Constant(ir.VectorType(_I32, LANES), lanes)
                words = builder.shuffle_vector(words, emit_splat(builder, word, INTS), mask)
            within = [lane % run for lane in range(LANES)]
            by = ir.Constant(INTS, [8 * (i & 3) + (4 if i > 3 else 0) for i in within])
            if run > LANES:
                by = builder.add(by, emit_splat(builder, builder.trunc(args[1], _I32), INTS))
            part = builder.and_(builder.lshr(words, by), ir.Constant(INTS, [2**bits - 1] * LANES))
            return builder.uitofp(part, FLOATS)

        return vec(types.int64, types.int64), lower

    return spread


@device
def _scales(scales, offsets, panel, blocks, number, wide, zero, factors, terms):
    """Scales and offsets of a panel's outputs in block `number`: PANEL floats each."""
    place = (panel * blocks + number) * PANEL
    for j in range(VECTORS):
        scale = entries(scales, place + LANES * j, wide)
        shift = scale * splat(-zero)
        if offsets != 0:
            shift = shift + entries(offsets, place + LANES * j, wide)
        vstore(f32p(factors + 4 * LANES * j), scale)
        vstore(f32p(terms + 4 * LANES * j), shift)


def _turner(bits: int):
    """turn(…): one vector of inputs and one panel of outputs as float32, the inputs next to one another."""
    run, spread = 32 // bits, _spreader(bits)

    @device
    def turn(w, scales, offsets, panel, count, depth, block, wide, zero, k, factors, terms, to, pitch):
        _scales(scales, offsets, panel, depth // block, k // block, wide, zero, factors, terms)
        group = k // run
        more = 4 if k - group * run > 3 else 0
        where = w + panel * (PANEL * depth * bits // 8) + 4 * PANEL * group
        for j in range(count):
            value = spread(where + 4 * j, more)
            wide_value = vfma(value, splat(f32p(factors)[j]), splat(f32p(terms)[j]))
            vstore(f32p(to + pitch * j), wide_value)

    return turn


# -- activations of 8 bits --------------------------------------------------------------------------------------------


@intrinsic
def _store_words(typing, a, b, c, d, where):
    """Whole numbers of -127 to 127, plus 128, as the bytes of LANES words."""
    sig = types.void(vec, vec, vec, vec, types.int64)

    def lower(context, builder, sig, args):
        low, total = ir.Constant(INTS, [255] * LANES), None
        for i, value in enumerate(args[:4]):
            byte = builder.and_(builder.fptosi(value, INTS), low)
            byte = builder.shl(byte, ir.Constant(INTS, [8 * i] * LANES))
            total = byte if total is None else builder.or_(total, byte)
        flipped = builder.xor(total, ir.Constant(INTS, [-0x7F7F7F80] * LANES))
        builder.store(flipped, at(builder, args[4], INTS), align=4)
        return context.get_dummy_value()

    return sig, lower


def _byte_driver(bits: int):
    turn, sweep = _turner(bits), sweeper(8)

    @device
    def drive(step, bases, worker, workers):
        a, a_scales, a_sums = ptr(step, bases, BYTE.a), ptr(step, bases, BYTE.a_scales), ptr(step, bases, BYTE.a_sums)
        w, scales, offsets = ptr(step, bases, BYTE.w), ptr(step, bases, BYTE.scales), ptr(step, bases, BYTE.offsets)
        residual, c = ptr(step, bases, BYTE.residual), ptr(step, bases, BYTE.c)
        rows, columns, depth = num(step, BYTE.rows), num(step, BYTE.columns), num(step, BYTE.depth)
        block, wide, zero = num(step, BYTE.block), num(step, BYTE.wide), real(step, BYTE.zero)
        panels, tables = address(stack_floats(_PANELS)), address(stack_floats(_TABLES))
        floats = address(stack_floats(_FLOATS))
        factors, terms = address(stack_floats(PANEL)), address(stack_floats(PANEL))
        strips, stride = (depth + STRIP - 1) // STRIP, 4 * depth
        for strip in range(strips * worker // workers, strips * (worker + 1) // workers):
            first = strip * STRIP
            live = min(STRIP, depth - first)
            for begin in range(0, columns, DEEP):
                count = min(DEEP, columns - begin)
                for unit in range(0, count, UNIT):
                    for k in range(0, live, LANES):
                        for half in range(0, UNIT, PANEL):
                            panel = (begin + unit + half) // PANEL
                            turn(
                                w, scales, offsets, panel, PANEL, depth, block, wide, zero, first + k, factors, terms,
                                floats + 4 * LANES * half, 4 * LANES,
                            )  # fmt: skip
                        most = splat(_ZERO)
                        for j in range(UNIT):
                            most = vmax(vabs(vload(f32p(floats + 4 * LANES * j))), most)
                        p = k // PANEL
                        table = tables + 4 * ((p * (count // UNIT) + unit // UNIT) * PANEL + k % PANEL)
                        vstore(f32p(table), most * splat(np.float32(1 / 127)))
                        inverse = splat(_LARGEST) / vmax(most, splat(_TINY))
                        words = panels + p * PANEL * count + 4 * (unit // 4 * PANEL + k % PANEL)
                        for j in range(0, UNIT, 4):
                            here = floats + 4 * LANES * j
                            _store_words(
                                vrint(vload(f32p(here)) * inverse),
                                vrint(vload(f32p(here + 4 * LANES)) * inverse),
                                vrint(vload(f32p(here + 8 * LANES)) * inverse),
                                vrint(vload(f32p(here + 12 * LANES)) * inverse),
                                words + PANEL * j,
                            )
                out = c + 4 * first
                more = out if begin > 0 else residual + 4 * first if residual != 0 else 0
                offset = begin // UNIT * 4
                sweep(
                    a + begin, a_scales + offset, a_sums + offset, rows, columns, count, panels, tables, 0, UNIT, 1,
                    np.float32(128), out, stride, 0, more, live, 0, 0,
                )  # fmt: skip

    return drive


_byte4, _byte8 = _byte_driver(4), _byte_driver(8)


@kernel(ByteBlockGrad)
def i4_gemm(step, bases, worker, workers):
    """C = A W + R; weights of 4 bits, activations of 8."""
    _byte4(step, bases, worker, workers)


@kernel(ByteBlockGrad)
def i8_gemm(step, bases, worker, workers):
    """Like i4_gemm, weights of 8 bits."""
    _byte8(step, bases, worker, workers)


# -- float32 ----------------------------------------------------------------------------------------------------------


def _float_driver(bits: int):
    turn = _turner(bits)

    @device
    def drive(step, bases, worker, workers):
        a, w, scales, offsets = (
            ptr(step, bases, WIDE.a),
            ptr(step, bases, WIDE.w),
            ptr(step, bases, WIDE.scales),
            ptr(step, bases, WIDE.offsets),
        )
        residual, c = ptr(step, bases, WIDE.residual), ptr(step, bases, WIDE.c)
        rows, columns, depth = num(step, WIDE.rows), num(step, WIDE.columns), num(step, WIDE.depth)
        block, wide, zero = num(step, WIDE.block), num(step, WIDE.wide), real(step, WIDE.zero)
        buffer = address(stack_floats(_BUFFER))
        factors, terms = address(stack_floats(PANEL)), address(stack_floats(PANEL))
        at, taps_at, no_bias = stack_words(_HELD), stack_words(1), address(stack_floats(_BIAS))
        taps_at[0] = 0
        for j in range(NARROW):
            vstore(f32p(no_bias + 4 * LANES * j), splat(_ZERO))
        width = NARROW * LANES
        strips = (depth + width - 1) // width
        for strip in range(strips * worker // workers, strips * (worker + 1) // workers):
            first = strip * width
            live = min(width, depth - first)
            for begin in range(0, columns, FLAT):
                count = min(FLAT, columns - begin)
                for n in range(0, count, PANEL):
                    for k in range(0, live, LANES):
                        turn(
                            w, scales, offsets, (begin + n) // PANEL, min(PANEL, count - n), depth, block, wide, zero,
                            first + k, factors, terms, buffer + 4 * (n * width + k), 4 * width,
                        )  # fmt: skip
                for m in range(0, rows, BLOCK):
                    here = min(BLOCK, rows - m)
                    for i in range(_HELD):
                        at[i] = a + 4 * ((m + min(i, here - 1)) * columns + begin)
                    out = c + 4 * (m * depth + first)
                    more = out if begin > 0 else residual + 4 * (m * depth + first) if residual != 0 else 0
                    _sweep(at, here, taps_at, 1, count, buffer, out, 4 * depth, no_bias, more, _LEAST, _MOST, live)

    return drive


_float4, _float8 = _float_driver(4), _float_driver(8)


@kernel(FloatBlockGrad)
def i4_float(step, bases, worker, workers):
    """C = A W + R; weights of 4 bits, activations of float32."""
    _float4(step, bases, worker, workers)


@kernel(FloatBlockGrad)
def i8_float(step, bases, worker, workers):
    """Like i4_float, weights of 8 bits."""
    _float8(step, bases, worker, workers)
