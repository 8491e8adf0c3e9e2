"""Shares of examples: how far chance alone could move them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

__all__ = ["name_of", "names_of", "wilson"]

_Z = 1.959964
"""95 % of a normal distribution lie within so many standard deviations."""


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927); (0, 1) for no examples."""
    if not count:
        return 0.0, 1.0
    share, square = hits / count, _Z**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def name_of(text: str) -> str:
    """A text as a figure's name: a-z, 0-9 and _."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "column"


def names_of(texts: Iterable[str]) -> dict[str, str]:
    """Different names for different texts."""
    found: dict[str, str] = {}
    for text in texts:
        name, n = name_of(text), 2
        while name in found.values():
            name, n = f"{name_of(text)}_{n}", n + 1
        found[text] = name
    return found
