"""Operations for kernels on narrow integers: vectors of any length, widened when loaded and narrowed when stored.

`words(stored, held, count)` gives the operations on `count` neighbouring elements of type `stored`, held in registers
as `held`; LLVM splits vectors that are longer than a register. There are no masks: a strip at the end of a row overlaps
the one before it (`strips`), which stores some values twice.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic

from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import LANES, SHAPE, declare, emit_max, emit_splat, exact

__all__ = ["BYTES", "Words", "averaged", "lengths", "strips", "words"]

_F32, _I64 = ir.FloatType(), ir.IntType(64)
BYTES = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8}
"""Element size of every type that `words` accepts."""
_SCALARS = {name: getattr(types, name) for name in BYTES}


class IntsType(types.Type):
    """`count` integers of type `held` in registers."""

    def __init__(self, held: str, count: int) -> None:
        super().__init__(name=f"{held}x{count}")
        self.llvm = ir.VectorType(ir.IntType(8 * BYTES[held]), count)


@register_default(IntsType)
class IntsModel(models.PrimitiveModel):
    """Numba's data model of an IntsType: the LLVM vector itself."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


@cache
def _ints(held: str, count: int) -> IntsType:
    return IntsType(held, count)


class Words(NamedTuple):
    """Operations on `count` elements: device intrinsics."""

    count: int
    size: int
    """Distance between stored elements, in bytes."""
    spread: Any
    """(scalar of `held`) -> every lane."""
    load: Any
    """(address) -> elements, widened."""
    store: Any
    """(address, lanes): store lanes narrowed; higher bits are dropped."""
    add: Any
    multiply: Any
    larger: Any
    smaller: Any
    shift: Any
    """(lanes, bits): arithmetic shift to the right."""
    total: Any
    """(lanes) -> their sum, a scalar of `held`."""
    largest: Any
    smallest: Any
    rescaled: Any
    """(lanes, factor, low, high, zero) -> clamp(round_half_even(float32(lane) * factor), low, high) + zero; NaN: low.
    factor, low, high float32, zero int32; the bounds are whole numbers from which the zero point was subtracted."""
    placed: Any
    """(lanes, factor, shift, low, high) -> clamp(round_half_even(float32(lane) * factor + shift), low, high); product
    and sum are rounded separately; NaN: low. All are float32; the bounds are whole numbers."""
    rescaled_by: Any
    """(lanes, address, low, high, zero): like `rescaled`, with one factor per lane at `address`."""
    store_real: Any
    """(address, lanes, scales, shifts, low, high): store clamp(float32(lane) * scale + shift, low, high) as float32;
    scales and shifts are at these addresses; product and sum are rounded separately. NaN stays NaN."""


def _widened(builder: Any, value: Any, stored: str, kind: ir.VectorType) -> Any:
    if value.type == kind:
        return value
    return (builder.zext if stored.startswith("u") else builder.sext)(value, kind)


def _resized(builder: Any, value: Any, kind: ir.VectorType) -> Any:
    """`value` with lanes widened or narrowed to `kind`, signed."""
    have, want = value.type.element.width, kind.element.width
    if have == want:
        return value
    return builder.trunc(value, kind) if have > want else builder.sext(value, kind)


def _rounded(builder: Any, value: Any) -> Any:
    """A vector of float32, which may have one element only, rounded to whole numbers."""
    if value.type.count > 1:
        return call(builder, "rint", value.type.count, value)
    first = ir.Constant(ir.IntType(32), 0)
    return builder.insert_element(value, call(builder, "rint", 1, builder.extract_element(value, first)), first)


