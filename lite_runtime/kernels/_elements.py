"""Elements and runs of bytes at addresses, at any alignment: building blocks of copying kernels in several families."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.native.simd import device

_I32 = ir.IntType(32)
INTEGERS = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}
"""By element size: the integer type that elements are copied as."""
SIZES = tuple(INTEGERS)


def place(builder, where, kind):
    """A pointer to `kind` from an address."""
    return builder.inttoptr(where, kind.as_pointer())


def _move(size):
    kind = ir.VectorType(ir.IntType(8), size)

    @intrinsic
    def move(typing, target, source):
        def lower(context, builder, sig, args):
            value = builder.load(place(builder, args[1], kind), align=1, typ=kind)
            builder.store(value, place(builder, args[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), lower

    return move


_move64, _move32, _move16, _move8, _move4, _move2, _move1 = (_move(n) for n in (64, 32, 16, 8, 4, 2, 1))


def _get(size):
    @intrinsic
    def get(typing, where):
        def lower(context, builder, sig, args):
            kind = ir.IntType(8 * size)
            return builder.load(place(builder, args[0], kind), align=1, typ=kind)

        return INTEGERS[size](types.int64), lower

    return get


def _put(size):
    @intrinsic
    def put(typing, where, value):
        def lower(context, builder, sig, args):
            builder.store(args[1], place(builder, args[0], ir.IntType(8 * size)), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, INTEGERS[size]), lower

    return put


def _put_repeated(size, count):
    """Store `count` bytes of an element of `size` bytes repeated."""
    lanes = max(1, count // size)
    kind = ir.VectorType(ir.IntType(8 * size), lanes)

    @intrinsic
    def put(typing, where, value):
        def lower(context, builder, sig, args):
            undefined = ir.Constant(kind, ir.Undefined)
            one = builder.insert_element(undefined, args[1], _I32(0))
            many = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))
            builder.store(many, place(builder, args[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, INTEGERS[size]), lower

    return put


get = {size: _get(size) for size in SIZES}
put = {size: _put(size) for size in SIZES}
"""By element size: `get(address)` and `put(address, value)`."""


@device
def copy_run(target, source, n):
    """Copy `n` bytes. Short runs are copied by two overlapping moves, without a loop or a tail."""
    if n >= 64:
        last = n - 64
        at = 0
        while at + 192 < last:
            _move64(target + at, source + at)
            _move64(target + at + 64, source + at + 64)
            _move64(target + at + 128, source + at + 128)
            _move64(target + at + 192, source + at + 192)
            at += 256
        while at < last:
            _move64(target + at, source + at)
            at += 64
        _move64(target + last, source + last)
    elif n >= 32:
        _move32(target, source)
        _move32(target + n - 32, source + n - 32)
    elif n >= 16:
        _move16(target, source)
        _move16(target + n - 16, source + n - 16)
    elif n >= 8:
        _move8(target, source)
        _move8(target + n - 8, source + n - 8)
    elif n >= 4:
        _move4(target, source)
        _move4(target + n - 4, source + n - 4)
    elif n >= 2:
        _move2(target, source)
        _move2(target + n - 2, source + n - 2)
    elif n == 1:
        _move1(target, source)


def _fill_run(size):
    put64, put32, put16, put8, put4, put2, put1 = (_put_repeated(size, n) for n in (64, 32, 16, 8, 4, 2, 1))

    @device
    def fill(target, value, count):
        n = count * size
        if n >= 64:
            last = n - 64
            at = 0
            while at < last:
                put64(target + at, value)
                at += 64
            put64(target + last, value)
        elif n >= 32:
            put32(target, value)
            put32(target + n - 32, value)
        elif n >= 16:
            put16(target, value)
            put16(target + n - 16, value)
        elif n >= 8:
            put8(target, value)
            put8(target + n - 8, value)
        elif n >= 4:
            put4(target, value)
            put4(target + n - 4, value)
        elif n >= 2:
            put2(target, value)
            put2(target + n - 2, value)
        elif n == 1:
            put1(target, value)

    return fill


fill_run = {size: _fill_run(size) for size in SIZES}
"""By element size: store `value` `count` times from `target` on."""


@device
def copy_element(target, source, size):
    """Copy one element, or a run of any other size."""
    if size == 4:
        _move4(target, source)
    elif size == 8:
        _move8(target, source)
    elif size == 1:
        _move1(target, source)
    elif size == 2:
        _move2(target, source)
    else:
        copy_run(target, source, size)
