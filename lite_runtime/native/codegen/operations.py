"""Operations that processors compute in different ways: what kernels call instead of one processor's instructions.

Kernels call them by name (`call`). In what Numba compiles, an operation is a weak function in plain vector IR that any
processor can run: Numba compiles for the machine at hand and knows no other's instructions. `retarget.py` then puts the
target's own functions (`bodies.py`) in their place, where there are some, and inlines all. A body is its operation,
bit for bit, for all operands that the operation's description allows.

Needs llvmlite alone. A vector has `lanes` elements of 32 bits, or as many bits of narrower ones; with lanes 1,
operations on float32 take and give scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

__all__ = ["OPERATIONS", "PREFIX", "Emit", "Operation", "call", "declare", "define", "each", "splat", "vector"]

PREFIX = "operation."
"""The beginning of the names of operations' functions; then the operation's name, and the lanes."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64, HALF, VOID = ir.FloatType(), ir.DoubleType(), ir.HalfType(), ir.VoidType()

Emit = Callable[..., Any]
"""(builder, lanes, operands…) -> the result, None if there is none."""
_Types = Callable[[int], tuple[ir.Type, Sequence[ir.Type]]]


class Operation(NamedTuple):
    """types: lanes -> type of the result, types of the operands. generic: the function that any processor can run."""

    types: _Types
    generic: Emit


OPERATIONS: dict[str, Operation] = {}


def call(builder: Any, name: str, lanes: int, *operands: Any) -> Any:
    """The result of an operation."""
    module, full = builder.module, f"{PREFIX}{name}.{lanes}"
    function = module.globals.get(full)
    if function is None:
        function = define(module, name, lanes, OPERATIONS[name].generic)
        function.linkage = "weak"
    return builder.call(function, operands)


def define(module: Any, name: str, lanes: int, emit: Emit) -> Any:
    """An operation's function in a module, computed by `emit`."""
    result, operands = OPERATIONS[name].types(lanes)
    function = ir.Function(module, ir.FunctionType(result, operands), f"{PREFIX}{name}.{lanes}")
    builder = ir.IRBuilder(function.append_basic_block())
    value = emit(builder, lanes, *function.args)
    if value is None:
        builder.ret_void()
    else:
        builder.ret(value)
    return function


# -- what functions are written with -----------------------------------------------------------------------------------


def vector(kind: ir.Type, count: int) -> ir.Type:
    """A vector; a scalar if it had one element."""
    return kind if count == 1 else ir.VectorType(kind, count)


