"""Runs of the store in other trackers: `export` copies one at once, `Follower` while it trains."""

from __future__ import annotations

from cloud.track.copies.copy import Copy, Follower, export

__all__ = ["Copy", "Follower", "export"]
