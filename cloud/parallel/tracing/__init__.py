"""Tracing a step for the planner: the flat jaxpr, and for every primitive a rule that defines its loops."""

from __future__ import annotations
