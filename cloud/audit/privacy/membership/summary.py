"""Membership attacks as figures, a table, curves and sentences, for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloud.audit.privacy.membership.curves import Membership
from cloud.errors import AuditError

__all__ = ["FIGURES", "Summary", "summary"]

FIGURES: Mapping[str, str] = {
    "auc": "area under the ROC of the strongest attack that tells members from other examples; 0.5 is chance",
    "auc_low": "lower end of its 95 % interval (DeLong 1988)",
    "balanced_accuracy": "of the strongest attack at its threshold",
    "tpr_at_0.01": "the largest share of members that an attack finds at 1 % false alarms",
    "tpr_at_0.001": "the same at 0.1 %",
    "gap": "accuracy on members less that on other examples",
}
"""Name -> meaning."""
COLUMNS = ("attack", "AUC", "95 %", "balanced accuracy", "members at 0.1 %", "95 % of it", "at 1 %", "95 % of that")
ALARM = 0.6
"""The area above which a reader must see it, if its interval does not reach below."""
POINTS = 41
"""Of each curve."""


@dataclass(frozen=True)
class Summary:
    """figures: by the names of FIGURES. rows: under COLUMNS, the strongest attack first. false_alarms: (points,) and
    found: by attack, the share of members found at each."""

    figures: Mapping[str, float]
    rows: tuple[tuple[str | float, ...], ...]
    false_alarms: tuple[float, ...]
    found: Mapping[str, tuple[float, ...]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def summary(attacks: Sequence[Membership]) -> Summary:
    """Of the attacks of `membership` or `threshold_attacks`. Raises AuditError if there are none."""
    if not attacks:
        raise AuditError("expected at least one attack, got none")
    ordered = sorted(attacks, key=lambda one: -one.auc.value)
    best = ordered[0]
    figures = {
        "auc": best.auc.value,
        "auc_low": best.auc.low,
        "balanced_accuracy": best.balanced_accuracy,
        **{f"tpr_at_{rate:g}": max(one.tpr_at(rate).value for one in attacks) for rate in (0.01, 0.001)},
    }
    for one in attacks:
        if one.attack == "correct":
            figures["gap"] = 2 * one.auc.value - 1
    across = np.linspace(0, 1, POINTS)
    notes = [
        f"{best.members} members and {best.non_members} other examples; of {len(attacks)} attacks the strongest is "
        f"{best.attack}.",
        "If members and other examples differ in more than that, by place or time, an attack may see this instead.",
        "An average hides whether anybody is exposed; the members found at few false alarms show it.",
    ]
    if best.non_members < 1000:
        notes.append(f"With {best.non_members} other examples, 0.1 % of false alarms means none at all.")
    alarming = best.auc.low > ALARM
    warning = f"Answers tell members from other examples: {best.attack} has an area of {best.auc.value:.2f}."
    return Summary(
        figures,
        tuple(_row(one) for one in ordered),
        tuple(across.tolist()),
        {one.attack: tuple(np.interp(across, one.fpr, one.tpr).tolist()) for one in ordered},
        tuple(notes),
        (warning,) if alarming else (),
    )


def _row(one: Membership) -> tuple[str | float, ...]:
    ends = [part for at in one.at for part in (at.tpr.value, f"{at.tpr.low:.2%} to {at.tpr.high:.2%}")]
    return one.attack, one.auc.value, f"{one.auc.low:.3f} to {one.auc.high:.3f}", one.balanced_accuracy, *ends
