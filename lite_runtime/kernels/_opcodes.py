"""The operations of the elementwise machines, as data shared by their kernels and the planner (needs no compiler).

`steps/elementwise.py` declares the step. Parameters are two float32 or one int64. For a load of integers into float32
they are the zero point and the scale: (x - zero point) * scale, with 0 and 1 for a plain conversion; the same holds for
a store of a kind in QUANTISED.
"""

from __future__ import annotations

from lite_runtime.operators import family

__all__ = [
    "CONSTANT",
    "DENSE",
    "EXPAND",
    "FLOAT_OPS",
    "INT_OPS",
    "KINDS",
    "LANE_GROUP",
    "LARGEST_BLOCK",
    "MAX_RANK",
    "MODERATE",
    "ONCE",
    "OUTPUT",
    "POINTERS",
    "QUANTISED",
    "SLOTS",
    "SMALL_BLOCK",
]

LANE_GROUP = 16
"""Every loop runs over a multiple of this; blocks of other lengths are copied and padded."""
LARGEST_BLOCK, SMALL_BLOCK = 1024, 16
SLOTS = 12
"""Registers 0..SLOTS-1: blocks of LARGEST_BLOCK elements on the stack; of SMALL_BLOCK where stacks are small."""
POINTERS = 10
"""Registers from SLOTS on: windows into operands that are dense and of the machine's own type."""
MAX_RANK = 8

DENSE, ONCE, EXPAND, CONSTANT, OUTPUT = range(5)
"""How a register gets its block: the operand itself; broadcast once (its pattern repeats every block); broadcast for
each block; one value; not at all (it is only written)."""

KINDS: dict[str, int] = {
    name: code
    for code, name in enumerate(
        "float32 bool uint8 int8 uint16 int16 uint32 int32 int64 float64 float16".split(),
    )
}
"""Element types that loads convert from and stores convert to."""

QUANTISED: dict[str, int] = {name: 16 + KINDS[name] for name in ("uint8", "int8", "uint16", "int16")}
"""Kinds of stores that quantise: the low four bits are the element's own kind."""
MODERATE = (2.0**-100, 2.0**100)
"""Lowest and highest scale of such a store."""

_OWN_FLOAT: dict[str, int] = {
    **{"Copy": 0, "Square": 5, "Cube": 6, "PowHalf": 7, "Trunc": 11, "GeluTanh": 23, "Bool": 38},
    **{"ShrinkFlat": 49, "ShrinkBias": 50, "AddBy": 51, "MulBy": 52, "SubFrom": 53, "DivInto": 54, "FMod": 62},
    **{"MulAdd": 72, "Normalize": 73},
    **{"QuantizeUint8": 74, "QuantizeInt8": 75, "QuantizeUint16": 76, "QuantizeInt16": 77},
}
_OWN_INT: dict[str, int] = {
    **{"Copy": 0, "Bool": 6, "Square": 14, "Cube": 15, "FMod": 23, "ShiftLeft": 33, "ShiftRight": 34},
    **{"FixedPointSigmoid": 36, "FixedPointTanh": 37, "RescaleUp": 38, "RescaleAway": 39, "RescaleDouble": 40},
    **{"FixedPointDiv": 41, "InverseRoot": 42, "InverseRootShift": 43, "TableSigmoid": 44, "TableTanh": 45},
    **{"RescaleTwice": 46},
    **{"Wrap8": 8, "Wrap16": 9, "Wrap32": 10, "WrapU8": 11, "WrapU16": 12, "WrapU32": 13},
}
"""Instructions that do not correspond to an operator."""


def _numbered(machine: str, codes: dict[str, int]) -> tuple[str, ...]:
    """The names of all instructions by number. The numbers of operators are in their records."""
    found = dict(codes)
    for record in (*family("elementwise"), *family("activation")):
        code = record.f32 if machine == "f32" else record.i64
        if code >= 0:
            found[record.name] = code
    if sorted(found.values()) != list(range(len(found))):
        raise ValueError(f"expected the {machine} instructions to have the numbers 0 to {len(found) - 1}, each once")
    return tuple(sorted(found, key=found.__getitem__))


FLOAT_OPS: tuple[str, ...] = _numbered("f32", _OWN_FLOAT)
"""Opcodes of elementwise.f32_chain by number; booleans are 0 and 1."""

INT_OPS: tuple[str, ...] = _numbered("i64", _OWN_INT)
"""Opcodes of elementwise.i64_chain by number."""
