"""What can go wrong in the cloud. Text: what was expected, what was got, where, and the fix."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError

__all__ = ["EngineError", "TrainError"]


class EngineError(MsedgeError):
    """A model cannot become a JAX function, or was called with inputs it does not take."""


class TrainError(MsedgeError):
    """Training cannot start or go on: empty or ill-shaped data, a loss that is not finite, a bad option."""
