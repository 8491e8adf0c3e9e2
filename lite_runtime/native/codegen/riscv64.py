"""Operations by RISC-V's instructions."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.native.codegen import without_masks
from lite_runtime.native.codegen.operations import I1, I16, I32, I64, VOID, Emit, declare, each, intrinsic
from lite_runtime.targets import ROWS, Target

__all__ = ["bodies"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    alone: dict[str, Emit] = {"pause": pause, "clock": clock}
    if "v" in target.needs:
        alone["inputs_are_signed"] = yes
        sums = {"dot": dot, "signed_dot": signed_dot, "input_dot": signed_dot, "pair_dot": pair_dot}
        others = {(name, target.lanes): emit for name, emit in sums.items()}
    else:
        others = without_masks.bodies(target.lanes, ROWS)
    return {**others, ("rint", 0): rint, **{(name, 1): emit for name, emit in alone.items()}}


def dot(builder, lanes, so_far, a, w):
    """vwmulsu: products in 16 bits."""
    wide = ir.VectorType(I16, 4 * lanes)
    return _fours(builder, lanes, so_far, builder.mul(builder.zext(a, wide), builder.sext(w, wide)))


def signed_dot(builder, lanes, so_far, a, w):
    """vwmul."""
    wide = ir.VectorType(I16, 4 * lanes)
    return _fours(builder, lanes, so_far, builder.mul(builder.sext(a, wide), builder.sext(w, wide)))


def _fours(builder, lanes, so_far, products):
    """Adds up fours of int16 by halves of wider elements: the even ones are shifted up and down, the odd ones down."""
    twos = builder.bitcast(products, ir.VectorType(I32, 2 * lanes))
    sixteen = each(twos.type, 16)
    even, odd = builder.ashr(builder.shl(twos, sixteen), sixteen), builder.ashr(twos, sixteen)
    return _halves(builder, lanes, so_far, builder.add(even, odd))


def _halves(builder, lanes, so_far, twos):
    """Adds both int32 of every 64 bits: vnsrl takes one."""
    ones = builder.bitcast(twos, ir.VectorType(I64, lanes))
    low = builder.trunc(ones, so_far.type)
    high = builder.trunc(builder.lshr(ones, each(ones.type, 32)), so_far.type)
    return builder.add(builder.add(so_far, low), high)


def pair_dot(builder, lanes, so_far, a, b):
    """vwmul: products in 32 bits."""
    wide = ir.VectorType(I32, 2 * lanes)
    return _halves(builder, lanes, so_far, builder.mul(builder.sext(a, wide), builder.sext(b, wide)))


def rint(builder, lanes, value):
    """By the rounding mode that is set; `nearbyint` would be a call of libm, `roundeven` sets the mode and restores it.
    """
    return intrinsic(builder, "rint", value)


def yes(builder, lanes):
    """True."""
    return I1(1)


def pause(builder, lanes):
    """pause, a hint that processors without it ignore."""
    builder.call(declare(builder, "llvm.riscv.pause", VOID), [])


def clock(builder, lanes, ask):
    """rdtime."""
    return builder.call(declare(builder, "llvm.readsteadycounter", I64), [])
