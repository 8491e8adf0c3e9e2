"""Which devices a rollout means, and the order in which they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256

__all__ = ["Cohort", "belongs", "place"]

Cohort = Mapping[str, Sequence[str]]
"""By attribute, patterns with * and ?; one of them has to fit. An empty cohort is every device."""


def belongs(attributes: Mapping[str, str], cohort: Cohort) -> bool:
    """Whether every attribute of the cohort fits. A device without the attribute does not belong."""
    return all(
        name in attributes and any(fnmatchcase(attributes[name], pattern) for pattern in patterns)
        for name, patterns in cohort.items()
    )


def place(seed: str, device: str) -> float:
    """A device's place in the order of a rollout, from 0 to below 1: the same at any time and on any machine.

    A step of p percent has the devices below p / 100, so that every step contains the one before, and a device that
    joins the fleet later has its place too. Another seed gives another order: not always the same ones come first.
    """
    return int.from_bytes(sha256(f"{seed}\0{device}".encode()).digest()[:7]) / (1 << 56)
