"""Names of figures from the texts of data."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["name_of", "names_of"]


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
