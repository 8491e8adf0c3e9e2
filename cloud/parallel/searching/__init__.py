"""The search for a plan: options of operators, groups that share one decision, memory at each moment."""

from __future__ import annotations
