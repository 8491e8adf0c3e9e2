"""A plan at work: the same equations emitted again, every value made to lie as planned."""

from __future__ import annotations
