"""Numbers in JSON's text: the bits Python gives, nothing touched beyond the text, anything unusual left alone."""

from __future__ import annotations

import ctypes
import json
import random
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.protocol import numbers
from lite_runtime.graph import Array
from lite_runtime.native import build
from lite_runtime.running.guard import guarded
from tests.lite_runtime.ops.targets import on_other_targets, run_on

pytestmark = pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")


@cache
def powers() -> Array:
    return numbers._powers()


def read(text: bytes, *, front: bool = False) -> tuple[int, int, list[int], Array, list[Sequence[int]]]:
    """Kind, stop, extents, elements' words and what was left, by native code between forbidden pages."""
    address, word = ctypes.c_void_p, ctypes.c_int64
    native = build.function("jsontext", "numbers", address, word, word, address, address, address)
    source = guarded(np.frombuffer(text, np.uint8), front=front)
    values = guarded(np.zeros(max(len(text) // 2, 1), np.int64))
    said = guarded(np.full(numbers.LEFTOVERS + 3 * numbers.PATIENCE, -1, np.int64))
    before = powers().copy()
    native(source.ctypes.data, 0, len(text), values.ctypes.data, powers().ctypes.data, said.ctypes.data)
    assert np.array_equal(before, powers()) and source.tobytes() == text
    kind, stop, count, depth, left = said[: numbers.LEFT + 1].tolist()
    extents = said[numbers.EXTENTS : numbers.EXTENTS + depth].tolist()
    lefts = said[numbers.LEFTOVERS : numbers.LEFTOVERS + 3 * left].reshape(left, 3).tolist()
    return kind, stop, extents, values[:count].copy(), lefts


def check_reals(tokens: Sequence[str], least_native: float = 0.0) -> None:
    """An array of these, which begins with a real one, is what float() gives; most of them natively."""
    text = f"[1.5,{','.join(tokens)}]".encode()
    kind, stop, extents, words, left = read(text)
    assert (kind, stop, extents) == (2, len(text), [len(tokens) + 1])
    for element, start, end in left:
        words[element] = struct.unpack("<q", struct.pack("<d", float(text[start:end])))[0]
    want = np.array([1.5, *(float(json.loads(t)) for t in tokens)]).view(np.int64)
    wrong = np.flatnonzero(words != want)
    assert not wrong.size, (tokens[wrong[0] - 1], words[wrong[0]], want[wrong[0]])
    assert len(left) <= (1 - least_native) * len(tokens)


def tokens(seed: int, n: int) -> Iterator[str]:
    """Numbers as clients write them, and as they would to hit every branch: ties and their neighbours among them."""
    rng = random.Random(seed)

    def any_float() -> float:
        return float(struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64) % (0x7FF << 52)))[0])

    def midpoint(digits: int) -> str:
        """The midpoint between two neighbouring float64, rounded to a number of digits."""
        with localcontext() as context:
            context.prec = 1200
            x = any_float()
            middle = (Decimal(x) + Decimal(float(np.nextafter(x, 0)))) / 2
            context.prec = digits
            return f"{+middle:e}".replace("E", "e")

    def tie() -> str:
        """Halfway exactly, in at most 19 digits."""
        return f"{(2 * (rng.getrandbits(52) | 1 << 52) + 1) << rng.randrange(9)}e0"

    makers = (
        lambda: repr(any_float()),
        lambda: repr(float(np.float32(rng.gauss(0, 1)))),
        lambda: str(np.float32(rng.gauss(0, 1))),
        lambda: repr(rng.random()),
        lambda: f"{rng.gauss(0, 100):.{rng.randrange(1, 20)}f}",
        lambda: f"{rng.choice(['', '-'])}{rng.randrange(10 ** rng.randrange(1, 19))}E{rng.randrange(-345, 300)}",
        lambda: f"0.{'0' * rng.randrange(20)}{rng.randrange(10 ** rng.randrange(1, 24))}",
        lambda: f"-{rng.randrange(1 << 53)}",
        lambda: midpoint(rng.choice((17, 18, 19, 20, 25))),
        tie,
    )
    for i in range(n):
        token = makers[i % len(makers)]()
        yield token if abs(float(token)) < 1e308 else "0.25"


def test_random_numbers_are_read_as_by_python() -> None:
    drawn = list(tokens(7, 40_000))
    for i in range(0, len(drawn), 100):
        check_reals(drawn[i : i + 100])


def other_targets() -> None:
    drawn = list(tokens(8, 5_000))
    for i in range(0, len(drawn), 100):
        check_reals(drawn[i : i + 100])


@on_other_targets
def test_every_vector_width_gives_the_same(target: str) -> None:
    run_on(target, other_targets)


@pytest.mark.parametrize("decimals", range(1, 19))
def test_typical_client_numbers_need_no_second_reading(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    drawn = rng.standard_normal(300)
    check_reals([f"{x:.{decimals}f}" for x in drawn], 1.0)
    check_reals([repr(float(x)) for x in drawn.astype(np.float32)], 1.0)
    check_reals([repr(x) for x in drawn.tolist()], 1.0)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60))
def test_floats(drawn: list[float]) -> None:
    check_reals([repr(x) for x in drawn])


_DECIMALS = r"-?(0|[1-9][0-9]{0,22})\.[0-9]{1,22}([eE][+-]?[0-9]{1,2})?"


