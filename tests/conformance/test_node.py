"""The node cases that pass, and those that run natively, are exactly the committed ones."""

from __future__ import annotations

import pytest

from lite_runtime.errors import MsedgeError
from tests.conformance.cases import LIST, NATIVE, Mismatch, cases, check, committed, modules

MODULES = modules()
UPDATE = "look at the difference, then: python -m tests.conformance --update"


def test_the_lists_are_sorted_and_name_existing_cases() -> None:
    """No doubles, no module that onnx does not have, nothing native that does not pass."""
    for file in (LIST, NATIVE):
        rows = file.read_text(encoding="utf-8").split()
        assert sorted(set(rows)) == rows, f"{file} must be sorted; {UPDATE}"
    lists = committed()
    assert lists.native <= lists.passing
    assert {row.split("/")[0] for row in lists.passing} <= set(MODULES), UPDATE


@pytest.mark.parametrize("module", MODULES)
def test_cases(module: str) -> None:
    """A case gives what ONNX says on both backends if it is listed, and is refused or differs if it is not.

    Which steps are native depends on the graph, not on the processor: every target has the same kernels and rules.
    """
    passing, native, why = set(), set(), {}
    for name, case in cases(module).items():
        row = f"{module}/{name}"
        try:
            natively = check(case)
        except (MsedgeError, Mismatch) as error:
            why[row] = f"{type(error).__name__}: {error}"
        else:
            passing.add(row)
            native |= {row} if natively else set()
    wanted = [{row for row in rows if row.split("/")[0] == module} for rows in committed()]
    lost = {row: why.get(row, "there is no such case") for row in wanted[0] - passing}
    assert (lost, passing - wanted[0]) == ({}, set()), UPDATE
    assert (wanted[1] - native, native - wanted[1]) == (set(), set()), UPDATE
