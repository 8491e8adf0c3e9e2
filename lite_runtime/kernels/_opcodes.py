"""What the elementwise machines can do, as data shared by their kernels and by the planner (needs no compiler).

`steps/elementwise.py` declares the step. Parameters are two float32, or one int64. Of a load of integers into float32
they are the zero point and the scale: (x - zero point) * scale, 0 and 1 for a plain conversion; of a store of a kind in
QUANTISED likewise.
"""

from __future__ import annotations

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
]

LANE_GROUP = 16
"""Every loop runs over a multiple of this; blocks that are none pass through padded copies."""
LARGEST_BLOCK = 1024
SLOTS = 12
"""Registers 0..SLOTS-1: blocks of LARGEST_BLOCK elements on the stack."""
POINTERS = 10
"""Registers from SLOTS on: windows of operands, dense and of the machine's own type."""
MAX_RANK = 8

DENSE, ONCE, EXPAND, CONSTANT, OUTPUT = range(5)
"""How a register gets its block: the operand itself; broadcast once (its pattern repeats every block); broadcast block
by block; one value; nowhere (it is written to)."""

KINDS: dict[str, int] = {
    name: code
    for code, name in enumerate(
        "float32 bool uint8 int8 uint16 int16 uint32 int32 int64 float64 float16".split(),
    )
}
"""Element types that loads and stores convert from and to."""

QUANTISED: dict[str, int] = {name: 16 + KINDS[name] for name in ("uint8", "int8", "uint16", "int16")}
"""Kinds of stores that quantise: the low four bits are the element's own kind."""
MODERATE = (2.0**-100, 2.0**100)
"""Least and greatest scale of such a store."""

FLOAT_OPS: tuple[str, ...] = tuple(
    (
        "Copy Abs Neg Reciprocal Sqrt Square Cube PowHalf Ceil Floor Round Trunc Sign Exp Log Sigmoid Tanh "
        "Erf Softplus Softsign Mish Silu Gelu GeluTanh HardSwish Relu Sin Cos Tan Asin Acos Atan Sinh Cosh "
        "Asinh Acosh Atanh Not Bool IsNaN IsInf LeakyRelu Elu Celu Selu ThresholdedRelu Swish HardSigmoid "
        "Clip ShrinkFlat ShrinkBias AddBy MulBy SubFrom DivInto Add Sub Mul Div Max Min Mod FMod Pow PRelu "
        "Equal Less LessOrEqual And Or Xor Where MulAdd Normalize "
        "QuantizeUint8 QuantizeInt8 QuantizeUint16 QuantizeInt16"
    ).split()
)
"""Opcodes of elementwise.f32_chain by number; booleans are 0 and 1."""

INT_OPS: tuple[str, ...] = tuple(
    (
        "Copy Abs Neg Sign Relu Not Bool BitwiseNot Wrap8 Wrap16 Wrap32 WrapU8 WrapU16 WrapU32 Square Cube "
        "Add Sub Mul Div Max Min Mod FMod Equal Less LessOrEqual And Or Xor BitwiseAnd BitwiseOr BitwiseXor "
        "ShiftLeft ShiftRight Where"
    ).split()
)
"""Opcodes of elementwise.i64_chain by number."""
