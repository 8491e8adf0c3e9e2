"""Runs with several processes, and recovery when one of them is lost."""

from __future__ import annotations
