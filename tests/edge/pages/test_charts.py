"""Charts: well-formed, marks at the right positions, no chart without data."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.pages.charts import HIGH, WIDE, Pair, curves, dumbbells, scatter, shares

NUMBERS = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=40)


def points(figure: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", figure)]


@given(NUMBERS)
@example([5e-324])
@example([0.0, 5e-324])
@example([1e-310, 3e-310])
def test_lines_stay_inside(values: list[float | None]) -> None:
    figure = curves("a < b", list(range(len(values))), {"one & two": values})
    if any(v is not None for v in values):
        ElementTree.fromstring(figure)
        assert all(0 <= x <= WIDE and 0 <= y <= HIGH for x, y in points(figure))
    else:
        assert figure == ""


def test_higher_numbers_are_drawn_higher() -> None:
    figure = curves("t", [1, 2, 3], {"s": [1.0, 3.0, 2.0]})
    heights = [y for _, y in points(figure)]
    assert heights[1] < heights[2] < heights[0]


def test_gaps_are_bridged() -> None:
    assert len(points(curves("t", [1, 2, 3], {"s": [1.0, None, 2.0]}))) == 2


def test_infinity_is_left_out() -> None:
    assert len(points(curves("t", [1, 2], {"s": [1.0, float("inf")]}))) == 1


@pytest.mark.parametrize(("pairs", "circles"), [([], 0), ([Pair("a", 0.2, 0.9), Pair("<b>", None, 0.5, True)], 3)])
def test_dumbbells(pairs: list[Pair], circles: int) -> None:
    figure = dumbbells("t", pairs)
    assert figure.count("<circle") == circles
    if figure:
        ElementTree.fromstring(figure)


@pytest.mark.parametrize("letters", [1, 24, 40, 41, 300])
def test_names_of_rows_end_before_the_rows_and_begin_in_the_picture(letters: int) -> None:
    name = "d" * letters
    for figure in (dumbbells("t", [Pair(name, 0.2, 0.9)]), shares("t", {name: {"a": 1.0}})):
        (row,) = (row for row in ElementTree.fromstring(figure).iter("g"))
        shown = row.find("text")
        assert shown is not None and shown.text is not None
        assert float(shown.get("x", "0")) >= 6 * len(shown.text), "letters are about 6 wide"
        assert shown.text == name or (shown.text.startswith("…") and row.findtext("title") == name)


def test_one_that_got_worse_is_marked() -> None:
    assert "poor" in dumbbells("t", [Pair("a", 0.9, 0.2)])
    assert "poor" not in dumbbells("t", [Pair("a", 0.2, 0.9)])


def test_dots() -> None:
    assert scatter("", []) == ""
    drawn = scatter("loss by rate", [(1e-4, 1.0, True), (1e-2, 0.5, False), (1.0, 2.0, True)], log=True)
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawn)]
    assert places[2] - places[1] == pytest.approx(places[1] - places[0], abs=0.2)
    assert drawn.count(" full") == 2 and drawn.count(" hollow") == 1 and ">0.0001<" in drawn and ">1<" in drawn
    named = scatter("loss by <kind>", [(0.0, 1.0, True), (1.0, 1.0, True)], names=["a", "<b>"])
    assert "&lt;b&gt;" in named and "<b>" not in named and "loss by &lt;kind&gt;" in named
    assert scatter("one", [(3.0, 1.0, True)]).count("<circle") == 1
