"""The record of one pass over a model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PassRecord"]


@dataclass(frozen=True)
class PassRecord:
    """One pass: how many rewrites it made and how long it took."""

    name: str
    rewrites: int
    seconds: float
