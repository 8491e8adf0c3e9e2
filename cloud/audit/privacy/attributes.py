"""Attribute inference: a column of a table, guessed from the model's answers and everything else that is known of a
row.

Fredrikson, Jha and Ristenpart, "Model Inversion Attacks that Exploit Confidence Information and Basic Countermeasures",
CCS 2015; Yeom, Giacomelli, Fredrikson and Jha, CSF 2018: each possible value is put in the row, and the one is taken
that its prior chance times the model's chance of the true label makes likeliest. Jayaraman and Evans, "Are Attribute
Inference Attacks Just Imputation?", CCS 2022: what the other columns tell without the model is no leak of the model, so
the prior is an imputation from rows of other people, and the same guess without the model is the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.audit.intervals import Interval, clopper_pearson
from cloud.audit.privacy.membership.signals import Array, checked, logits_of
from cloud.audit.victim import Victim
from cloud.errors import AuditError
from lite_runtime.calibration.scores import log_softmax

__all__ = ["Attribute", "attribute_inference"]

MOST = 64
"""The most values of a column."""


@dataclass(frozen=True)
class Attribute:
    """How often the column is guessed."""

    column: int
    values: tuple[float, ...]
    rows: int
    with_model: Interval
    """The share of rows guessed with the model's answers and the imputation."""
    without_model: Interval
    """By the imputation alone."""
    most_frequent: float
    """By always guessing the most frequent value of the other people's rows."""
    gained: int
    """Rows that are guessed with the model alone."""
    lost: int
    """Rows that are guessed without the model alone."""
    p_value: float
    """Of the hypothesis that the model does not help: McNemar's exact test, one-sided."""

    @property
    def advantage(self) -> float:
        """The share of rows that the model gives away beyond the imputation; can be negative by chance."""
        return (self.gained - self.lost) / self.rows


def attribute_inference(
    victim: Victim, x: Array, y: Array, column: int, *, reference: tuple[Array, Array],
    values: Sequence[float] | None = None,
) -> Attribute:  # fmt: skip
    """Guess column `column` of rows x (n, columns) float32 with labels y (n,), and measure how often that succeeds.

    reference: rows and labels of other people, from which the imputation learns. values: those that the column may
    have; by default those of the reference. Raises AuditError for arrays that do not fit, for a column of more than 64
    values, and for rows with a value that is none of them.
    """
    x, known = np.asarray(x, np.float32), np.asarray(reference[0], np.float32)
    y, others = np.asarray(y), np.asarray(reference[1])
    if x.ndim != 2 or known.ndim != 2 or x.shape[1:] != known.shape[1:] or len(known) != len(others):
        raise AuditError(
            f"expected rows (n, columns) and as many columns and labels of the reference, got {list(x.shape)}, "
            f"{list(known.shape)} and {len(others)} labels"
        )
    if not 0 <= column < x.shape[1]:
        raise AuditError(f"expected a column from 0 to {x.shape[1] - 1}, got {column}")
    levels = np.unique(known[:, column] if values is None else np.asarray(values, np.float32))
    if not 2 <= len(levels) <= MOST:
        raise AuditError(f"column {column}: expected 2 to {MOST} values, got {len(levels)}; state them by values=")
    truth, places = _places(x[:, column], levels, column), _places(known[:, column], levels, column)
    checked(np.zeros((len(x), victim.classes)), y)
    checked(np.zeros((len(known), victim.classes)), others, "reference")
    prior = _imputed(known, others, places, len(levels), column, x, y, victim.classes)
    told = np.empty_like(prior)
    for place, level in enumerate(levels):
        asked = x.copy()
        asked[:, column] = level
        logs = log_softmax(logits_of(victim, asked))
        told[:, place] = np.take_along_axis(logs, y[:, None].astype(np.int64), 1)[:, 0]
    right, plain = (prior + told).argmax(1) == truth, prior.argmax(1) == truth
    common = np.bincount(places).argmax()
    gained, lost = int((right & ~plain).sum()), int((plain & ~right).sum())
    return Attribute(
        column, tuple(float(level) for level in levels), len(x), clopper_pearson(int(right.sum()), len(x)),
        clopper_pearson(int(plain.sum()), len(x)), float((truth == common).mean()), gained, lost,
        _one_sided(gained, lost),
    )  # fmt: skip


def _places(values: Array, levels: Array, column: int) -> Array:
    found = np.minimum(np.searchsorted(levels, values), len(levels) - 1)
    if (strange := levels[found] != values).any():
        raise AuditError(
            f"column {column}: expected one of {', '.join(f'{level:g}' for level in levels[:8])}, got "
            f"{values[strange][0]:g}; give all values"
        )
    return np.asarray(found)


def _imputed(
    known: Array, labels: Array, places: Array, count: int, column: int, x: Array, y: Array, classes: int
) -> Array:
    """Log chances (n, values) by logistic regression on the other columns and the label, fitted to the reference."""
    rest = [i for i in range(x.shape[1]) if i != column]
    middle, spread = known[:, rest].mean(0), known[:, rest].std(0) + 1e-6

    def features(rows: Array, own: Array) -> Array:
        parts = (rows[:, rest] - middle) / spread, np.eye(classes)[own], np.ones((len(rows), 1))
        return np.asarray(np.concatenate(parts, 1))

    given, wanted = jnp.asarray(features(known, labels), jnp.float32), jnp.asarray(places)

    def loss(weights: Any) -> Any:
        fit = optax.softmax_cross_entropy_with_integer_labels(given @ weights, wanted).mean()
        return fit + 1e-2 * (weights**2).sum() / len(known) * known.shape[1]

    optimizer = optax.adam(0.05)

    def step(_: int, carry: tuple[jax.Array, optax.OptState]) -> tuple[jax.Array, optax.OptState]:
        updates, slots = optimizer.update(jax.grad(loss)(carry[0]), carry[1])
        return carry[0] + updates, slots

    start = jnp.zeros((given.shape[1], count))
    weights = jax.jit(lambda w: jax.lax.fori_loop(0, 500, step, (w, optimizer.init(w)))[0])(start)
    return np.asarray(log_softmax(np.asarray(features(x, y) @ np.asarray(weights, np.float64))))


def _one_sided(gained: int, lost: int) -> float:
    from scipy.stats import binom  # a second of every start if it were imported at once

    return float(binom.sf(gained - 1, gained + lost, 0.5)) if gained + lost else 1.0
