"""Checkpoints, from which a run can continue, and when they are saved."""

from __future__ import annotations
