"""Every case of the committed list passes natively and with reference operators only."""

from __future__ import annotations

import pytest

from tests.conformance.cases import BACKENDS, LIST, all_cases, check, passing

SHARE = 40
"""Cases a test: few enough to see where it fails, many enough not to drown the report."""
NAMES = passing()


def test_the_list_is_long_enough() -> None:
    """The list is sorted, has no doubles and names cases that exist."""
    assert sorted(set(NAMES)) == NAMES, f"{LIST} must be sorted; python -m tests.conformance --update"
    assert len(NAMES) >= 1100
    assert set(NAMES) <= set(all_cases())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("share", range(0, len(NAMES), SHARE))
def test_cases(share: int, backend: str) -> None:
    """Each listed case gives what ONNX says."""
    failures = {}
    for name in NAMES[share : share + SHARE]:
        try:
            check(all_cases()[name], backend)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    assert not failures
