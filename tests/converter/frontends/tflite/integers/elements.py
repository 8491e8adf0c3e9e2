"""Functions of elements, comparisons, reductions and conversions."""

from __future__ import annotations

import numpy as np

from tests.converter.frontends.tflite.builder import Quant
from tests.converter.frontends.tflite.integers.drafts import BYTES, STORED, Draft, case, near

__all__ = ["pair"]

_POSITIVE = {"LOG": 1, "RSQRT": 1, "SQRT": 0}
"""The least stored number less the zero point."""
_REACH = {"EXP": 0.01, "LOG": 0.03, "SQRT": 0.01, "RSQRT": 0.02}
"""What a result of bytes counts in."""


# of one operand


@case("ABS", "int8", "int16")
@case("NEG", "int8")
@case("RELU RELU6 LEAKY_RELU GELU", *STORED)
@case("RELU_N1_TO_1 RELU_0_TO_1 HARD_SWISH", *BYTES)
@case("ELU", "int8")
def function(d: Draft, op: str, dtype: str) -> None:
    q = d.quant(dtype)
    options = {
        "LEAKY_RELU": {"alpha": float(d.rng.choice([0.0, 0.01, 0.2, 1.5]))},
        "GELU": {"approximate": d.chance()},
    }.get(op, {})
    d.result(op, [d.entry(d.shape(), dtype, q)], dtype, d.quant(dtype, near(d, q.scale)), **options)


@case("EXP LOG SQRT RSQRT", "int8", "int16")
def power(d: Draft, op: str, dtype: str) -> None:
    least = np.iinfo(dtype).min
    q = d.quant(dtype, zero=None if op == "EXP" else int(least))
    data = d.numbers(d.shape(), dtype)
    if dtype == "int16" and op != "EXP":
        data = np.clip(np.abs(data.astype(int)), _POSITIVE[op], 32767)
    y = d.quant(dtype, near(d, _REACH[op] * (0.01 if dtype == "int16" else 1)))
    d.result(op, [d.entry(data.shape, dtype, q, data)], dtype, y)


@case("LOGISTIC TANH", *STORED, "int16, a power of two")
def sigmoid(d: Draft, op: str, types: str) -> None:
    dtype = types.split(",")[0]
    x = d.quant(dtype, 2.0 ** -d.some(9, 16)) if "power" in types else d.quant(dtype)
    zero = {"LOGISTIC": {"int8": -128}, "TANH": {"uint8": 128}}[op].get(dtype, 0)
    step = 1 / 32768 if dtype == "int16" else {"LOGISTIC": 1 / 256, "TANH": 1 / 128}[op]
    d.result(op, [d.entry(d.shape(), dtype, x)], dtype, Quant(step, zero))


_SHARES = {"int8": Quant(1 / 256, -128), "uint8": Quant(1 / 256, 0), "int16": Quant(1 / 32768, 0)}
_LOGARITHMS = {"int8": Quant(16 / 256, 127), "uint8": Quant(16 / 256, 255)}


@case("SOFTMAX", *STORED, "int8 to int16", "uint8 to int16")
def softmax(d: Draft, op: str, types: str) -> None:
    dtype, _, wide = types.partition(" to ")
    beta = float(d.rng.choice([1.0, 1.0, 1.0, 0.5, 2.0]))
    y = Quant(1 / 65536, -32768) if wide else _SHARES[dtype]
    d.result(op, [d.entry(d.shape(), dtype, d.quant(dtype))], wide or dtype, y, beta=1.0 if wide else beta)


@case("LOG_SOFTMAX", *BYTES)
def log_softmax(d: Draft, op: str, dtype: str) -> None:
    d.result(op, [d.entry(d.shape(), dtype, d.quant(dtype))], dtype, _LOGARITHMS[dtype])


@case("L2_NORMALIZATION", *BYTES)
def l2_normalization(d: Draft, op: str, dtype: str) -> None:
    x = d.entry(d.shape(rank=d.some(2, 5)), dtype, d.quant(dtype))
    d.result(op, [x], dtype, Quant(1 / 128, 0 if dtype == "int8" else 128))


# of two operands


