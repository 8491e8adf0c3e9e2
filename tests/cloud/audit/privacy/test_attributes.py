"""Attribute inference, beside what the other columns tell anyway."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from cloud.audit.privacy.attributes import attribute_inference
from cloud.audit.victim import WhiteBox
from cloud.errors import AuditError


def table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three columns, of which the last is secret and follows the first in three rows of four; a random label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    secret = np.where(rng.random(rows) < 0.75, x[:, 0] > 0, x[:, 0] <= 0)
    x[:, 2] = secret
    return x, rng.integers(0, 2, rows), secret


def victim(weight: float) -> WhiteBox:
    """A model whose answer depends on the last column by `weight`."""
    return WhiteBox(
        "model", lambda w, x: jnp.stack([-w * (2 * x[:, 2] - 1), w * (2 * x[:, 2] - 1)], 1), weight, (3,), 2
    )


def test_a_model_that_depends_on_the_column_gives_it_away() -> None:
    x, y, _ = table(600, 0)
    y = np.where(np.random.default_rng(1).random(600) < 0.95, x[:, 2], 1 - x[:, 2]).astype(int)  # as the model has it
    others, labels, _ = table(600, 2)
    found = attribute_inference(victim(1.5), x, y, 2, reference=(others, labels))
    assert found.values == (0.0, 1.0)
    assert abs(found.without_model.value - 0.75) < 0.06
    assert found.with_model.value > 0.88 and found.p_value < 1e-6
    assert found.advantage == pytest.approx(found.with_model.value - found.without_model.value)


def test_a_model_that_does_not_adds_nothing() -> None:
    x, y, _ = table(600, 0)
    others, labels, _ = table(600, 2)
    found = attribute_inference(victim(0.0), x, y, 2, reference=(others, labels))
    assert found.gained == found.lost == 0 and found.p_value == 1
    assert found.without_model.value > found.most_frequent + 0.1


def test_wrong_questions_are_named() -> None:
    x, y, _ = table(20, 0)
    with pytest.raises(AuditError, match="column 0: expected 2 to 64 values, got 200"):
        attribute_inference(victim(0.0), x, y, 0, reference=table(200, 1)[:2])
    with pytest.raises(AuditError, match="a column from 0 to 2, got 3"):
        attribute_inference(victim(0.0), x, y, 3, reference=(x, y))
    with pytest.raises(AuditError, match="column 2: expected one of 0, 1, got 2"):
        attribute_inference(victim(0.0), x + np.float32([0, 0, 1]), y, 2, reference=(x, y))
    with pytest.raises(AuditError, match="expected 20 labels"):
        attribute_inference(victim(0.0), x, y[:-1], 2, reference=(x, y))