@given(st.lists(st.from_regex(_DECIMALS, fullmatch=True), min_size=1))
def test_decimals(drawn: list[str]) -> None:
    check_reals(drawn)


@pytest.mark.parametrize(
    "token",
    "0.0 -0.0 -0 0e5 0.00000000000000000000 1e23 9007199254740993.0 9007199254740993e0 9007199254740991.5 "
    "4503599627370497.5 2.2250738585072014e-308 2.2250738585072011e-308 5e-324 2.47e-324 1e-400 1.7976931348623157e308 "
    "1.7976931348623158e308 9999999999999999999e-19 18446744073709551615.0 18446744073709551616.0 0.1e1 1E+2 1e-0 "
    "123456789.123456789 12345678901234567890.5 0.3 0.30000000000000004 7.2057594037927933e16 1e22 1e-22 1e00000000001 "
    "0.500000000000000166533453693773481063544750213623046875 9214843084008499.0 6929495644600919.5 "
    "3.3e-27 6.1e-28 5e-28 1125899906842624.125 1125899906842624.375 -9007199254740992".split(),
)  # fmt: skip
def test_hard_numbers(token: str) -> None:
    check_reals([token])
    check_reals([token] * 40)
    check_reals(["0.1", token, " " + token + "\n"] * 20)


@pytest.mark.parametrize("low, high", [(0, 9), (0, 255), (-128, 127), (-(10**17), 10**17), (-(2**63), 2**63 - 1)])
@pytest.mark.parametrize("separator", [",", ", ", " ,\r\n\t"])
def test_integers_stay_exact(low: int, high: int, separator: str) -> None:
    rng = random.Random(low)
    for n in (1, 2, 17, 300):
        drawn = [rng.randint(low, high) for _ in range(n - 1)] + [low]
        text = f"[{separator.join(map(str, drawn))}]".encode()
        kind, stop, extents, words, left = read(text)
        assert (kind, stop, extents, left) == (1, len(text), [n], [])
        assert words.tolist() == drawn


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1), (4, 3), (1, 3, 32, 32), (2, 1, 5, 1, 3), (1,) * 8])
def test_nesting_is_the_shape(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    for whole in (x, (1000 * x).astype(np.int64)):
        text = str(whole.tolist()).encode()
        kind, stop, extents, words, left = read(text)
        assert (stop, tuple(extents), left) == (len(text), shape, [])
        assert np.array_equal(words.view(whole.dtype).reshape(shape), whole)
        assert kind == (1 if whole.dtype == np.int64 else 2)


REFUSED = (
    *"[] [[]] [1,] [,1] [1,,2] [1 1.0.0] 1] 1,2] ,1] [1.] [.5] [01] [-01] [00] [-] [--1] [+1] [1e] [1e+] [1e-]".split(),
    *"[1e1.5] [1.e1] [0x10] [1_000] [1.5.5] [NaN] [Infinity] [-Infinity] [nan] [true] [null] [1,null] [{}]".split(),
    *'["1"] [1,"a"] [[1],2] [1,[2]] [[1,2],[3]] [[1],[2,3]] [[1,2],3] [[1],[[2]]] [[1] 1 {} {"a":1}'.split(),
    *"[1;2] [1:2] [1/2] [1a] [1.5f] [1.5e5x] [9223372036854775808] [-9223372036854775809]".split(),
    *"[1.5,9007199254740993] [9007199254740993,1.5]".split(),
    *"[1.5,12345678901234567890] [123456789012345678901234567890]".split(),
    *"[[[[[[[[[1]]]]]]]]] [1.2345678-] [1-1] [0.12345678a] [0.1234567:12345678] [0.12345678/1234567]".split(),
    *"[1.2345678901234:67] [-a.5] [:.5] [/.5]".split(),
    *("[1 2]", "[1. 5]", "[- 1]", "[1 .5]", "[1e 5]", "[1\0]", "[1\v,2]", "[\u0661]", "[\uff11]", "", " "),
)


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("others", [0, 40])
def test_anything_else_is_left_alone(text: str, others: int) -> None:
    """Alone, and behind and before many that are as they should be."""
    for usual in ("0.1234567", "77", "123456789"):
        row = f"{usual}," * others
        whole = text.replace("[", f"[{row}", 1) if text[:2] != "[[" else text
        assert read(whole.encode())[0] == 0 or not whole
        behind = whole[:-1] + f",{row}1]"
        assert read(behind.encode())[0] == 0


def test_nothing_beyond_the_text_is_read() -> None:
    """Every beginning of documents of all sorts, the byte behind it and the one before it forbidden."""
    for text in (
        b"[0.1234567,-1.5,0.12345678901234567,1e5 , 7.25]" * 1,
        b"[" + b",".join([b"0.12345678901234567"] * 8) + b"]",
        b"[" + b",".join([b"123456789"] * 20) + b"]",
        b"[[[1.5,2],[3,4]],[[5,6],[-7e-3,8]]]",
    ):
        for end in range(1, len(text) + 1):
            for front in (False, True):
                assert (read(text[:end], front=front)[0] != 0) == (end == len(text))


@given(st.text("0123456789.,-+eE[] \n", max_size=200), st.booleans())
def test_any_text_is_read_or_refused(text: str, front: bool) -> None:
    whole = f"[{text}]".encode()
    kind, stop, *_ = read(whole, front=front)
    assert 0 <= stop <= len(whole)
    if kind:
        assert isinstance(json.loads(whole[:stop]), list)
