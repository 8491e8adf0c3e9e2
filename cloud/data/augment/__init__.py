"""Augmentation that is data: policies of operations on images, spectra and series, and blends of two elements.

An operation is a row of `table.KINDS`; `policy` and `blend` hold settings that a pipeline saves.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloud.data.augment.blend import Blend
from cloud.data.augment.policy import Apply, Policy
from cloud.data.transforms import Transform

__all__ = ["AUGMENTATIONS", "Apply", "Blend", "Policy"]

AUGMENTATIONS: Mapping[str, type[Transform]] = {kind.__name__.lower(): kind for kind in (Apply, Blend, Policy)}
"""By their name in files."""
