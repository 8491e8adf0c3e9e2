"""Canaries: what can be proven against a mechanism's claim of privacy, and what a language model knows by heart."""

from __future__ import annotations

from cloud.audit.privacy.canaries.audited import Audited
from cloud.audit.privacy.canaries.bounds import epsilon_of_errors, epsilon_of_gaussian, epsilon_of_guesses
from cloud.audit.privacy.canaries.exposure import Exposure, Speaker, exposure, extract
from cloud.audit.privacy.canaries.mechanism import audit_mechanism
from cloud.audit.privacy.canaries.one_run import audit_run

__all__ = [
    "Audited", "Exposure", "Speaker", "audit_mechanism", "audit_run", "epsilon_of_errors", "epsilon_of_gaussian",
    "epsilon_of_guesses", "exposure", "extract",
]  # fmt: skip
