"""What is kept of a run so that it can go on: checkpoints, and when they are made."""

from __future__ import annotations
