"""The section of certified radii: what it says of a file whose radii are known, and of a time that is too short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloud.audit.parts.certified import PART
from cloud.audit.section import Clock
from cloud.audit.subject import Data, Subject
from cloud.audit.victim import BlackBox
from lite_runtime.graph import Array


class Halves(BlackBox):
    """Class 1 where the first of two numbers is above 0: an example's radius is its distance from 0."""

    def __init__(self) -> None:
        super(BlackBox, self).__init__("halves", (2,), 2)

    def _scores(self, x: Array) -> Array:
        return np.stack([-x[:, 0], x[:, 0]], axis=1)


@pytest.fixture
def subject() -> Subject:
    x = np.float32([[side * place, 0] for side in (-1, 1) for place in np.linspace(0.05, 1, 15)])
    data = Data("halves.npz", x, (x[:, 0] > 0).astype(np.int64))
    return Subject("halves", Halves(), data, "table", (-1.0, 1.0), epsilon=0.5)


def test_radii_are_within_the_distances_that_are_true(subject: Subject) -> None:
    found = PART.measure(subject, Clock())
    away = np.abs(subject.data.x[:, 0])
    for name, radius in (("accuracy_half", 0.25), ("accuracy_one", 0.5)):
        assert (away >= radius * 1.3).mean() <= found.figures[name] <= (away >= radius).mean()
    assert 0.7 < found.figures["smoothed_accuracy"] <= 1 and not found.undone
    assert set(found.figures) == set(PART.figures(subject))
    assert found.figures == PART.measure(subject, Clock()).figures


def test_a_time_that_is_too_short_gives_no_figures(subject: Subject) -> None:
    found = PART.measure(replace(subject), Clock(0.0))
    assert not found.figures and "0 of 30" in found.undone[0]
