"""The parts of an audit, in the order of the page. A part is a file with a `PART`; this list is all that knows them."""

from __future__ import annotations

from cloud.audit.parts import (
    accuracy,
    attacks,
    calibration,
    certified,
    corruptions,
    federation,
    groups,
    privacy,
    quantising,
    slices,
)
from cloud.audit.section import Part

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    accuracy.PART,
    groups.PART,
    slices.PART,
    calibration.PART,
    quantising.PART,
    corruptions.PART,
    attacks.PART,
    certified.PART,
    privacy.PART,
    federation.PART,
)
