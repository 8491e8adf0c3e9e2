"""Masked gradients are noticed where they were planted, and not on the plain network."""

from __future__ import annotations

import numpy as np
import pytest

from cloud.audit.attacks import masked_gradients
from cloud.audit.victim import WhiteBox
from cloud.errors import AuditError
from tests.cloud.audit.conftest import planted

Rows = tuple[np.ndarray, np.ndarray]
SETTINGS = {"epsilon": 0.12, "steps": 15, "questions": 200, "samples": 30}
# planted: checks that must fire, checks that must not
PLANTED = {
    "none": (set(), {"one step", "black box", "unbounded", "random search", "zero gradients"}),
    "quantised": ({"black box", "unbounded", "zero gradients"}, {"one step"}),
    "hot": ({"zero gradients", "unbounded", "black box"}, set()),
}


@pytest.mark.parametrize("masked", PLANTED)
def test_checks(victim: WhiteBox, rows: Rows, masked: str) -> None:
    found = masked_gradients(planted(victim, masked), *rows, **SETTINGS)
    assert len({check.name for check in found}) == 5
    fired = {check.name for check in found if check.fired}
    must, may_not = PLANTED[masked]
    assert must <= fired, [check.text for check in found]
    assert not may_not & fired, [check.text for check in found]


def test_nothing_to_check(victim: WhiteBox, rows: Rows) -> None:
    wrong = (victim.logits(rows[0]).argmax(1) + 1) % 10
    with pytest.raises(AuditError, match="rows that the model has right, got none"):
        masked_gradients(victim, rows[0], wrong, epsilon=0.1)
