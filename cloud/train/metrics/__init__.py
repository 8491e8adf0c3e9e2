"""Metrics over a whole set: what is kept of every example, and the value that all of them have together."""

from __future__ import annotations