def declare(builder: Any, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    """An LLVM intrinsic's declaration in the builder's module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def intrinsic(builder: Any, name: str, *operands: Any, result: ir.Type | None = None) -> Any:
    """The result of an LLVM intrinsic whose name ends in the type of its first operand, which is the result's too."""
    kind = operands[0].type
    count = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    element = getattr(kind, "element", kind)
    suffix = f"{count}f32" if element == F32 else f"{count}i{element.width}"
    return builder.call(
        declare(builder, f"llvm.{name}.{suffix}", result or kind, *(o.type for o in operands)), operands
    )


def each(kind: ir.Type, value: Any) -> ir.Constant:
    """A constant in every element."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def splat(builder: Any, scalar: Any, kind: ir.Type) -> Any:
    """A vector whose elements all hold `scalar`."""
    if not isinstance(kind, ir.VectorType):
        return scalar
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
    return pick(builder, one, one, [0] * kind.count)


def pick(builder: Any, a: Any, b: Any, order: Sequence[int]) -> Any:
    """The elements of a and b, counted through, in this order."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), list(order)))


def _operation(name: str, types: _Types) -> Callable[[Emit], Emit]:
    def add(generic: Emit) -> Emit:
        OPERATIONS[name] = Operation(types, generic)
        return generic

    return add


def _floats(n: int) -> ir.Type:
    return vector(F32, n)


def _ints(n: int) -> ir.Type:
    return vector(I32, n)


def _pairs(n: int) -> ir.Type:
    return ir.VectorType(I16, 2 * n)


def _bytes(n: int) -> ir.Type:
    return ir.VectorType(I8, 4 * n)


# -- sums of products of integers --------------------------------------------------------------------------------------


@_operation("pair_dot", lambda n: (_ints(n), (_ints(n), _pairs(n), _pairs(n))))
def pair_dot(builder, lanes, so_far, a, b):
    """so_far + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] of int16 in every int32 lane."""
    wide = ir.VectorType(I32, 2 * lanes)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    even, odd = (pick(builder, products, products, range(first, 2 * lanes, 2)) for first in (0, 1))
    return builder.add(so_far, builder.add(even, odd))


@_operation("dot", lambda n: (_ints(n), (_ints(n), _bytes(n), _bytes(n))))
def dot(builder, lanes, so_far, a, w):
    """so_far + the four products of unsigned bytes `a` and signed bytes `w` in every int32 lane."""
    pairs = _pairs(lanes)
    a, w, eight = builder.bitcast(a, pairs), builder.bitcast(w, pairs), each(pairs, 8)
    even = builder.and_(a, each(pairs, 255)), builder.ashr(builder.shl(w, eight), eight)
    odd = builder.lshr(a, eight), builder.ashr(w, eight)
    return call(builder, "pair_dot", lanes, call(builder, "pair_dot", lanes, so_far, *even), *odd)


@_operation("signed_dot", lambda n: (_ints(n), (_ints(n), _bytes(n), _bytes(n))))
def signed_dot(builder, lanes, so_far, a, w):
    """so_far + the four products of signed bytes in every int32 lane."""
    pairs = _pairs(lanes)
    a, w, eight = builder.bitcast(a, pairs), builder.bitcast(w, pairs), each(pairs, 8)
    even = (builder.ashr(builder.shl(x, eight), eight) for x in (a, w))
    odd = (builder.ashr(x, eight) for x in (a, w))
    return call(builder, "pair_dot", lanes, call(builder, "pair_dot", lanes, so_far, *even), *odd)


@_operation("small_dot", lambda n: (_ints(n), (_ints(n), _bytes(n), _bytes(n))))
def small_dot(builder, lanes, so_far, a, w):
    """`dot` for unsigned bytes `a` of at most 127 and signed bytes `w` of at least -127: also `signed_dot`."""
    return call(builder, "dot", lanes, so_far, a, w)


@_operation("input_dot", lambda n: (_ints(n), (_ints(n), _bytes(n), _bytes(n))))
def input_dot(builder, lanes, so_far, a, w):
    """`signed_dot` on targets that read inputs as signed bytes (`Target.signed`), `dot` on others."""
    return call(builder, "dot", lanes, so_far, a, w)


@_operation("inputs_are_signed", lambda n: (I1, ()))
def inputs_are_signed(builder, lanes):
    """Whether `input_dot` is `signed_dot`."""
    return I1(0)


# -- from wide numbers to narrow ones ----------------------------------------------------------------------------------


@_operation("whole", lambda n: (_ints(n), (_floats(n),)))
def whole(builder, lanes, value):
    """float32 -> int32, rounded half to even; NaN and values below int32 give its lowest number. Values above int32
    give any number: callers bound them first."""
    near, kind = call(builder, "rint", lanes, value), _ints(lanes)
    fits = builder.fcmp_ordered(">=", near, each(near.type, -(2.0**31)))
    function = declare(builder, f"llvm.fptosi.sat.v{lanes}i32.v{lanes}f32", kind, near.type)
    return builder.select(fits, builder.call(function, [near]), each(kind, -(2**31)))


def _saturated(builder, value, low: int, high: int, narrow: ir.Type):
    value = intrinsic(builder, "smax", value, each(value.type, low))
    value = intrinsic(builder, "smin", value, each(value.type, high))
    return builder.trunc(value, ir.VectorType(narrow, value.type.count))


def _joined(builder, lanes, a, b):
    """Two registers one after the other within every 16 bytes of the result: as wide processors pack."""
    count, of_16 = a.type.count, a.type.count * 4 // lanes
    starts = (side + start for start in range(0, count, of_16) for side in (0, count))
    return pick(builder, a, b, [start + i for start in starts for i in range(of_16)])


@_operation("pack_pairs", lambda n: (_pairs(n), (_ints(n), _ints(n))))
def pack_pairs(builder, lanes, a, b):
    """Two registers of int32 -> one of int16, saturated; every 16 bytes of it hold those of a, then those of b."""
    return _saturated(builder, _joined(builder, lanes, a, b), -(2**15), 2**15 - 1, I16)


@_operation("pack_bytes", lambda n: (_bytes(n), (_pairs(n), _pairs(n))))
def pack_bytes(builder, lanes, a, b):
    """Two registers of int16 -> one of unsigned bytes, saturated; every 16 bytes of it hold those of a, then those of
    b."""
    return _saturated(builder, _joined(builder, lanes, a, b), 0, 255, I8)


# -- tables ------------------------------------------------------------------------------------------------------------


@_operation("look_up", lambda n: (_bytes(n), (_bytes(n), I64)))
def look_up(builder, lanes, x, table):
    """table[x] for bytes x; `table`: address of 256 bytes."""
    found = ir.Constant(x.type, ir.Undefined)
    for i in range(x.type.count):
        at = builder.add(table, builder.zext(builder.extract_element(x, I32(i)), I64))
        one = builder.load(builder.inttoptr(at, I8.as_pointer()), align=1, typ=I8)
        found = builder.insert_element(found, one, I32(i))
    return found


@_operation("nibbles", lambda n: (_floats(n), (_ints(n), I64)))
def nibbles(builder, lanes, dwords, which):
    """The four bits from bit 4 * `which` on of every lane, as signed numbers, as float32. which: 0 to 7."""
    kind = _ints(lanes)
    up = splat(builder, builder.trunc(builder.sub(I64(28), builder.mul(which, I64(4))), I32), kind)
    return builder.sitofp(builder.ashr(builder.shl(dwords, up), each(kind, 28)), _floats(lanes))


# -- part of a vector in memory ----------------------------------------------------------------------------------------


def _mask(n: int) -> ir.Type:
    return ir.VectorType(I1, n)


def _at(n: int) -> ir.Type:
    return _floats(n).as_pointer()


@_operation("load_first", lambda n: (_floats(n), (_at(n), _mask(n), _floats(n))))
def load_first(builder, lanes, where, mask, other):
    """The first lanes, which the mask holds, from memory, the rest of `other`; no other memory is read."""
    kinds = where.type, I32, mask.type, other.type
    function = declare(builder, f"llvm.masked.load.v{lanes}f32.p0", other.type, *kinds)
    return builder.call(function, [where, I32(4), mask, other])


@_operation("store_first", lambda n: (VOID, (_floats(n), _at(n), _mask(n))))
def store_first(builder, lanes, value, where, mask):
    """Stores the first lanes, which the mask holds; no other memory is accessed."""
    kinds = value.type, where.type, I32, mask.type
    function = declare(builder, f"llvm.masked.store.v{lanes}f32.p0", VOID, *kinds)
    builder.call(function, [value, where, I32(4), mask])


# -- float32 -----------------------------------------------------------------------------------------------------------


def _rounding(name: str, llvm: str, how: str) -> None:
    @_operation(name, lambda n: (_floats(n), (_floats(n),)))
    def generic(builder, lanes, value):
        return intrinsic(builder, llvm, value)

    generic.__doc__ = f"float32 rounded to a whole number: {how}."


_rounding("rint", "nearbyint", "the nearest, half to even")
_rounding("floor", "floor", "not above")
_rounding("ceil", "ceil", "not below")
_rounding("trunc", "trunc", "towards 0")


def _power_of_two(builder, n):
    """2**n for whole n of -126 to 127."""
    ints = _ints(n.type.count)
    bits = builder.shl(builder.add(builder.fptosi(n, ints), each(ints, 127)), each(ints, 23))
    return builder.bitcast(bits, n.type)


@_operation("scale", lambda n: (_floats(n), (_floats(n), _floats(n))))
def scale(builder, lanes, value, n):
    """value * 2**n, rounded once, for values of 1/2 to 2 and whole n of -152 to 128; NaN if both are NaN."""
    # In two factors: 2**n may be beyond what one float's exponent holds. Only the second product can round.
    half = call(builder, "floor", lanes, builder.fmul(n, each(n.type, 0.5)))
    value = builder.fmul(value, _power_of_two(builder, half))
    return builder.fmul(value, _power_of_two(builder, builder.fsub(n, half)))


def _halves(n: int) -> ir.Type:
    return vector(I16, n)


@_operation("from_half", lambda n: (_floats(n), (_halves(n),)))
def from_half(builder, lanes, bits):
    """float32 of float16, given by its bits. NaN gives NaN, of any bits."""
    # The sign is handled separately, exponent and fraction are moved to float32's positions and rebased by a product,
    # which is exact and right for subnormals; the greatest exponent is replaced by float32's.
    ints, floats = _ints(lanes), _floats(lanes)
    bits = builder.zext(bits, ints)
    size = builder.and_(bits, each(ints, 0x7FFF))
    up = builder.shl(size, each(ints, 13))
    rebased = builder.bitcast(builder.fmul(builder.bitcast(up, floats), each(floats, 2.0**112)), ints)
    special = builder.or_(up, each(ints, 0x7F800000))
    size = builder.select(builder.icmp_signed("<", size, each(ints, 0x7C00)), rebased, special)
    sign = builder.shl(builder.and_(bits, each(ints, 0x8000)), each(ints, 16))
    return builder.bitcast(builder.or_(size, sign), floats)


@_operation("to_half", lambda n: (_halves(n), (_floats(n),)))
def to_half(builder, lanes, value):
    """The bits of the nearest float16, half to even. NaN gives NaN, of any bits."""
    ints, floats = _ints(lanes), _floats(lanes)
    bits = builder.bitcast(value, ints)
    size = builder.and_(bits, each(ints, 0x7FFFFFFF))
    # Normal: the exponent is rebased; half of the last place kept is added, and a bit less if that place is even.
    odd = builder.and_(builder.lshr(size, each(ints, 13)), each(ints, 1))
    rebased = builder.add(builder.sub(size, each(ints, 112 << 23)), builder.add(odd, each(ints, 0xFFF)))
    normal = builder.lshr(rebased, each(ints, 13))
    # Subnormal: a sum with 1/2 leaves ten bits for the fraction below 2**-14, and rounds.
    shifted = builder.fadd(builder.bitcast(size, floats), each(floats, 0.5))
    tiny = builder.sub(builder.bitcast(shifted, ints), each(ints, 126 << 23))
    size_of = builder.select(builder.icmp_signed("<", size, each(ints, 113 << 23)), tiny, normal)
    size_of = builder.select(builder.icmp_signed("<", size, each(ints, 143 << 23)), size_of, each(ints, 0x7C00))
    size_of = builder.select(builder.icmp_signed(">", size, each(ints, 255 << 23)), each(ints, 0x7E00), size_of)
    sign = builder.and_(builder.lshr(bits, each(ints, 16)), each(ints, 0x8000))
    return builder.trunc(builder.or_(size_of, sign), _halves(lanes))


# -- loops that wait, and clocks ---------------------------------------------------------------------------------------


@_operation("pause", lambda n: (VOID, ()))
def pause(builder, lanes):
    """Tells the processor that this is a spin loop."""


@_operation("clock", lambda n: (I64, (I64,)))
def clock(builder, lanes, ask):
    """A counter of a constant rate. ask: address of a function without arguments that gives it as int64, for
    processors whose programs cannot read one; 0 if they can."""
    function = builder.inttoptr(ask, ir.FunctionType(I64, ()).as_pointer())
    return builder.call(function, [])
