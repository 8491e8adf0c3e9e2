"""All membership attacks on one deployed model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloud.audit.privacy.membership.curves import Membership, measure
from cloud.audit.privacy.membership.lira import lira
from cloud.audit.privacy.membership.shadows import Shadows, View
from cloud.audit.privacy.membership.shokri import shadow_attack
from cloud.audit.privacy.membership.signals import Array, logit_confidence, logits_of
from cloud.audit.privacy.membership.thresholds import threshold_attacks
from cloud.audit.victim import Victim
from cloud.errors import AuditError

__all__ = ["check_apart", "membership", "shifted"]


def check_apart(members: Array, others: Array) -> None:
    """Raises AuditError if an example is among both, or if their shapes differ."""
    if members.shape[1:] != others.shape[1:]:
        raise AuditError(
            f"expected members and non-members of one shape, got {list(members.shape[1:])} and {list(others.shape[1:])}"
        )
    known = {row.tobytes() for row in np.ascontiguousarray(members, np.float32)}
    both = sum(row.tobytes() in known for row in np.ascontiguousarray(others, np.float32))
    if both:
        raise AuditError(
            f"expected non-members that the model was not trained on, got {both} of {len(others)} that are among the "
            "members; leave them out"
        )


def membership(
    victim: Victim, x: Array, y: Array, is_member: Array, *, shadows: Shadows | None = None, views: Sequence[View] = (),
    seed: int = 0,
) -> list[Membership]:  # fmt: skip
    """Attacks on a model, integer bundles included: thresholds and, with shadow models, thresholds by class, Shokri's
    network and LiRA online and offline.

    x: (n, ...) float32. y: (n,) classes. is_member: (n,) bool, what the model was trained on. shadows: of
    `train_shadows` over the same examples in the same order. views: augmented queries for LiRA. Raises AuditError for
    inputs and labels that do not fit, for examples that are members and non-members, and for too few shadow models.
    """
    x, y, is_member = np.asarray(x, np.float32), np.asarray(y), np.asarray(is_member)
    if is_member.shape != (len(x),) or is_member.dtype != np.bool_:
        raise AuditError(f"expected is_member, bool ({len(x)},), got {is_member.dtype}{list(is_member.shape)}")
    check_apart(x[is_member], x[~is_member])
    logits = logits_of(victim, x)
    if shadows is None:
        return threshold_attacks(logits, y, is_member)
    if shadows.keep.shape[1] != len(x):
        raise AuditError(
            f"expected shadow models over the same {len(x)} examples, got ones over {shadows.keep.shape[1]}"
        )
    theirs = shadows.logits(x)
    found = threshold_attacks(logits, y, is_member, shadow_logits=theirs, keep=shadows.keep)
    scores = shadow_attack(logits, y, theirs, shadows.keep, seed=seed)
    found.append(measure("shadow models (Shokri)", scores, is_member, decided=scores >= 0))
    target = np.stack([logit_confidence(logits_of(victim, each), y) for each in (x, *(view(x) for view in views))], -1)
    known = shadows.confidences(x, y, views)
    for mode, name in (("online", "LiRA online"), ("offline", "LiRA offline")):
        found.append(measure(name, lira(target, known, shadows.keep, mode=mode), is_member))  # type: ignore[arg-type]
    return found


def shifted(down: int, right: int) -> View:
    """A view of images (rows, channels, height, width), moved by pixels; what is left free is filled with 0."""

    def view(x: Array) -> Array:
        moved = np.zeros_like(x)
        height, width = x.shape[-2:]
        into, out = (
            (slice(max(by, 0), size + min(by, 0)), slice(max(-by, 0), size + min(-by, 0)))
            for by, size in ((down, height), (right, width))
        )
        moved[..., into[0], out[0]] = x[..., into[1], out[1]]
        return moved

    return view
