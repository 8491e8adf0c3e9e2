"""Every operator and type of which LiteRT has integer kernels: its integers; of real results its numbers."""

from __future__ import annotations

import pytest

from tests import litert_page
from tests.converter.frontends.tflite.integers import CASES, Case
from tests.converter.frontends.tflite.integers.comparing import compared

SEEDS = (0,)
NEAR = 2e-6
"""Of the largest result: real results are added up in another order."""
_STATES = 2e-2
"""A state within NEAR of the middle between two steps is rounded to the other one."""


@pytest.mark.parametrize("one", CASES, ids=str)
def test_litert(one: Case) -> None:
    for seed in SEEDS:
        found = compared(one, seed)
        rounds = one.op.endswith(("RNN", "LSTM", "SVDF"))
        assert found.default.most <= ((_STATES if rounds else NEAR) if found.real else 0), found


def test_the_page_has_every_case() -> None:
    """docs/litert-integers.md is this table, and says of all of it what the test above checks on fewer models."""
    lines = litert_page.PAGE.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    listed = [f"{op} {types}" for op, joined, *_ in cells for types in joined.split("; ")]
    assert sorted(listed) == sorted(map(str, CASES)), "run python -m tests.litert_page --update"
    assert litert_page.page(table) == "\n".join(lines) + "\n"
    floats = {one[0]: one[2] for one in cells if one[2] != "equal"}
    assert all(cell.startswith("real, ") for cell in floats.values()), floats


def test_names_are_unique() -> None:
    assert len({str(one) for one in CASES}) == len(CASES)