@cache
def words(stored: str, held: str, count: int) -> Words:
    """The operations on strips of `count` elements of `stored`, held as `held` (no narrower than it)."""
    vector, scalar = _ints(held, count), _SCALARS[held]
    kind, size = vector.llvm, BYTES[stored]
    memory = ir.VectorType(ir.IntType(8 * size), count)
    floats, whole = ir.VectorType(_F32, count), ir.VectorType(ir.IntType(32), count)
    unsigned = held.startswith("u")

    @intrinsic
    def spread(typing, value):
        return vector(scalar), lambda context, builder, sig, args: emit_splat(builder, args[0], kind)

    @intrinsic
    def load(typing, where):
        def lower(context, builder, sig, args):
            value = builder.load(builder.inttoptr(args[0], memory.as_pointer()), align=size, typ=memory)
            return _widened(builder, value, stored, kind)

        return vector(types.int64), lower

    @intrinsic
    def store(typing, where, value):
        def lower(context, builder, sig, args):
            pointer = builder.inttoptr(args[0], memory.as_pointer())
            builder.store(_resized(builder, args[1], memory), pointer, align=size)
            return context.get_dummy_value()

        return types.void(types.int64, vector), lower

    def binary(emit: Any) -> Any:
        @intrinsic
        def apply(typing, a, b):
            return vector(vector, vector), lambda context, builder, sig, args: emit(builder, *args)

        return apply

    def pick(sign: str) -> Any:
        def emit(builder, a, b):
            compare = builder.icmp_unsigned if unsigned else builder.icmp_signed
            return builder.select(compare(sign, a, b), a, b)

        return binary(emit)

    @intrinsic
    def shift(typing, a, bits):
        def lower(context, builder, sig, args):
            by = builder.trunc(args[1], kind.element) if kind.element.width < 64 else args[1]
            return builder.ashr(args[0], emit_splat(builder, by, kind))

        return vector(vector, types.int64), lower

    def across(name: str) -> Any:
        @intrinsic
        def reduce(typing, a):
            def lower(context, builder, sig, args):
                function = f"llvm.vector.reduce.{name}.v{count}i{kind.element.width}"
                return builder.call(declare(builder, function, kind.element, kind), args)

            return scalar(vector), lower

        return reduce

    def at(builder: Any, where: Any) -> Any:
        return builder.load(builder.inttoptr(where, floats.as_pointer()), align=4, typ=floats)

    def rescale(builder: Any, total: Any, factor: Any, low: Any, high: Any, zero: Any) -> Any:
        moved = builder.fmul(builder.sitofp(total, floats), factor)
        moved = _rounded(builder, moved)
        low, high = emit_splat(builder, low, floats), emit_splat(builder, high, floats)
        moved = builder.fptosi(emit_max(builder, emit_max(builder, moved, low), high, "<"), whole)
        return _resized(builder, builder.add(moved, emit_splat(builder, zero, whole)), kind)

    @intrinsic
    def rescaled(typing, total, factor, low, high, zero):
        def lower(context, builder, sig, args):
            total, factor, low, high, zero = args
            return rescale(builder, total, emit_splat(builder, factor, floats), low, high, zero)

        return vector(vector, types.float32, types.float32, types.float32, types.int32), lower

    @intrinsic
    def placed(typing, total, factor, shift, low, high):
        def lower(context, builder, sig, args):
            total, *others = args
            factor, shift, low, high = (emit_splat(builder, number, floats) for number in others)
            moved = builder.fadd(builder.fmul(builder.sitofp(total, floats), factor), shift)
            moved = _rounded(builder, moved)
            moved = emit_max(builder, emit_max(builder, moved, low), high, "<")
            return _resized(builder, builder.fptosi(moved, whole), kind)

        return vector(vector, *(types.float32,) * 4), lower

    @intrinsic
    def rescaled_by(typing, total, factors, low, high, zero):
        def lower(context, builder, sig, args):
            total, factors, low, high, zero = args
            return rescale(builder, total, at(builder, factors), low, high, zero)

        return vector(vector, types.int64, types.float32, types.float32, types.int32), lower

    @intrinsic
    def store_real(typing, where, total, scales, shifts, low, high):
        def lower(context, builder, sig, args):
            where, total, scales, shifts, low, high = args
            value = builder.fmul(builder.sitofp(total, floats), at(builder, scales))
            value = builder.fadd(value, at(builder, shifts))
            low, high = emit_splat(builder, low, floats), emit_splat(builder, high, floats)
            value = emit_max(builder, high, emit_max(builder, low, value), "<")
            builder.store(value, builder.inttoptr(where, floats.as_pointer()), align=4)
            return context.get_dummy_value()

        reals = (types.float32, types.float32)
        return types.void(types.int64, vector, types.int64, types.int64, *reals), lower

    prefix = "u" if unsigned else "s"
    return Words(
        count,
        size,
        spread,
        load,
        store,
        binary(lambda builder, a, b: builder.add(a, b)),
        binary(lambda builder, a, b: builder.mul(a, b)),
        pick(">"),
        pick("<"),
        shift,
        across("add"),
        across(f"{prefix}max"),
        across(f"{prefix}min"),
        rescaled,
        placed,
        rescaled_by,
        store_real,
    )


def averaged(held: str, count: int) -> Any:
    """A device function (lanes, n, low, high) -> lanes / n, rounded exactly, halves away from zero; low if n is 0.

    low, high: whole float32 numbers that enclose every quotient; quotients are below 2**16. |lane| * 2 + n fits `held`.
    """
    strip = words(held, held, count)
    add, times, shift, spread, rescaled = strip.add, strip.multiply, strip.shift, strip.spread, strip.rescaled
    sign, scalar = 8 * BYTES[held] - 1, _SCALARS[held]

    @exact
    def average(total, n, low, high):
        # The float32 quotient has an error of at most 2**-7; the remainder shows where it was rounded to the wrong
        # side. The remainder is doubled, and 1 is subtracted from it below zero, so that the same comparisons round
        # halves away from zero on both sides.
        near = rescaled(total, types.float32(1) / types.float32(n), low, high, types.int32(0))
        by = scalar(max(n, 1))
        rest = add(total, times(near, spread(scalar(-n))))
        rest = add(add(rest, rest), shift(total, sign))
        up, down = shift(add(rest, spread(scalar(-by))), sign), shift(add(rest, spread(by)), sign)
        return add(add(near, spread(scalar(1))), add(up, down))

    return average


def lengths(held: str) -> tuple[int, ...]:
    """Lengths of strips: two registers of `held`, half a register, an eighth of one, one element; where code must be
    small, one register, if there are such, and one element."""
    register = 4 * LANES // BYTES[held]
    if SHAPE.small:
        return (register, 1) if SHAPE.vectors else (1,)
    return (*(n for n in (2 * register, register // 2, register // 8) if n > 1), 1)


@exact
def _nothing(n, job):
    return


def strips(widths: tuple[int, ...], body: Any) -> Any:
    """A device function `cover(n, job)` that calls `body(width)(at, job)` for strips that together cover [0, n).

    widths: descending, 1 last. The widest that fits is used for all strips; the last strip ends at n and may overlap
    the one before it. job: a tuple of scalars, passed to the body.
    """
    width, one = widths[0], body(widths[0])
    narrower = strips(widths[1:], body) if len(widths) > 1 else _nothing

    @exact
    def cover(n, job):
        if n < width:
            narrower(n, job)
        else:
            at = 0
            while at < n:
                one(min(at, n - width), job)
                at += width

    return cover
