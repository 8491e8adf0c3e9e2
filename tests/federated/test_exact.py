"""Sums without rounding: checked with fractions, in every order and grouping."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated import exact
from federated.errors import FederatedError
from federated.exact import Digits, ExactSum

NUMBERS = st.floats(-(2.0**400), 2.0**400, allow_nan=False)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def added(terms: list[np.ndarray]) -> ExactSum:
    total = ExactSum(len(terms[0]))
    for term in terms:
        total.add(term)
    return total


def same(one: ExactSum, other: ExactSum) -> bool:
    pairs = zip(one.digits(), other.digits(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs) and one.value().tobytes() == other.value().tobytes()


def exactly(found: Digits) -> list[Fraction]:
    base = Fraction(2) ** 32
    return [
        sum((int(digit) * base ** (found.lowest + at) for at, digit in enumerate(column)), Fraction())
        - (base ** (found.lowest + len(column)) if negative else 0)
        for column, negative in zip(found.digits.T, found.negative, strict=True)
    ]


@given(st.lists(st.tuples(NUMBERS, FLOATS, st.just(0.0)), min_size=1, max_size=9), st.randoms())
def test_the_sum_is_exact_in_any_order_and_grouping(rows: list[tuple[float, ...]], random: object) -> None:
    terms = [np.array(row) for row in rows]
    total = added(terms)
    wanted = [sum(map(Fraction, column), Fraction()) for column in zip(*rows, strict=True)]
    assert exactly(total.digits()) == wanted
    for got, want in zip(total.value(), wanted, strict=True):
        assert abs(Fraction(got) - want) <= abs(want) * Fraction(3, 2**53) + Fraction(2) ** -1074

    random.shuffle(terms)  # type: ignore[attr-defined]
    cut = random.randint(0, len(terms))  # type: ignore[attr-defined]
    parts = [added(part) for part in (terms[:cut], terms[cut:]) if part]
    merged = ExactSum(3)
    for part in parts:
        merged.merge(ExactSum.of(part.digits()))
    assert same(merged, total)


def test_what_cancels_leaves_no_error() -> None:
    rng = np.random.default_rng()
    terms = [rng.standard_normal(50) * 10.0 ** rng.integers(-30, 30, 50) for _ in range(40)]
    total = added([*terms, *(-term for term in reversed(terms)), np.full(50, 2.0**-60)])
    assert (total.value() == 2.0**-60).all()


def test_many_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng()
    terms = [rng.standard_normal(5) for _ in range(70)]
    plain = added(terms)
    monkeypatch.setattr(exact, "MOST", 4)
    assert same(added(terms), plain)
    halves = added(terms[:40]), added(terms[40:])
    halves[0].merge(halves[1])
    assert same(halves[0], plain)


def test_a_million_equal_terms() -> None:
    """The largest number of terms of the largest size that a bin takes before it is carried over."""
    term = np.array([2.0**31 - 1, -(2.0**31) + 1])
    total = added([term])
    for _ in range(20):
        total.merge(total)
    assert exactly(total.digits()) == [(2**31 - 1) * 2**20, -(2**31 - 1) * 2**20]
    total.merge(total)
    assert exactly(total.digits()) == [(2**31 - 1) * 2**21, -(2**31 - 1) * 2**21]


@pytest.mark.parametrize("bits", [32, 64, -32, -96])
def test_a_value_has_one_form(bits: int) -> None:
    """However its bins came about: powers of the base, which are 0 in one bin and a carry in the next."""
    for sign in (1, -1):
        whole, half, quarter = (np.array([sign * 2.0 ** (bits - at), 0.0]) for at in range(3))
        forms = [[whole], [half, half], [half, quarter, quarter], [whole, whole, -whole], [quarter] * 4]
        assert all(same(added(form), added([whole])) for form in forms)


def test_products_are_rounded_once() -> None:
    rng = np.random.default_rng()
    row = rng.standard_normal(9).astype(np.float32)
    total = ExactSum(9)
    total.add(row, 1 / 3)
    assert (total.value() == row.astype(np.float64) * (1 / 3)).all()


def test_nothing_is_nothing() -> None:
    assert ExactSum(0).value().shape == (0,) and (ExactSum(3).value() == 0).all()
    assert same(added([np.zeros(3)]), ExactSum.of(ExactSum(3).digits()))
    assert (added([np.full(2, 5e-324), np.full(2, 5e-324)]).value() == 1e-323).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e200])
def test_numbers_that_cannot_be_added(wrong: float) -> None:
    with pytest.raises(FederatedError, match="expected finite numbers"):
        ExactSum(2).add(np.array([0.0, wrong]))
    with pytest.raises(FederatedError, match="one of 2 numbers, got one of 3"):
        ExactSum(2).merge(ExactSum(3))


@pytest.mark.parametrize(
    "wrong",
    [
        Digits(0, np.zeros((1, 2), np.int32), np.zeros(2, bool)),
        Digits(0, np.zeros(2, np.uint32), np.zeros(2, bool)),
        Digits(0, np.zeros((1, 2), np.uint32), np.zeros(3, bool)),
        Digits(0, np.zeros((1, 2), np.uint32), np.zeros(2, np.uint8)),
        Digits(-35, np.zeros((1, 2), np.uint32), np.zeros(2, bool)),
        Digits(18, np.zeros((1, 2), np.uint32), np.zeros(2, bool)),
    ],
)
def test_digits_that_are_none(wrong: Digits) -> None:
    with pytest.raises(FederatedError, match="expected digits"):
        ExactSum.of(wrong)
