"""Plans presented to people: naming, explanation, drawing, saving, comparison and pins."""

from __future__ import annotations
