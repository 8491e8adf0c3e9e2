"""Membership inference: was this example in the training data? A paper a file."""

from __future__ import annotations

from cloud.audit.privacy.membership.attack import check_apart, membership, shifted
from cloud.audit.privacy.membership.curves import AtRate, Membership, measure
from cloud.audit.privacy.membership.lira import lira
from cloud.audit.privacy.membership.shadows import Shadows, halves, train_shadows
from cloud.audit.privacy.membership.shokri import shadow_attack
from cloud.audit.privacy.membership.signals import SIGNALS, logit_confidence, logits_of
from cloud.audit.privacy.membership.summary import Summary, summary
from cloud.audit.privacy.membership.thresholds import threshold_attacks

__all__ = [
    "SIGNALS", "AtRate", "Membership", "Shadows", "Summary", "check_apart", "halves", "lira", "logit_confidence",
    "logits_of", "measure", "membership", "shadow_attack", "shifted", "summary", "threshold_attacks", "train_shadows",
]  # fmt: skip
