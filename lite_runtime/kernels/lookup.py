"""A function of one byte as a table of its 256 results; one of 16 bits as a table of every 128th, interpolated."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._fixed import between_entries
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import LANES, first, i16p, i32p, kernel, num, ptr, u8p
from lite_runtime.steps.declaration import named
from lite_runtime.steps.lookup import Interpolated, Lookup

LOOKUP, BETWEEN = named(Lookup), named(Interpolated)

_WIDE = 4 * LANES
_BYTES = ir.VectorType(ir.IntType(8), _WIDE)
_GRAIN = 4096


@intrinsic
def _look_up(typing, target, source, table):
    """Write table[x] for the `_WIDE` bytes x at `source` to `target`."""

    def lower(context, builder, sig, args):
        target, source, table = args
        x = builder.load(builder.inttoptr(source, _BYTES.as_pointer()), align=1, typ=_BYTES)
        found = call(builder, "look_up", LANES, x, table)
        builder.store(found, builder.inttoptr(target, _BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), lower


@kernel(Lookup)
def x8_lookup__1(step, bases, worker, workers):
    """Results of one byte; y may be the same memory as x."""
    x, table, y, total = (
        ptr(step, bases, LOOKUP.x),
        ptr(step, bases, LOOKUP.table),
        ptr(step, bases, LOOKUP.y),
        num(step, LOOKUP.total),
    )
    at, end = first(total, worker, workers, _GRAIN), first(total, worker + 1, workers, _GRAIN)
    while at + _WIDE <= end:
        _look_up(y + at, x + at, table)
        at += _WIDE
    results, source, target = u8p(table), u8p(x + at), u8p(y + at)
    for i in range(end - at):
        target[i] = results[source[i]]


def _wider(pointer, size):
    def look_up(step, bases, worker, workers):
        """Results of `size` bytes."""
        x, table, y, total = (
            ptr(step, bases, LOOKUP.x),
            ptr(step, bases, LOOKUP.table),
            ptr(step, bases, LOOKUP.y),
            num(step, LOOKUP.total),
        )
        begin, end = first(total, worker, workers, _GRAIN), first(total, worker + 1, workers, _GRAIN)
        results, source, target = pointer(table), u8p(x + begin), pointer(y + size * begin)
        for i in range(end - begin):
            target[i] = results[source[i]]

    return kernel(Lookup)(look_up)


x8_lookup__2, x8_lookup__4 = _wider(i16p, 2), _wider(i32p, 4)


@kernel(Interpolated)
def i16_interpolated(step, bases, worker, workers):
    """Results of 16 bits: a line between two entries, halves up; the slope and the result wrap around."""
    x, table, y, total = (
        ptr(step, bases, BETWEEN.x),
        ptr(step, bases, BETWEEN.table),
        ptr(step, bases, BETWEEN.y),
        num(step, BETWEEN.total),
    )
    begin, end = first(total, worker, workers, _GRAIN), first(total, worker + 1, workers, _GRAIN)
    entries, source, target = i16p(table), i16p(x + 2 * begin), i16p(y + 2 * begin)
    for i in range(end - begin):
        target[i] = np.int16(between_entries(np.int32(source[i]), entries))
