"""The signed repository of a fleet: metadata of The Update Framework, releases as pieces, channels, deltas."""

from __future__ import annotations

from cloud.hub.repository.keys import Keys
from cloud.hub.repository.repository import Repository

__all__ = ["Keys", "Repository"]
