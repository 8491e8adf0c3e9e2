"""The error of federated learning that users meet."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError

__all__ = ["FederatedError"]


class FederatedError(MsedgeError):
    """A configuration, a device's update or a stored round that does not fit: expected, got, where, and the fix."""
