"""Several jobs on one described cluster: who gets which devices when, simulated or run with processes."""

from __future__ import annotations
