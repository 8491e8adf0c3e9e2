"""LiteRT's fixed-point arithmetic: native equals reference bit for bit, and both their definitions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.reference.fixed_point import ROUNDINGS, SIGMOIDS
from tests.lite_runtime.ops.one_node import check

INPUTS = ("int8", "uint8", "int16", "int32", "int64")


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, bits: int) -> Array:
    ends = np.iinfo(dtype)
    low, high = max(ends.min, -(1 << bits)), min(ends.max, (1 << bits) - 1)
    return np.asarray(rng.integers(low, high, shape, dtype, endpoint=True))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("result", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("dtype", INPUTS)
def test_rescale(dtype: str, result: str, rounding: str) -> None:
    rng = np.random.default_rng(len(dtype) + len(result))
    bits = 8 * np.dtype(dtype).itemsize
    for shape, per in (((3, 70), ()), ((1000,), (1000,)), ((2, 5, 17), (17,)), ((2, 5, 17), (5, 1)), ((0, 3), ())):
        x = drawn(rng, shape, dtype, 30)
        multiplier = np.asarray(rng.integers(0, 1 << 31, per), np.int32)
        shift = np.asarray(rng.integers(20, min(31 + bits, 63), per), np.int32)
        zero = drawn(rng, (), result, 7)
        for middle in (None, drawn(rng, (), dtype, 7)):
            inputs = [x, multiplier, shift, zero, middle]
            for constants in ([1, 2, 3, 4], []):
                check("Rescale", inputs, {"rounding": rounding}, constants=constants, rtol=0, atol=0)


def half_up(x: Fraction) -> int:
    return (x + Fraction(1, 2)).__floor__()


def half_away(x: Fraction) -> int:
    return half_up(x) if x >= 0 else -half_up(-x)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rescale_is_exact(rounding: str) -> None:
    """Against fractions, with halves among the quotients; every shift."""
    rng = np.random.default_rng(3)
    for shift in range(46):
        x = rng.integers(-(1 << 20), 1 << 20, 50).astype(np.int32)
        multiplier = np.int32(rng.choice([1, 3, 1 << 15, 1 << 30, int(rng.integers(1, 1 << 31))]))
        zero = np.int32(7)
        (got,) = check(
            "Rescale", [x, np.asarray(multiplier), np.asarray(shift, np.int32), np.asarray(zero)],
            {"rounding": rounding}, constants=[1, 2, 3], rtol=0, atol=0,
        )  # fmt: skip
        for value, mine in zip(x.tolist(), np.asarray(got).tolist(), strict=True):
            product = Fraction(value * int(multiplier))
            if rounding == "AWAY":
                wanted = half_away(product / 2**shift)
            elif rounding == "UP" or shift <= 31:
                wanted = half_up(product / 2**shift)
            else:
                again = half_up if rounding == "TWICE" else half_away
                wanted = again(Fraction(half_up(product / 2**31), 2 ** (shift - 31)))
            assert mine == min(max(wanted + 7, -(2**31)), 2**31 - 1)


@pytest.mark.parametrize("bits", range(7))
@pytest.mark.parametrize("op", ["FixedPointSigmoid", "FixedPointTanh"])
def test_every_number(op: str, bits: int) -> None:
    x = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    (got,) = check(op, [x], {"integer_bits": bits}, rtol=0, atol=0)
    real = x.astype(np.float64) * 2.0 ** (bits - 15)
    wanted = np.tanh(real) if op == "FixedPointTanh" else (1 + np.tanh(real / 2)) / 2
    assert np.abs(np.asarray(got) / 32768 - wanted).max() < 5e-4


def test_short_and_odd_lengths() -> None:
    for n in (0, 1, 15, 17, 1025):
        x = np.random.default_rng(n).integers(-(1 << 15), 1 << 15, n).astype(np.int16)
        for op in ("FixedPointSigmoid", "FixedPointTanh"):
            check(op, [x], rtol=0, atol=0)


@pytest.mark.parametrize("op", ["FixedPointSigmoid", "FixedPointTanh"])
def test_interpolated_in_a_table(op: str) -> None:
    x = np.arange(-(1 << 15), 1 << 15, 3).astype(np.int32) * 7
    (got,) = check(op, [x], {"interpolated": 1}, rtol=0, atol=0)
    real = x / (3 * 4096)
    wanted = np.tanh(real) if op == "FixedPointTanh" else (1 + np.tanh(real / 2)) / 2
    assert np.abs(np.asarray(got) / 32768 - wanted).max() < 1e-3
    extremes = np.array([-(1 << 31), (1 << 31) - 1, 0, 1, -1], np.int32)
    check(op, [extremes], {"interpolated": 1}, rtol=0, atol=0)


def test_quotients() -> None:
    """Within a thousandth of the real one, where the dividend is large; operands of 17 bits."""
    rng = np.random.default_rng(5)
    for shapes in (((500,), (500,)), ((3, 1, 7), (5, 1)), ((0, 3), (3,))):
        a, b = (rng.integers(-(1 << 16), 1 << 16, shape).astype(np.int32) for shape in shapes)
        b[b == 0] = 3
        for shift in (25, 31, 35, 62):
            given = {"multiplier": int(rng.integers(1 << 30, 1 << 31)), "shift": shift}
            (got,) = check("FixedPointDiv", [a, b], given, rtol=0, atol=0)
            if shift == 25:
                wanted = a / b * given["multiplier"] / 2.0**25
                assert np.all((np.abs(got - wanted) <= 1 + np.abs(wanted) * 1e-3) | (np.abs(a) < 1 << 12))


def test_inverse_roots() -> None:
    rng = np.random.default_rng(6)
    numbers = [np.arange(1, 300), rng.integers(1, (1 << 31) - 1, 500), [(1 << 31) - 1, 0, -5]]
    x = np.concatenate(numbers).astype(np.int32)
    multiplier, shift = (
        np.asarray(check("FixedPointRsqrt", [x], {"part": part}, rtol=0, atol=0)[0], np.float64)
        for part in ("MULTIPLIER", "SHIFT")
    )
    np.testing.assert_allclose(multiplier[:-2] / 2.0 ** shift[:-2], x[:-2] ** -0.5, rtol=1e-4)
    check("FixedPointRsqrt", [np.zeros((0, 3), np.int32)], {"part": "SHIFT"}, rtol=0, atol=0)


def test_interpolated_table() -> None:
    rng = np.random.default_rng(7)
    table = np.sort(rng.integers(-(1 << 15), 1 << 15, 513)).astype(np.int16)
    x = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    (got,) = check("InterpolatedTable", [x, table], constants=[1], rtol=0, atol=0)
    wanted = np.interp(x.astype(np.float64), np.arange(513) * 128 - 32768, table)
    assert np.abs(got - wanted).max() <= 0.51
    for shape in ((3, 0), (5,), (2, 3, 37), ()):
        check("InterpolatedTable", [rng.integers(-9, 9, shape).astype(np.int16), table], constants=[1], rtol=0, atol=0)
    wild = rng.integers(-(1 << 15), 1 << 15, 513).astype(np.int16)
    check("InterpolatedTable", [x, wild], constants=[1], rtol=0, atol=0)


def test_the_table_of_sigmoid_stays_below_one() -> None:
    """Its error, and that between two numbers, is below 2**-13: more than the curvature would give without the
    correction."""
    steps = np.arange(256) / 24
    assert np.all(np.diff(SIGMOIDS) >= 0) and SIGMOIDS[0] == 1 << 15 and SIGMOIDS[-1] == (1 << 16) - 1
    assert np.abs(SIGMOIDS / 65536 - 1 / (1 + np.exp(-steps))).max() < 2.0**-13


@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
@pytest.mark.parametrize("group", [1, 2, 6])
def test_sixteen_bit_convolutions(group: int, activation: str) -> None:
    """QLinearConv with `rounding` FIXED, one group, several, and one channel each; sums of more than 32 bits."""
    rng = np.random.default_rng(group)
    for channels, filters, kernel, step in ((6, 6, (3, 3), 0.5), (6, 12, (1, 1), 1e-3), (6, 6, (2, 5), 3e-5)):
        x = drawn(rng, (2, 7, 6, channels), "int16", 15)
        w = drawn(rng, (filters, channels // group, *kernel), "int8", 7)
        scale = rng.uniform(0.001, 0.02, filters).astype(np.float32)
        bias = rng.integers(-(1 << 38), 1 << 38, filters)
        zero = np.zeros((), np.int16)
        operands = [x, np.float32(0.003), zero, w, scale, np.zeros(filters, np.int8), np.float32(step), zero, bias]
        attrs: dict[str, Any] = {"layout": "NHWC", "group": group, "pads": (1, 0, 1, 0), "activation": activation}
        attrs |= {"activation_min": -900.0 * step, "activation_max": 700.0 * step} if activation == "Clip" else {}
        given = [np.asarray(o) for o in operands]
        fixed = check("QLinearConv", given, {**attrs, "rounding": "FIXED"}, constants=range(1, 9), rtol=0, atol=0)
        plain = check("QLinearConv", given, attrs, constants=range(1, 9), rtol=0, atol=0)
        assert np.abs(fixed[0].astype(np.int64) - plain[0]).max() <= 2


ONE = Spec("int32", ())


@pytest.mark.parametrize(
    ("op", "specs", "attrs"),
    [
        ("Rescale", (Spec("float32", (3,)), ONE, ONE, ONE), {"rounding": "UP"}),
        ("Rescale", (Spec("int32", (3,)), Spec("int64", ()), ONE, ONE), {"rounding": "UP"}),
        ("Rescale", (Spec("int32", (3,)), ONE, ONE, Spec("int8", (3,))), {"rounding": "UP"}),
        ("Rescale", (Spec("int32", (3,)), ONE, ONE, ONE), {"rounding": "DOWN"}),
        ("Rescale", (Spec("int8", (3,)), ONE, ONE, ONE, ONE), {"rounding": "UP"}),
        ("FixedPointTanh", (Spec("int32", (3,)),), {}),
        ("FixedPointSigmoid", (Spec("int16", (3,)),), {"integer_bits": 7}),
    ],
)
def test_what_is_refused(op: str, specs: tuple[Spec, ...], attrs: dict[str, Any]) -> None:
    node = Node(op, tuple("abcde"[: len(specs)]), ("y",), attrs, "it")
    with pytest.raises(ShapeError, match=op):
        INFERS[op](Inference(node, specs, (None,) * len(specs)))
