"""Plans for people: named, explained, drawn, saved, compared, pinned."""

from __future__ import annotations
