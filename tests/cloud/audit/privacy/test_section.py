"""The section on privacy of an audit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import optax
import pytest

import msedge
from cloud import zoo
from cloud.audit.parts.privacy import PART, section_of
from cloud.audit.privacy.membership import train_shadows
from cloud.audit.section import Clock
from cloud.audit.subject import Data, Subject
from cloud.audit.victim import open_bundle
from cloud.errors import AuditError

ROWS = 120


@pytest.fixture(scope="module")
def subject(digits: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A bundle that has random labels of its training data by heart."""
    path = tmp_path_factory.mktemp("section") / "heart.mslite"
    x, y = digits[0][: 2 * ROWS], np.random.default_rng(0).integers(0, 10, 2 * ROWS)
    trainer = msedge.Trainer(zoo.mlp(64, 10, [48]), optimizer=optax.adam(1e-2), seed=0)
    trainer.fit((x[:ROWS], y[:ROWS]), 60, 40)
    msedge.convert(trainer.export(), output=path)
    others, members = Data("test", x[ROWS:], y[ROWS:]), Data("train", x[:ROWS], y[:ROWS])
    return Subject("heart", open_bundle(path), others, "table", (0.0, 1.0), 0.1, members=members)


def test_what_is_known_by_heart_is_found(subject: Subject) -> None:
    found = PART.measure(subject, Clock())
    assert set(found.figures) == set(PART.figures(subject))
    assert found.figures["auc"] > 0.9 and found.figures["gap"] > 0.7 and found.warnings
    assert "LiRA" in found.notes[-1]
    assert [row[0] for row in found.tables[0].rows] and len(found.curves[0].series) == 4


def test_shadow_models_add_the_stronger_attacks(subject: Subject) -> None:
    assert subject.members is not None
    x, y = (np.concatenate([subject.members.x, subject.data.x]), np.concatenate([subject.members.y, subject.data.y]))
    shadows = train_shadows(lambda seed: zoo.mlp(64, 10, [48], seed), x, y, models=4, epochs=10, batch_size=40)
    found = section_of(subject, shadows)
    assert "LiRA find more" not in found.notes[-1]
    assert {"LiRA online", "LiRA offline"} <= {row[0] for row in found.tables[0].rows}


def test_without_members_it_says_what_it_needs(subject: Subject) -> None:
    assert PART.lacking(subject) == "" and "--members" in PART.lacking(replace(subject, members=None))
    with pytest.raises(AuditError, match="that are among the members"):
        PART.measure(replace(subject, data=subject.members), Clock())
