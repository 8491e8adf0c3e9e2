"""A step as the planner sees it: the flat jaxpr, and for every primitive a rule that says which loops it has."""

from __future__ import annotations
