"""Optimisers beyond optax's: each a gradient transformation that needs only arrays."""

from __future__ import annotations

from cloud.train.optim.budget import work_of
from cloud.train.optim.thor import scale_by_thor, thor

__all__ = ["scale_by_thor", "thor", "work_of"]
