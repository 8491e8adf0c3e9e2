"""Operations by RISC-V's instructions."""

from __future__ import annotations

from lite_runtime.native.codegen import without_masks
from lite_runtime.native.codegen.operations import I64, VOID, Emit, declare, intrinsic
from lite_runtime.targets import ROWS, Target

__all__ = ["bodies"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    alone: dict[str, Emit] = {"pause": pause, "clock": clock}
    return {
        ("rint", 0): rint,
        **{(name, 1): emit for name, emit in alone.items()},
        **({} if "v" in target.needs else without_masks.bodies(target.lanes, ROWS)),
    }


def rint(builder, lanes, value):
    """With the rounding mode in the instruction; `nearbyint` would be a call of libm."""
    return intrinsic(builder, "roundeven", value)


def pause(builder, lanes):
    """pause, a hint that processors without it ignore."""
    builder.call(declare(builder, "llvm.riscv.pause", VOID), [])


def clock(builder, lanes, ask):
    """rdtime."""
    return builder.call(declare(builder, "llvm.readsteadycounter", I64), [])
