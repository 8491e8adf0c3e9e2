"""Arithmetic of one or two operands, element by element, with NumPy's broadcasting."""

from __future__ import annotations

import onnx_ir as ir

from converter.frontends.tflite.op import Op, named, translate
from converter.frontends.tflite.ops.operands import cast, payload

__all__: list[str] = []

_BINARY = named({"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "POW": "Pow"})
_EXTREMES = named({"MAXIMUM": "Max", "MINIMUM": "Min"})
_UNARY = named({
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "LOG": "Log",
    "NEG": "Neg",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
})
_BITS = named({"BITWISE_XOR": "BitwiseXor"})


@translate(*_BINARY)
def binary(op: Op) -> ir.Value:
    """Integers: DIV truncates, as ONNX's does."""
    return op.activation(op.emit(_BINARY[op.name], [op.real(0), op.real(1)]))


@translate(*_EXTREMES)
def extreme(op: Op) -> ir.Value:
    """The larger or smaller of two."""
    return op.emit(_EXTREMES[op.name], payload(op, 0, 1))


@translate(*_UNARY)
def unary(op: Op) -> ir.Value:
    """One ONNX operator of the same meaning. ROUND rounds halves to even."""
    return op.emit(_UNARY[op.name], [op.real(0)])


@translate(*_BITS)
def bits(op: Op) -> ir.Value:
    """Bitwise on integers."""
    return op.emit(_BITS[op.name], [op.raw(0), op.raw(1)])


@translate("RIGHT_SHIFT")
def right_shift(op: Op) -> ir.Value:
    """x >> n, arithmetic for signed types, n cut to 0 … bits - 1. ONNX shifts unsigned types only, so a signed one is
    floor-divided by 2^n: (x - x mod 2^n) / 2^n in int64, where no step overflows for n < 32.
    """
    dtype = op.output().dtype or ir.DataType.INT32
    top = dtype.itemsize * 8 - 1
    wide = ir.DataType.INT64
    shift = op.emit("Clip", [cast(op, op.raw(1), wide), op.constant(0), op.constant(int(top))])
    power = cast(op, op.emit("Pow", [op.constant(2.0), cast(op, shift, ir.DataType.FLOAT)]), wide)
    return cast(op, _floor_div(op, cast(op, op.raw(0), wide), power), dtype)


@translate("SQUARE")
def square(op: Op) -> ir.Value:
    """x * x."""
    x = op.real(0)
    return op.emit("Mul", [x, x])


@translate("RSQRT")
def rsqrt(op: Op) -> ir.Value:
    """1 / sqrt(x)."""
    return op.emit("Reciprocal", [op.emit("Sqrt", [op.real(0)])])


@translate("SQUARED_DIFFERENCE")
def squared_difference(op: Op) -> ir.Value:
    """(a - b)^2."""
    difference = op.emit("Sub", [op.real(0), op.real(1)])
    return op.emit("Mul", [difference, difference])


@translate("ADD_N")
def add_n(op: Op) -> ir.Value:
    """The sum of all operands."""
    total = op.real(0)
    for i in range(1, op.count_inputs):
        total = op.emit("Add", [total, op.real(i)])
    return total


@translate("FLOOR_DIV")
def floor_div(op: Op) -> ir.Value:
    """The quotient rounded towards minus infinity."""
    a, b = op.real(0), op.real(1)
    if _is_float(a):
        return op.emit("Floor", [op.emit("Div", [a, b])])
    return _floor_div(op, a, b)


@translate("FLOOR_MOD")
def floor_mod(op: Op) -> ir.Value:
    """The remainder with the divisor's sign."""
    a, b = op.real(0), op.real(1)
    if not _is_float(a):
        return op.emit("Mod", [a, b])
    remainder = op.emit("Mod", [a, b], {"fmod": 1})
    zero = cast(op, op.constant(0.0), a.dtype)
    apart = op.emit("Xor", [op.emit("Less", [b, zero]), op.emit("Less", [remainder, zero])])
    wrong = op.emit("And", [apart, op.emit("Not", [op.emit("Equal", [remainder, zero])])])
    return op.emit("Where", [wrong, op.emit("Add", [remainder, b]), remainder])


@translate("ATAN2")
def atan2(op: Op) -> ir.Value:
    """The angle of (x, y) in (-pi, pi]: atan(y / x), half a turn further where x < 0; +-pi/2 where x is 0."""
    y, x = op.real(0), op.real(1)
    zero, quarter, half = (cast(op, op.constant(v), y.dtype) for v in (0.0, 1.5707963267948966, 3.141592653589793))
    below = op.emit("Less", [y, zero])
    turned = op.emit("Where", [below, op.emit("Neg", [half]), half])
    beside = op.emit("Where", [below, op.emit("Neg", [quarter]), quarter])
    slope = op.emit("Atan", [op.emit("Div", [y, x])])
    angle = op.emit("Where", [op.emit("Less", [x, zero]), op.emit("Add", [slope, turned]), slope])
    upright = op.emit("Where", [op.emit("Equal", [y, zero]), zero, beside])
    return op.emit("Where", [op.emit("Equal", [x, zero]), upright, angle])


def _floor_div(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    """Of integers: one less than the quotient towards zero where there is a remainder and the signs differ."""
    zero, one = (cast(op, op.constant(n), a.dtype) for n in (0, 1))
    apart = op.emit("Xor", [op.emit("Less", [a, zero]), op.emit("Less", [b, zero])])
    exact = op.emit("Equal", [op.emit("Mod", [a, b]), zero])
    quotient = op.emit("Div", [a, b])
    below = op.emit("And", [apart, op.emit("Not", [exact])])
    return op.emit("Where", [below, op.emit("Sub", [quotient, one]), quotient])


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()
