"""Private set intersection: what each party learns, line by line, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.errors import FederatedError
from federated.vertical.matching import BYTES, Matcher, hashed

NAMES = st.lists(st.binary(max_size=12), max_size=25, unique=True)


def rows(points: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in points}


def meet(one: list[bytes], other: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What both learn."""
    a, b = Matcher(one), Matcher(other)
    hidden_a, hidden_b = a.hidden(), b.hidden()
    again_a, again_b = b.again(hidden_a), a.again(hidden_b)
    return [one[at] for at in a.matched(again_a, again_b)], [other[at] for at in b.matched(again_b, again_a)]


@settings(max_examples=15)
@given(NAMES, NAMES)
def test_both_learn_the_intersection(one: list[bytes], other: list[bytes]) -> None:
    found_a, found_b = meet(one, other)
    assert set(found_a) == set(found_b) == set(one) & set(other)
    assert found_a == [each for each in one if each in set(other)], "in the order of its own identifiers"


ONE, OTHER = [b"p%d" % at for at in range(40)], [b"p%d" % at for at in range(25, 70)]


def test_one_learns_it_alone() -> None:
    """Without the third message B has its own points once multiplied and A's twice: none of them match."""
    a, b = Matcher(ONE), Matcher(OTHER)
    hidden_a, hidden_b = a.hidden(), b.hidden()
    again_a = b.again(hidden_a)
    assert len(a.matched(again_a, a.again(hidden_b))) == 15
    assert not rows(hidden_b) & rows(again_a) and not rows(hidden_b) & rows(hidden_a)
    assert len(b.matched(hidden_b, again_a)) == 0


def test_one_learns_the_number_alone() -> None:
    """Shuffled, the points say how many are common, not which."""
    a, b = Matcher(ONE), Matcher(OTHER)
    hidden, plain = a.hidden(), Matcher(ONE)
    shuffled, theirs = b.again(hidden, shuffled=True), a.again(b.hidden())
    assert rows(shuffled) == rows(b.again(hidden)) and len(rows(shuffled) & rows(theirs)) == 15
    found = a.matched(shuffled, theirs)
    assert len(found) == 15 and {ONE[at] for at in found} != set(ONE) & set(OTHER), "random ones"
    assert not rows(plain.hidden()) & rows(hidden)


def test_sizes_are_not_hidden() -> None:
    a, b = Matcher(ONE), Matcher(OTHER)
    assert a.hidden().shape == (len(ONE), BYTES) and b.again(a.hidden()).shape == (len(ONE), BYTES)


def test_what_is_not_common_stays_hidden() -> None:
    """A cannot find out later whether B has a name: it lacks b, so no point it can compute is among B's."""
    a, b = Matcher(ONE), Matcher(OTHER)
    theirs = a.again(b.hidden())
    guesses = Matcher([b"p50", b"p51"])
    assert not rows(a.again(guesses.hidden())) & rows(theirs)
    plain = {hashed(each).public_numbers().x.to_bytes(BYTES, "big") for each in OTHER}
    assert not plain & rows(b.hidden())


def test_a_party_that_does_not_follow_can_ask_about_names_it_lacks() -> None:
    """The model is semi-honest: a party may put guesses into its set. `match.least` and `match.most` bound its size."""
    found, _ = meet([b"p50", b"a guess"], OTHER)
    assert found == [b"p50"]


def test_two_runs_cannot_be_linked() -> None:
    one, again = Matcher(ONE).hidden(), Matcher(ONE).hidden()
    assert not rows(one) & rows(again)


def test_the_order_of_rows_is_hidden() -> None:
    """Each point is equally often at each place."""
    counts = np.zeros((4, 4), int)
    for _ in range(400):
        a = Matcher(ONE[:4])
        secret = a._times
        places = {row.tobytes(): place for place, row in enumerate(a.hidden())}
        for at, name in enumerate(ONE[:4]):
            counts[at, places[secret(hashed(name))]] += 1
    assert ((counts > 55) & (counts < 150)).all(), counts


def test_points_that_are_none_are_refused() -> None:
    a = Matcher(ONE)
    bad = [np.zeros((3, 31), np.uint8), np.zeros(32, np.uint8), np.zeros((3, BYTES), np.int8)]
    for points in bad:
        with pytest.raises(FederatedError, match="expected points uint8"):
            a.again(points)
    # 1 is no abscissa of the curve, and 2^256 - 1 no number below its prime.
    for number in (1, 2**256 - 1):
        with pytest.raises(FederatedError, match="expected points of P-256"):
            a.again(np.frombuffer(number.to_bytes(BYTES, "big"), np.uint8)[None])
    with pytest.raises(FederatedError, match=r"expected 40 points and others, got \[2, 32\]"):
        a.matched(a.hidden()[:2], a.hidden())


def test_names_that_occur_twice() -> None:
    with pytest.raises(FederatedError, match="expected each once, got 'x' 3 times"):
        Matcher([b"x", b"y", b"x", b"x"])


def test_the_hash_is_the_same_everywhere() -> None:
    """A point of the format: both parties must compute it, whatever their machine."""
    assert f"{hashed(b'alice').public_numbers().x:064x}"[:16] == "7f9c7a26c0438589"
