"""What the deployed file's answers reveal of its training data: membership inference by the examples of `--members`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cloud.audit.privacy.membership import (
    Shadows,
    check_apart,
    logits_of,
    membership,
    summary,
    threshold_attacks,
)
from cloud.audit.privacy.membership.summary import COLUMNS, FIGURES
from cloud.audit.section import Clock, Curves, Part, Section, Table
from cloud.audit.subject import Subject
from lite_runtime.graph import Array

__all__ = ["PART", "section_of"]

MOST = 10_000
"""The most members, and other examples, that are asked about."""
SIGNALS = ("correct", "loss", "entropy", "modified entropy")
"""Those that order examples differently: confidence and its logit order them as the loss does."""


def _figures(_: Subject) -> Mapping[str, str]:
    return FIGURES


def _lacking(subject: Subject) -> str:
    return "" if subject.members is not None else "needs --members TRAIN.npz, examples that the model was trained on"


def _measure(subject: Subject, _: Clock) -> Section:
    return section_of(subject)


def section_of(subject: Subject, shadows: Shadows | None = None) -> Section:
    """The section. shadows: of `train_shadows` over the members followed by the other examples; with them also Shokri's
    network and LiRA. Raises AuditError for an example that is in both files, and for shadow models over others."""
    assert subject.members is not None  # see `_lacking`
    inside, outside = (_rows(len(data), subject.seed, shadows) for data in (subject.members, subject.data))
    x = np.concatenate([subject.members.x[inside], subject.data.x[outside]])
    y = np.concatenate([subject.members.y[inside], subject.data.y[outside]])
    is_member = np.arange(len(x)) < len(inside)
    if shadows is None:
        check_apart(x[is_member], x[~is_member])
        found = [one for one in threshold_attacks(logits_of(subject.model, x), y, is_member) if one.attack in SIGNALS]
    else:
        found = membership(subject.model, x, y, is_member, shadows=shadows, seed=subject.seed)
    told = summary(found)
    table = Table(
        "Membership inference", COLUMNS, told.rows, shares=("balanced accuracy", "members at 0.1 %", "at 1 %")
    )
    title, across = "Members found over false alarms", "share of other examples that are taken for members"
    more = "Shadow models and LiRA find more, and need the recipe of the training: see docs/audit.md, Privacy."
    return Section(
        PART.name,
        PART.title,
        told.figures,
        tables=(table,),
        curves=(Curves(title, told.false_alarms, told.found, across, share=True),),
        notes=(*told.notes, *(() if shadows is not None else (more,))),
        warnings=told.warnings,
        shares=("balanced_accuracy", "tpr_at_0.01", "tpr_at_0.001", "gap"),
    )


def _rows(count: int, seed: int, shadows: Shadows | None) -> Array:
    if shadows is not None or count <= MOST:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, MOST, replace=False))


PART = Part("privacy", "Privacy", _figures, _measure, lacking=_lacking)
