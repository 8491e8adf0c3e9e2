"""Operations by aarch64's instructions (NEON)."""

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
    pick,
    vector,
)
from lite_runtime.targets import ROWS, Target

__all__ = ["bodies"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    dots: dict[str, dict[str, Emit]] = {
        "usdot": {"dot": usdot, "signed_dot": sdot, "small_dot": small_sdot},
        "sdot": {"dot": moved_sdot, "signed_dot": sdot, "small_dot": small_sdot},
        "smull": {"signed_dot": smull, "small_dot": smull},
    }
    halves: dict[str, Emit] = {"from_half": from_half, "to_half": to_half}
    found: dict[str, Emit] = {"whole": whole, "look_up": look_up, **dots[target.dot], **halves}
    alone: dict[str, Emit] = {"pause": pause, "clock": clock, **halves}
    if target.signed:
        found["input_dot"], alone["inputs_are_signed"] = signed_input, yes
    return {
        **{(name, target.lanes): emit for name, emit in found.items()},
        **{(name, 1): emit for name, emit in alone.items()},
        **without_masks.bodies(target.lanes, ROWS),
    }


def _neon(builder, name, result, *operands):
    kinds = [operand.type for operand in operands]
    return builder.call(declare(builder, f"llvm.aarch64.neon.{name}", result, *kinds), operands)


def usdot(builder, lanes, so_far, a, w):
    """Four products of unsigned and signed bytes and their sum at once."""
    return _neon(builder, "usdot.v4i32.v16i8", so_far.type, so_far, a, w)


def sdot(builder, lanes, so_far, a, w):
    """Four products of signed bytes and their sum at once. The instruction repeats a lane of its last factor, and LLVM
    looks for it there."""
    return _neon(builder, "sdot.v4i32.v16i8", so_far.type, so_far, w, a)


def small_sdot(builder, lanes, so_far, a, w):
    """`sdot`; here the second factor is the one that is repeated."""
    return sdot(builder, lanes, so_far, w, a)


def moved_sdot(builder, lanes, so_far, a, w):
    """128 is subtracted from the unsigned bytes, and 128 times the weights added, in two parts that bytes hold."""
    so_far = sdot(builder, lanes, so_far, builder.xor(a, each(a.type, 128)), w)
    for _ in range(2):
        so_far = sdot(builder, lanes, so_far, each(a.type, 64), w)
    return so_far


def smull(builder, lanes, so_far, a, w):
    """Products of int16, which are added in pairs to int32, and these in pairs."""
    products = [_neon(builder, "smull.v8i16", ir.VectorType(I16, 8), *halves) for halves in _halves(builder, a, w)]
    pairs = [_neon(builder, "saddlp.v4i32.v8i16", so_far.type, half) for half in products]
    return builder.add(so_far, _neon(builder, "addp.v4i32", so_far.type, *pairs))


def _halves(builder, a, w):
    for begin in (0, 8):
        yield [pick(builder, x, x, range(begin, begin + 8)) for x in (a, w)]


def signed_input(builder, lanes, so_far, a, w):
    """`signed_dot`."""
    return call(builder, "signed_dot", lanes, so_far, a, w)


def yes(builder, lanes):
    """True."""
    return I1(1)


def whole(builder, lanes, value):
    """fcvtns: half to even, saturated; NaN gives 0 and is replaced."""
    ints = ir.VectorType(I32, lanes)
    near = _neon(builder, "fcvtns.v4i32.v4f32", ints, value)
    return builder.select(builder.fcmp_ordered("ord", value, value), near, each(ints, -(2**31)))


def look_up(builder, lanes, x, table):
    """Four registers are a table of 64 bytes: tbl gives 0 for others, tbx leaves them as they are."""
    rows = []
    for k in range(16):
        where = builder.inttoptr(builder.add(table, I64(16 * k)), x.type.as_pointer())
        rows.append(builder.load(where, align=1, typ=x.type))
    found = _neon(builder, "tbl4.v16i8", x.type, *rows[:4], x)
    for k in range(1, 4):
        found = _neon(
            builder, "tbx4.v16i8", x.type, found, *rows[4 * k : 4 * k + 4], builder.sub(x, each(x.type, 64 * k))
        )
    return found


def from_half(builder, lanes, bits):
    """fcvt, fcvtl."""
    return builder.fpext(builder.bitcast(bits, vector(HALF, lanes)), vector(F32, lanes))


def to_half(builder, lanes, value):
    """fcvt, fcvtn."""
    return builder.bitcast(builder.fptrunc(value, vector(HALF, lanes)), vector(I16, lanes))


def pause(builder, lanes):
    """yield."""
    builder.call(declare(builder, "llvm.aarch64.hint", VOID, I32), [I32(1)])


def clock(builder, lanes, ask):
    """The counter of the virtual timer, cntvct_el0."""
    return builder.call(declare(builder, "llvm.readsteadycounter", I64), [])
