"""Automatic parallelism: a step written for one device, planned for many, and checked against what was compiled."""

from __future__ import annotations
