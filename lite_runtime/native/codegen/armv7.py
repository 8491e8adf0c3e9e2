"""Operations by the instructions of 32-bit Arm (NEON, VFPv4)."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.native.codegen import without_masks
from lite_runtime.native.codegen.operations import (
    F32,
    HALF,
    I1,
    I16,
    I32,
    I64,
    VOID,
    Emit,
    call,
    declare,
    each,
    intrinsic,
    pick,
    vector,
)
from lite_runtime.targets import ROWS, Target

__all__ = ["bodies", "rounding"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    both: dict[str, Emit] = {"from_half": from_half, "to_half": to_half}
    found: dict[str, Emit] = {**both, "signed_dot": smull, "small_dot": smull, "input_dot": signed_input}
    alone: dict[str, Emit] = {**both, "pause": pause, "clock": clock, "inputs_are_signed": yes}
    return {
        **{(name, target.lanes): emit for name, emit in found.items()},
        **{(name, 1): emit for name, emit in alone.items()},
        **{(name, 0): emit for name, emit in rounding().items()},
        **without_masks.bodies(target.lanes, ROWS),
    }


def rounding() -> dict[str, Emit]:
    """Rounding to whole numbers by additions, where no instruction does it."""
    return {"rint": rint, "floor": floor, "ceil": ceil, "trunc": trunc}


def rint(builder, lanes, value):
    """A sum with 2**23 leaves no bits for a fraction; larger numbers have none."""
    big = intrinsic(builder, "copysign", each(value.type, 2.0**23), value)
    near = intrinsic(builder, "copysign", builder.fsub(builder.fadd(value, big), big), value)
    small = builder.fcmp_ordered("<", intrinsic(builder, "fabs", value), each(value.type, 2.0**23))
    return builder.select(small, near, value)


def _corrected(predicate: str, by: float) -> Emit:
    def rounded(builder, lanes, value):
        near = rint(builder, lanes, value)
        wrong = builder.fcmp_ordered(predicate, near, value)
        moved = builder.fadd(near, each(value.type, by))
        return builder.select(wrong, intrinsic(builder, "copysign", moved, value), near)

    return rounded


floor, ceil = _corrected(">", -1.0), _corrected("<", 1.0)


def trunc(builder, lanes, value):
    """floor of the absolute value."""
    size = intrinsic(builder, "fabs", value)
    return intrinsic(builder, "copysign", floor(builder, lanes, size), value)


def from_half(builder, lanes, bits):
    """vcvt: NEON takes subnormal float32 for zero, which the generic form's product is made of."""
    return builder.fpext(builder.bitcast(bits, vector(HALF, lanes)), vector(F32, lanes))


def to_half(builder, lanes, value):
    """vcvt."""
    return builder.bitcast(builder.fptrunc(value, vector(HALF, lanes)), vector(I16, lanes))


def _neon(builder, name, result, *operands):
    kinds = [operand.type for operand in operands]
    return builder.call(declare(builder, f"llvm.arm.neon.{name}", result, *kinds), operands)


def smull(builder, lanes, so_far, a, w):
    """Products of int16, which are added in pairs to int32, and these in pairs."""
    two, eight = ir.VectorType(I32, 2), ir.VectorType(I16, 8)
    sums = []
    for begin in (0, 8):
        halves = [pick(builder, x, x, range(begin, begin + 8)) for x in (a, w)]
        pairs = _neon(builder, "vpaddls.v4i32.v8i16", so_far.type, _neon(builder, "vmulls.v8i16", eight, *halves))
        sums.append(_neon(builder, "vpadd.v2i32", two, *(pick(builder, pairs, pairs, (i, i + 1)) for i in (0, 2))))
    return builder.add(so_far, pick(builder, sums[0], sums[1], range(4)))


def signed_input(builder, lanes, so_far, a, w):
    """`signed_dot`."""
    return call(builder, "signed_dot", lanes, so_far, a, w)


def yes(builder, lanes):
    """True."""
    return I1(1)


def pause(builder, lanes):
    """yield."""
    builder.call(declare(builder, "llvm.arm.hint", VOID, I32), [I32(1)])


_MONOTONIC = 1


def clock(builder, lanes, ask):
    """Nanoseconds of Linux's clock_gettime, at `ask`, whose numbers have 32 bits under this name: programs may read no
    counter on all such processors."""
    time = builder.alloca(ir.ArrayType(I32, 2))
    words = builder.bitcast(time, I32.as_pointer())
    function = builder.inttoptr(ask, ir.FunctionType(I32, (I32, words.type)).as_pointer())
    builder.call(function, [I32(_MONOTONIC), words])
    seconds, rest = (builder.zext(builder.load(builder.gep(words, [I32(i)]), typ=I32), I64) for i in range(2))
    return builder.add(builder.mul(seconds, I64(10**9)), rest)