def pair(d: Draft) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that broadcast: alike, a row, or ones anywhere."""
    shape, kind = d.shape(), d.some(0, 5)
    if kind <= 1:
        return shape, shape
    if kind == 2:
        return shape, shape[-1:]
    ones = tuple(1 if d.chance() else n for n in shape)
    return (shape, ones) if kind == 3 or not d.chance() else (ones, shape)


@case("ADD SUB MUL DIV", *STORED)
@case("SQUARED_DIFFERENCE", "int8")
def arithmetic(d: Draft, op: str, dtype: str) -> None:
    (a, b), wide = pair(d), dtype == "int16"
    if d.chance():
        a, b = b, a
    left = d.quant(dtype)
    right = d.quant(dtype, left.scale * np.exp(d.rng.uniform(-2, 2)))
    step = {
        "MUL": left.scale * right.scale * (16384 if wide else 64),
        "SQUARED_DIFFERENCE": left.scale**2 * 128,
        "DIV": left.scale / right.scale / 30,
    }.get(op, max(left.scale, right.scale))
    data = d.numbers(b, dtype)
    if op == "DIV":
        other = right.zero_point + (1 if right.zero_point < np.iinfo(dtype).max else -1)
        data = np.where(data == right.zero_point, other, data).astype(dtype)
    x = d.entry(a, dtype, left)
    y = d.const(data, dtype, right) if d.chance(0.4) else d.entry(b, dtype, right, data)
    options = {} if op == "SQUARED_DIFFERENCE" else d.activation()
    d.result(op, [x, y], dtype, d.quant(dtype, near(d, step)), **options)


@case("ADD SUB MUL", *(f"{dtype}, far scales" for dtype in STORED))
def far_scales(d: Draft, op: str, types: str) -> None:
    dtype, (a, b) = types.split(",")[0], pair(d)
    left, right = d.quant(dtype), d.quant(dtype)
    step = left.scale * right.scale * np.exp(d.rng.uniform(0, 14))
    if op != "MUL":
        right = d.quant(dtype, left.scale * np.exp(d.rng.uniform(-9, 9)))
        step = max(left.scale, right.scale) * np.exp(d.rng.uniform(-4.5, 8))
    d.result(op, [d.entry(a, dtype, left), d.entry(b, dtype, right)], dtype, d.quant(dtype, step), **d.activation())


@case("ADD SUB", "int16, powers of two")
def powers_of_two(d: Draft, op: str, types: str) -> None:
    a, _ = pair(d)
    out = -d.some(8, 14)
    quants = [Quant(2.0 ** (out - d.some(0, 2)), 0), Quant(2.0**out, 0)]
    first, second = quants if d.chance() else quants[::-1]
    operands = [d.entry(a, "int16", first), d.entry(a, "int16", second)]
    d.result(op, operands, "int16", Quant(2.0**out, 0), pot_scale_int16=True, **d.activation())


@case("ADD SUB MUL DIV MAXIMUM MINIMUM POW SQUARED_DIFFERENCE", "int32")
@case("FLOOR_DIV FLOOR_MOD", "int8", "int16", "int32")
@case("BITWISE_XOR", *STORED, "int32")
def whole(d: Draft, op: str, dtype: str) -> None:
    """Integers that mean themselves."""
    low, high = {"POW": (1, 6)}.get(op, (-100, 100) if dtype != "int32" else (-40000, 40000))
    x, y = (d.rng.integers(0 if dtype == "uint8" else low, high, shape).astype(dtype) for shape in pair(d))
    y = np.where(y == 0, 3, y).astype(dtype)
    options = d.activation() if op in ("ADD", "SUB", "MUL", "DIV") else {}
    d.result(op, [d.entry(x.shape, dtype, None, x), d.entry(y.shape, dtype, None, y)], dtype, **options)


@case("RIGHT_SHIFT", *STORED, "int32")
def shift(d: Draft, op: str, dtype: str) -> None:
    a, b = pair(d)
    by = d.rng.integers(0, np.iinfo(dtype).bits, b).astype(dtype)
    d.result(op, [d.entry(a, dtype), d.entry(b, dtype, None, by)], dtype)


@case("MAXIMUM MINIMUM", *STORED)
def extreme(d: Draft, op: str, dtype: str) -> None:
    (a, b), q = pair(d), d.quant(dtype)
    d.result(op, [d.entry(a, dtype, q), d.entry(b, dtype, q)], dtype, q)


@case("PRELU", *BYTES, "int16 x int8")
def prelu(d: Draft, op: str, types: str) -> None:
    dtype, _, narrow = types.partition(" x ")
    shape = d.shape(rank=d.some(2, 5))
    slopes = (1,) * (len(shape) - 2) + shape[-1:] if narrow or d.chance(0.7) else shape[1:]
    x = d.quant(dtype)
    by = d.quant(narrow or dtype, np.exp(d.rng.uniform(-6, -3)), 0 if narrow else None)
    operands = [d.entry(shape, dtype, x), d.const(d.numbers(slopes, narrow or dtype), narrow or dtype, by)]
    d.result(op, operands, dtype, d.quant(dtype, near(d, x.scale)))


@case("EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL", *STORED)
def comparison(d: Draft, op: str, dtype: str) -> None:
    (a, b), left = pair(d), d.quant(dtype)
    right = d.quant(dtype, left.scale * np.exp(d.rng.uniform(-1, 1))) if d.chance(0.7) else left
    d.result(op, [d.entry(a, dtype, left), d.entry(b, dtype, right)], "bool")


# reductions, searches and running sums


@case("MEAN SUM REDUCE_MAX REDUCE_MIN", *STORED)
@case("REDUCE_PROD", "int8", "int16")
def reduction(d: Draft, op: str, dtype: str) -> None:
    shape = d.shape()
    axes = sorted(d.rng.choice(len(shape), d.some(1, len(shape) + 1), replace=False).tolist())
    x = y = d.quant(dtype)
    if op == "REDUCE_PROD":
        y = d.quant(dtype, near(d, 0.01))
    elif op == "SUM":
        y = d.quant(dtype, near(d, x.scale * np.prod([shape[a] for a in axes]) ** 0.5))
    elif op == "MEAN" and d.chance(0.6):
        y = d.quant(dtype, near(d, x.scale))
    d.result(op, [d.entry(shape, dtype, x), d.ints(*axes)], dtype, y, keep_dims=d.chance())


@case("ARG_MAX ARG_MIN", *BYTES)
def search(d: Draft, op: str, dtype: str) -> None:
    shape = d.shape()
    operands = [d.entry(shape, dtype, d.quant(dtype)), d.ints(d.some(0, len(shape)))]
    d.result(op, operands, "int32", output_type="INT32")


@case("TOPK_V2", *STORED)
def top(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(), d.quant(dtype)
    operands = [d.entry(shape, dtype, q), d.const(np.int32(d.some(1, shape[-1] + 1)))]
    d.results(op, operands, [(dtype, q), ("int32", None)])


@case("CUMSUM ADD_N", "int32")
def running(d: Draft, op: str, dtype: str) -> None:
    shape = d.shape()
    parts = [d.entry(shape, dtype, None, d.rng.integers(-1000, 1000, shape)) for _ in range(3 if op == "ADD_N" else 1)]
    if op == "ADD_N":
        d.result(op, parts, dtype)
    else:
        axis = d.const(np.int32(d.some(0, len(shape))))
        d.result(op, [*parts, axis], dtype, exclusive=d.chance(), reverse=d.chance())


# conversions


@case("QUANTIZE", *(f"{a} to {b}" for a in ("float32", *STORED) for b in STORED if (a, b) != ("int16", "uint8")))
def quantize(d: Draft, op: str, types: str) -> None:
    source, target = types.split(" to ")
    x = None if source == "float32" else d.quant(source)
    step = 0.02 if x is None else float(x.scale)
    step *= {"int16": 100}.get(source, 1) / {"int16": 100}.get(target, 1)
    d.result(op, [d.entry(d.shape(), source, x)], target, d.quant(target, near(d, step)))


@case("DEQUANTIZE", *STORED)
def dequantize(d: Draft, op: str, dtype: str) -> None:
    d.result(op, [d.entry(d.shape(), dtype, d.quant(dtype))])


@case("CAST", *STORED)
def cast(d: Draft, op: str, dtype: str) -> None:
    target = str(d.rng.choice(["float32", "int32", *STORED]))
    d.result(op, [d.entry(d.shape(), dtype)], target, in_data_type=dtype.upper(), out_data_type=target.upper())
