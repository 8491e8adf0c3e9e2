"""Membership by a threshold on one signal of the model's answer; see `signals` for the papers.

Without other models, an attacker's threshold is a guess, and the best one in hindsight bounds what he reaches. With
shadow models (Song and Mittal 2021, section 4.2), a threshold for each class is learned from them and applied to the
target.
"""

from __future__ import annotations

import numpy as np

from cloud.audit.privacy.membership.curves import Membership, measure
from cloud.audit.privacy.membership.signals import SIGNALS, Array, checked
from cloud.errors import AuditError

__all__ = ["threshold_attacks"]


def threshold_attacks(
    logits: Array, labels: Array, is_member: Array, *, shadow_logits: Array | None = None, keep: Array | None = None
) -> list[Membership]:
    """Every signal's success on a target's logits (n, classes).

    shadow_logits: (models, n, classes) of the same examples, and keep (models, n) bool: which model was trained on
    which; then thresholds are learned by class, and scores are those less the threshold of their class. Raises
    AuditError for arrays that do not fit.
    """
    logits, labels = checked(logits, labels)
    if shadow_logits is None or keep is None:
        return [measure(name, signal(logits, labels), is_member) for name, signal in SIGNALS.items()]
    if shadow_logits.shape[1:] != logits.shape or keep.shape != shadow_logits.shape[:2]:
        raise AuditError(
            f"expected shadow_logits (models, {len(logits)}, {logits.shape[1]}) and keep (models, {len(logits)}), got "
            f"{list(shadow_logits.shape)} and {list(keep.shape)}"
        )
    found = []
    for name, signal in SIGNALS.items():
        known = np.stack([signal(np.asarray(one, np.float64), labels) for one in shadow_logits])
        levels = np.empty(logits.shape[1])
        for label in range(logits.shape[1]):
            own = labels == label
            chosen = (known[:, own].ravel(), keep[:, own].ravel()) if own.any() else (known.ravel(), keep.ravel())
            levels[label] = _best(*chosen)
        scores = signal(logits, labels) - levels[labels]
        found.append(measure(name, scores, is_member, decided=scores >= 0))
    return found


def _best(values: Array, inside: Array) -> float:
    """The threshold of the highest balanced accuracy: values at or above it count as members."""
    if inside.all() or not inside.any():
        return float(np.median(values))
    order = np.argsort(-values, kind="stable")
    ordered, yes = values[order], inside[order]
    gain = np.cumsum(yes) / yes.sum() - np.cumsum(~yes) / (~yes).sum()
    gain[np.append(np.diff(ordered) == 0, False)] = -np.inf  # a threshold lies between different values
    return float(ordered[gain.argmax()])
