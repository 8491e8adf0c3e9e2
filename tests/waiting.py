"""Waiting for events: long enough for a busy machine, and no test asserts how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["PATIENCE", "until"]

PATIENCE = 300.0
"""Seconds after which what has not happened never will."""


def until(holds: Callable[[], Any], every: float = 0.01) -> None:
    """Return when `holds()` is true; AssertionError if it never is."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"nothing happened within {PATIENCE:.0f} s"
        time.sleep(every)
