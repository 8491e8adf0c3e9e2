"""Peak performance of this processor: entry points that only multiply in registers, or only read memory.

They give upper bounds for kernels (`edge/measuring/roofline.py`) and are not used by any program.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._dot import FLOATS, INTS, emit_input_dot, emit_pair_dot, load_floats, load_ints
from lite_runtime.native.simd import FMA, LANES, declare, entry

CHAINS = 12
"""Independent sums: a latency of four cycles at two instructions per cycle needs eight of them, the six cycles of a
product of pairs and a sum need twelve, and twelve fit in 16 registers together with both factors."""
LINES = 8
"""Vectors read per round."""
_I64 = ir.IntType(64)
_VECTOR = 4 * LANES


def _chains(kind, load, step):
    @intrinsic
    def run(typing, rounds, at):
        """Do every chain's step `rounds` times; both factors are read from address `at`, and the sums are stored
        there."""

        def lower(context, builder, sig, args):
            rounds, at = args
            factors = [load(builder, builder.add(at, _I64(_VECTOR * i))) for i in range(2)]
            sums = [cgutils.alloca_once(builder, kind) for _ in range(CHAINS)]
            for i, one in enumerate(sums):
                builder.store(load(builder, builder.add(at, _I64(_VECTOR * i))), one)
            with cgutils.for_range(builder, rounds, intp=_I64):
                for one in sums:
                    builder.store(step(builder, builder.load(one), *factors), one)
            for i, one in enumerate(sums):
                _store(builder, builder.load(one), builder.add(at, _I64(_VECTOR * i)))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), lower

    return run


def _store(builder, value, where):
    builder.store(value, builder.inttoptr(where, value.type.as_pointer()), align=4)


def _multiply_add(builder, so_far, a, b):
    return builder.call(declare(builder, f"llvm.{FMA}.v{LANES}f32", *[FLOATS] * 4), [so_far, a, b])


def _pair_dot(builder, so_far, _, w):
    """One factor is the sum: the product of two constants would be computed only once."""
    return emit_pair_dot(builder, so_far, so_far, w)


@intrinsic
def _read_lines(typing, at, rounds, times, to):
    """Add up `rounds` * LINES vectors from address `at` on, `times` times, and store the sum at `to`."""

    def lower(context, builder, sig, args):
        at, rounds, times, to = args
        sums = [cgutils.alloca_once(builder, INTS) for _ in range(LINES)]
        for one in sums:
            builder.store(ir.Constant(INTS, [0] * LANES), one)
        with cgutils.for_range(builder, times, intp=_I64), cgutils.for_range(builder, rounds, intp=_I64) as loop:
            here = builder.add(at, builder.mul(loop.index, _I64(LINES * _VECTOR)))
            for i, one in enumerate(sums):
                line = load_ints(builder, builder.add(here, _I64(_VECTOR * i)))
                builder.store(builder.add(builder.load(one), line), one)
        for i, one in enumerate(sums):
            _store(builder, builder.load(one), builder.add(to, _I64(_VECTOR * i)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), lower


_run_f32 = _chains(FLOATS, load_floats, _multiply_add)
_run_int8 = _chains(INTS, load_ints, emit_input_dot)
_run_int16 = _chains(INTS, load_ints, _pair_dot)


@entry(types.void(types.int64, types.int64))
def f32(rounds, at):
    """CHAINS * LANES multiply-adds of float32 per round; `at`: CHAINS vectors."""
    _run_f32(rounds, at)


@entry(types.void(types.int64, types.int64))
def int8(rounds, at):
    """CHAINS * LANES sums of four products of bytes per round, for targets with an instruction for them; `at`: CHAINS
    vectors."""
    _run_int8(rounds, at)


@entry(types.void(types.int64, types.int64))
def int16(rounds, at):
    """CHAINS * LANES sums of two products of int16 per round; `at`: CHAINS vectors."""
    _run_int16(rounds, at)


@entry(types.void(types.int64, types.int64, types.int64, types.int64))
def read(at, rounds, times, to):
    """Read LINES vectors per round from `at` on, and repeat all rounds `times` times; `to`: LINES vectors."""
    _read_lines(at, rounds, times, to)
