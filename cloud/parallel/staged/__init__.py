"""Pipelines and recomputing: the forward pass as a line that can be cut, and what runs the pieces."""

from __future__ import annotations
