"""Runs of many processes, and what happens when one of them is lost."""

from __future__ import annotations
