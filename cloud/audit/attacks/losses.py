"""Losses (rows,) of scores (rows, classes) and labels (rows,), which attacks increase.

Untargeted, they grow as the class of the label loses; targeted, as it wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from cloud.errors import AuditError

__all__ = ["Loss", "LossName", "loss_of", "margin"]

Loss: TypeAlias = Callable[[Any, Any], Any]
LossName: TypeAlias = Literal["ce", "dlr", "margin"]


def _own(scores: Any, labels: Any) -> Any:
    return jnp.take_along_axis(scores, labels[:, None], 1)[:, 0]


def margin(scores: Any, labels: Any) -> Any:
    """The best other class's score less the label's: above 0, the label has lost."""
    others = jnp.where(jax.nn.one_hot(labels, scores.shape[1], dtype=bool), -jnp.inf, scores)
    return others.max(1) - _own(scores, labels)


def _targeted_margin(scores: Any, labels: Any) -> Any:
    return -margin(scores, labels)


def _ce(scores: Any, labels: Any) -> Any:
    return jax.nn.logsumexp(scores, axis=1) - _own(scores, labels)


def _targeted_ce(scores: Any, labels: Any) -> Any:
    return -_ce(scores, labels)


def _dlr(scores: Any, labels: Any) -> Any:
    """Difference of logits ratio (Croce and Hein 2020, equation 6): margin over the distance of the first from the
    third score, so that neither shifts nor scales of the scores change it."""
    ordered = jnp.sort(scores, axis=1)
    return margin(scores, labels) / (ordered[:, -1] - ordered[:, -3] + 1e-12)


def _targeted_dlr(scores: Any, labels: Any) -> Any:
    """Equation 7 of the same, with the best class other than the target in the place of the true one, which an attack
    on a target is not told."""
    ordered = jnp.sort(scores, axis=1)
    width = ordered[:, -1] - (ordered[:, -3] + ordered[:, -4]) / 2
    return -margin(scores, labels) / (width + 1e-12)


_LOSSES: dict[str, tuple[Loss, Loss, int]] = {
    "ce": (_ce, _targeted_ce, 2),
    "dlr": (_dlr, _targeted_dlr, 3),
    "margin": (margin, _targeted_margin, 2),
}
"""Name -> (untargeted, targeted, the fewest classes of the untargeted one)."""


def loss_of(name: str, targeted: bool, classes: int) -> Loss:
    """The loss of a name. Raises AuditError for an unknown one and for too few classes."""
    if name not in _LOSSES:
        raise AuditError(f"expected a loss of {', '.join(_LOSSES)}, got {name!r}")
    plain, aimed, least = _LOSSES[name]
    least += name == "dlr" and targeted
    if classes < least:
        raise AuditError(f"loss {name}: expected at least {least} classes, got {classes}; use loss='ce'")
    return aimed if targeted else plain
