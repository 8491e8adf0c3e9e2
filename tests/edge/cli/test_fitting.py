"""Tables are whole at every width."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edge.cli.output import console, table

WORDS = st.text("abcé漢 0.–", max_size=30)
ROWS = st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4)


def printed(rows: list[tuple[str, ...]], width: int, **how: tuple[str, ...]) -> str:
    shown = table("title", "name", "figure", "text", **how)
    for row in rows:
        shown.add_row(*row)
    shown.caption = "caption"
    out = StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False).print(shown)
    return out.getvalue()


@given(ROWS, st.integers(30, 120))
def test_nothing_is_cut_off(rows: list[tuple[str, ...]], width: int) -> None:
    for how in ({}, {"right": ("figure",)}, {"fold": ("text",)}):
        text = printed(rows, width, **how)
        assert "…" not in text and "title" in text and "caption" in text
        seen = re.sub(r"\s", "", text)
        for cell in (cell for row in rows for cell in row[:2]):
            assert all(re.sub(r"\s", "", word) in seen for word in cell.split())


def test_a_table_that_fits_is_a_table() -> None:
    lines = printed([("resnet", "7.61 ms", "plain"), ("mobilenet", "0.20 ms", "plain")], 80).splitlines()
    assert re.fullmatch(r" name\s+figure\s+text\s*", lines[2]) and re.match(r" resnet\s+7.61 ms\s+plain", lines[4])


def test_a_table_that_does_not_fit_is_a_list() -> None:
    lines = printed([("resnet", "7.61 ms", ""), ("mobilenet", "0.20 ms", "z" * 40)], 40).splitlines()
    assert [line.split() for line in lines[1:4]] == [["name", "resnet"], ["figure", "7.61", "ms"], []]
    assert "".join(lines).replace(" ", "").count("z") == 40


@pytest.mark.parametrize("width", [None, "60"])
def test_the_width_without_a_terminal(width: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full lines in a file or a pipe, unless COLUMNS says otherwise."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", width)
    assert console().width == (10_000 if width is None else 60)
