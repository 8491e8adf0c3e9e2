"""What a run decides while it goes on: when it evaluates, stops, lowers its rate, and what it freezes."""

from __future__ import annotations
