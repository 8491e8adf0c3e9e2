"""Operations by the instructions of Cortex-M: DSP (M4, M7), Helium (M55)."""

from __future__ import annotations

from lite_runtime.native.codegen import without_masks
from lite_runtime.native.codegen.armv7 import from_half, rounding, signed_input, to_half, yes
from lite_runtime.native.codegen.operations import I32, Emit, declare
from lite_runtime.targets import ROWS, Target

__all__ = ["bodies"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    own: dict[str, Emit] = {"input_dot": signed_input, **_DOTS[target.dot]}
    found: dict[tuple[str, int], Emit] = {(name, target.lanes): emit for name, emit in own.items()}
    found["inputs_are_signed", 1] = yes
    if target.shape.vectors:  # like NEON, Helium takes subnormal float32 for zero
        found |= {(name, lanes): emit for name, emit in _HALVES.items() for lanes in (target.lanes, ROWS)}
    else:
        found |= without_masks.bodies(target.lanes, ROWS)
    if target.cpu == "cortex-m4":
        found |= {(name, 0): emit for name, emit in rounding().items()}
    return found


_HALVES: dict[str, Emit] = {"from_half": from_half, "to_half": to_half}


def _call(builder, name, *operands):
    return builder.call(declare(builder, f"llvm.arm.{name}", I32, *[I32] * len(operands)), operands)


def _by_lane(builder, so_far, a, b, one):
    """A vector that holds, for every lane, one(sum so far, the lane's word of a, of b)."""
    a, b = (builder.bitcast(operand, so_far.type) for operand in (a, b))
    for i in range(so_far.type.count):
        parts = (builder.extract_element(value, I32(i)) for value in (so_far, a, b))
        so_far = builder.insert_element(so_far, one(*parts), I32(i))
    return so_far


def smlad_pairs(builder, lanes, so_far, a, b):
    """smlad: two products of int16 and their sum."""
    return _by_lane(builder, so_far, a, b, lambda now, x, y: _call(builder, "smlad", x, y, now))


def _turned(builder, word):
    """A word turned by a byte, which sxtb16 and uxtb16 do by themselves."""
    return builder.call(declare(builder, "llvm.fshr.i32", I32, I32, I32, I32), [word, word, I32(8)])


def _smlad_bytes(extend):
    """Four products of bytes: sxtb16 or uxtb16 makes int16 of every second byte."""

    def emit(builder, lanes, so_far, a, w):
        def one(now, x, y):
            for _ in range(2):
                now = _call(builder, "smlad", _call(builder, extend, x), _call(builder, "sxtb16", y), now)
                x, y = (_turned(builder, value) for value in (x, y))
            return now

        return _by_lane(builder, so_far, a, w, one)

    return emit


def vmull_pairs(builder, lanes, so_far, a, b):
    """vmullb, vmullt: products of the lower and of the upper int16 of every lane."""
    kinds = so_far.type, a.type, b.type, I32, I32
    function = declare(builder, "llvm.arm.mve.vmull.v4i32.v8i16", *kinds)
    for upper in (0, 1):
        so_far = builder.add(so_far, builder.call(function, [a, b, I32(0), I32(upper)]))
    return so_far


_DOTS: dict[str, dict[str, Emit]] = {
    "smlad": {"pair_dot": smlad_pairs, "dot": _smlad_bytes("uxtb16"), "signed_dot": _smlad_bytes("sxtb16")},
    "vmull": {"pair_dot": vmull_pairs},
}
"""By `Target.dot`."""
